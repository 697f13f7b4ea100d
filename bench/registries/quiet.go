package registries

import (
	"context"
	"time"
)

// A server is quiet when its processes use less than quietShare of a core for quietFor.
const (
	quietShare = 0.03
	quietFor   = time.Second
	quietLook  = 100 * time.Millisecond // how often the server's CPU time is read
)

// quieten waits until the target is quiet, at most b.quiet, and adds the CPU time that it
// used meanwhile to win: work that a server defers is part of the cost of an operation, and
// must not fall into the window of another.
func (b *bench) quieten(ctx context.Context, t *target, win *window) {
	if b.quiet == 0 || !win.usage.known {
		return
	}
	if t.after != "" {
		p := newPusher(t, b.options)
		defer p.close()
		if _, err := p.exchange(ctx, "POST", t.after, nil, 200); err != nil {
			win.fail(err)
		}
	}
	m := newMeter(b.fs, t.pids)
	start := win.end
	began := time.Now()
	seen := []usage{m.now(false)}
	for time.Since(began) < b.quiet && ctx.Err() == nil {
		pause(ctx, quietLook)
		seen = append(seen, m.now(false))
		const back = int(quietFor / quietLook)
		if n := len(seen) - 1; n >= back && seen[n].cpu()-seen[n-back].cpu() < time.Duration(quietShare*float64(quietFor)) {
			break
		}
	}
	last := seen[len(seen)-1]
	if !start.known || !last.known {
		return
	}
	win.usage.server += last.server - start.server
	win.usage.database += last.database - start.database
	win.usage.deferred = last.cpu() - start.cpu()
}

func (u usage) cpu() time.Duration { return u.server + u.database }

// pause waits for d, or until ctx is over.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
