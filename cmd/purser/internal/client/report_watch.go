package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/cmd/purser/internal/report/kube"
	"github.com/purser-registry/purser/internal/api"
)

const (
	// settle is how long a change waits for others, so that a rollout is one report.
	settle = time.Second
	// longestRetry is the longest pause before a report that failed is tried again.
	longestRetry = 30 * time.Second
)

// watch reports what a cluster runs whenever this changes, and after each interval. Each report reads
// the whole cluster, so a watch that misses something delays a report and never leaves anything out.
// It ends without an error when the process is told to stop.
func (r *reporting) watch(cmd *cobra.Command, c *api.Client, reporter string, o kube.Options, read source) error {
	if r.interval < 0 || r.interval > 0 && r.interval < time.Second {
		return command.Usagef("--interval: %v isn't possible: use at least 1s", r.interval)
	}
	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	tell := func(err error) { fmt.Fprintf(cmd.ErrOrStderr(), "%s: %v\n", time.Now().Format(time.RFC3339), err) }
	changes, ended := make(chan struct{}, 1), make(chan error, 1)
	changed := func() {
		select {
		case changes <- struct{}{}:
		default: // a report is due anyway
		}
	}
	go func() { ended <- kube.Watch(ctx, o, changed, tell) }()
	retry := settle
	for {
		err := r.once(cmd, c, reporter, read)
		wait, again := cmp.Or(r.interval, 5*time.Minute), changes
		_, reported := errors.AsType[command.ExitCode](err)
		if err != nil && !reported && ctx.Err() == nil { // the lease bridges the time until the next report
			tell(err)
			wait, again = retry, nil
			retry = min(2*retry, longestRetry)
		} else {
			retry = settle
		}
		select {
		case <-ctx.Done():
			return <-ended
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
