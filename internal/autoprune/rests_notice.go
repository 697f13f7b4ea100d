package autoprune

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/clock"
	"github.com/purser-registry/purser/internal/policy"
	"github.com/purser-registry/purser/internal/worker"
)

// Events of policies that rest, of which one notice is sent for each change.
const (
	EventRests   = "autoprune.rests"   // a policy deletes nothing, or no policy does
	EventResumed = "autoprune.resumed" // it deletes again: its reporters are live, or the clocks agree
)

// RestsNotice is the content of both events. Without Namespace and Policy, it is about all policies:
// the clocks disagree or are in doubt.
type RestsNotice struct {
	Run       string                 `json:"run,omitempty"`
	Namespace string                 `json:"namespace,omitempty"`
	Policy    *policies.NoticePolicy `json:"policy,omitempty"`
	Version   int64                  `json:"version,omitempty"`
	Warnings  []policy.Warning       `json:"warnings,omitempty"`  // it rests until somebody confirms them
	Reporters []string               `json:"reporters,omitempty"` // it rests until they report
	Text      string                 `json:"text,omitempty"`      // why it rests
}

// notifyRest queues a notice about a policy in the namespace, whose other members n has. told is false
// if no notices are sent.
func (u *timeSlice) notifyRest(ctx context.Context, tx pgx.Tx, s policies.Saved, event string, n RestsNotice) (told bool, err error) {
	if u.p.opt.Notify == nil {
		return false, nil
	}
	of := u.policies.Notice(s)
	n.Run, n.Namespace, n.Policy, n.Version = u.task.run.String(), u.task.name, &of, s.Version
	return true, u.p.opt.Notify(ctx, tx, event, n)
}

// clocksTold is the row of settings with the doubt about the database's clock of which a notice was
// queued; "": the doubt is over. All processes have the same doubt, and the first one tells of it.
const clocksTold = "autoprune_clocks_told"

// ownClock is what Pruner.clocks has while this process's clock disagrees with another one. Other
// processes may be right, so each tells of its own. The text isn't compared: it has the time.
const ownClock = "disagreement"

// tellClocks queues a notice when the clocks begin to keep this process from deleting tags, and when
// that is over. `why` is what mayDelete has returned; an error that isn't about the clocks, such as one
// of the database, changes nothing.
func (p *Pruner) tellClocks(ctx context.Context, why error) error {
	if p.opt.Notify == nil || why != nil && !errors.Is(why, worker.ErrRest) {
		return nil
	}
	state := ""
	if why != nil {
		state = ownClock
	}
	if d, ok := errors.AsType[*clock.Disagreement](why); ok && d.Doubt {
		state = d.Text
	}
	if p.clocks != nil && *p.clocks == state {
		return nil
	}
	told := false
	err := p.db.Tx(ctx, func(tx pgx.Tx) error {
		told = state == ownClock || state == "" && p.clocks != nil && *p.clocks == ownClock
		if state != ownClock {
			first, err := storeDoubt(ctx, tx, state)
			if told = told || first; err != nil {
				return err
			}
		}
		switch {
		case !told:
			return nil
		case why == nil:
			return p.opt.Notify(ctx, tx, EventResumed, RestsNotice{})
		}
		return p.opt.Notify(ctx, tx, EventRests, RestsNotice{Text: why.Error()})
	})
	if err != nil {
		return fmt.Errorf("telling of the clocks: %w", err)
	}
	p.clocks = &state
	p.notified(told)
	return nil
}

// storeDoubt stores the doubt about the database's clock, "" for its end. first is false if another
// process has stored the same.
func storeDoubt(ctx context.Context, tx pgx.Tx, doubt string) (first bool, err error) {
	done, err := tx.Exec(ctx, `
		INSERT INTO settings AS s (name, value)
		SELECT $1::text, $2::text WHERE $2 <> '' OR EXISTS (SELECT FROM settings WHERE name = $1)
		ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value WHERE s.value <> EXCLUDED.value`, clocksTold, doubt)
	return err == nil && done.RowsAffected() > 0, err
}
