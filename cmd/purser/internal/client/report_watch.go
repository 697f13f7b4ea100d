package client

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/report/kube"
	"github.com/purser-registry/purser/internal/api"
)

// settle is how long a change waits for others, so that a rollout is one report.
const settle = time.Second

// watch reports what a cluster runs whenever this changes, and after each interval. Each report reads
// the whole cluster, so a watch that misses something delays a report and never leaves anything out.
// It ends without an error when the process is told to stop.
func (r *reporting) watch(cmd *cobra.Command, c *api.Client, reporter string, o kube.Options, read source) error {
	if err := r.check(cmd, "use at least 1s"); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	changes, ended := make(chan struct{}, 1), make(chan error, 1)
	changed := func() {
		select {
		case changes <- struct{}{}:
		default: // a report is due anyway
		}
	}
	go func() { ended <- kube.Watch(ctx, o, changed, func(err error) { tell(cmd, err) }) }()
	for {
		again := changes
		err := r.once(cmd, c, reporter, read)
		if errors.Is(err, errStuck) && ctx.Err() == nil {
			return err
		}
		wait, failed := r.wait(cmd, err, cmp.Or(r.interval, 5*time.Minute))
		if failed {
			again = nil
		}
		select {
		case <-ctx.Done():
			return r.stopped(ended)
		case err := <-ended:
			return err
		case <-time.After(wait):
		case <-again:
			select {
			case <-ctx.Done():
			case <-time.After(settle):
			}
		}
		select { // the next report has what changed until now
		case <-changes:
		default:
		}
	}
}

// stopped returns the error of a watch that was told to stop, and nil if it hangs.
func (r *reporting) stopped(ended <-chan error) error {
	select {
	case err := <-ended:
		return err
	case <-time.After(r.endingTime()):
		return nil
	}
}
