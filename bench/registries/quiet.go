package registries

import (
	"context"
	"time"

	"github.com/purser-registry/purser/bench/meter"
)

// A server is quiet when its processes have used less than quietShare of a core during the
// last quietFor.
const (
	quietShare = 0.03
	quietFor   = time.Second
	quietLook  = 100 * time.Millisecond // how often the server's CPU time is read
)

// quieten waits until the target's processes are quiet, but at most for b.quiet, and adds the
// CPU time that they use meanwhile to `win`. This time belongs to the operations of the
// window, whose work the server has deferred; it must not be counted for the next server's
// window.
func (b *bench) quieten(ctx context.Context, t *target, win *window) {
	if b.quiet == 0 || !win.usage.Known {
		return
	}
	if t.after != "" {
		p := newPusher(t, b.options)
		defer p.close()
		if _, err := p.exchange(ctx, "POST", t.after, nil, 200); err != nil {
			win.fail(err)
		}
	}
	m := meter.New(b.fs, t.pids)
	start := win.end
	began := time.Now()
	seen := []meter.Usage{m.Now(false)}
	for time.Since(began) < b.quiet && ctx.Err() == nil {
		pause(ctx, quietLook)
		seen = append(seen, m.Now(false))
		const back = int(quietFor / quietLook)
		if n := len(seen) - 1; n >= back && seen[n].CPU()-seen[n-back].CPU() < time.Duration(quietShare*float64(quietFor)) {
			break
		}
	}
	last := seen[len(seen)-1]
	if !start.Known || !last.Known {
		return
	}
	win.usage.Server += last.Server - start.Server
	win.usage.Database += last.Database - start.Database
	win.usage.Deferred = last.CPU() - start.CPU()
}

// pause waits for the time d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
