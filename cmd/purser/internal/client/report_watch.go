package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/cmd/purser/internal/report"
	"github.com/purser-registry/purser/cmd/purser/internal/report/kube"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
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

const (
	// longestReport is how long a report may take: a cluster may have thousands of tags that the
	// registry is asked for, one after the other. Each answer has a shorter time of its own.
	longestReport = 30 * time.Minute
	// longestEnding is how long a report may go on after its time is over, or after the process was told
	// to stop.
	longestEnding = 10 * time.Second
	// longestRequest is how long the registry may take for an answer. It waits for deletions before it
	// takes a report, and reads a list of 200,000 digests.
	longestRequest = 5 * time.Minute
	// longestRetry is the longest pause before a report that failed is tried again.
	longestRetry = 30 * time.Second
	// perLease is how many reports come in the time of a lease. So two may fail before holds end, and
	// policies that require the reporter, which rest after half of a lease, go on.
	perLease = 3
)

// renewal is what a reporter knows about the time of its reports.
type renewal struct {
	// whole, request and ending are how long a report and a request to the registry may take, and how long
	// a report may go on after its time. 0: the longest times.
	whole, request, ending time.Duration
	shortest               time.Duration // lease that there may be. 0: hold.MinLease
	ends                   time.Time     // of the holds, without a further report; zero: unknown
	retry                  time.Duration // pause before the last report that was tried again
	shortened              bool          // somebody was told that reports come more often than after --interval
}

// errStuck is the error of a report that goes on after its time. No further one may come in the same
// process: client-go runs a kubeconfig's command for credentials without a context and with a lock that
// every request needs, so as long as the command hangs, all of them hang.
var errStuck = errors.New("a command for credentials in the kubeconfig may hang, since the report doesn't end")

func (r *renewal) requestTime() time.Duration { return cmp.Or(r.request, longestRequest) }

// limited calls `do` with a context that ends after the time that a report may take, so that a peer
// that never answers doesn't stop all further reports. If `do` goes on all the same, it returns an error
// that wraps errStuck, and doesn't wait.
func (r *renewal) limited(ctx context.Context, do func(context.Context) error) error {
	most := cmp.Or(r.whole, longestReport)
	limited, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	err := r.awaited(limited, do)
	if _, reported := errors.AsType[command.ExitCode](err); err != nil && !reported && limited.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("the report was given up after %s: %w", most, err)
	}
	return err
}

// awaited returns the error of `do`, or errStuck if `do` goes on for too long after the end of ctx.
func (r *renewal) awaited(ctx context.Context, do func(context.Context) error) error {
	done := make(chan error, 1)
	go func() { done <- do(ctx) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(r.endingTime()):
		return errStuck
	}
}

func (r *renewal) endingTime() time.Duration { return cmp.Or(r.ending, longestEnding) }

// registryLimit returns a context that ends if the registry doesn't answer within a time.
func registryLimit(ctx context.Context, within time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, within, fmt.Errorf("no answer within %s", within))
}

// check refuses an interval that isn't possible, or in which the holds might end, and warns of a short
// lease. `possible` says which intervals are.
func (r *reporting) check(cmd *cobra.Command, possible string) error {
	if r.interval < 0 || r.interval > 0 && r.interval < time.Second {
		return command.Usagef("--interval: %v isn't possible: %s", r.interval, possible)
	}
	age, err := policy.ParseAge(r.lease)
	if err != nil { // "": as before
		return nil
	}
	lease := age.Duration()
	if r.interval > lease/perLease {
		return command.Usagef("--interval %s is too long for --lease %s: what is deployed might be deleted between two reports. Use --interval %s or less, or a lease of %s or more",
			r.interval, r.lease, (lease / perLease).Truncate(time.Second), r.interval*perLease)
	}
	if lease < time.Hour {
		fmt.Fprintf(cmd.ErrOrStderr(), "Beware: --lease %s%s. If no report comes for so long, what is deployed may be deleted; a day also bridges a failure at night.\n", r.lease, shortAge(r.lease))
	}
	return nil
}

// wait returns how long the next report waits after one that ended with `err`, and whether that one
// failed, which it tells. The lease bridges the time until a report succeeds.
func (r *reporting) wait(cmd *cobra.Command, err error, interval time.Duration) (wait time.Duration, failed bool) {
	if _, reported := errors.AsType[command.ExitCode](err); err != nil && !reported {
		if cmd.Context().Err() == nil {
			tell(cmd, err)
		}
		r.retry = min(max(2*r.retry, settle), longestRetry)
		return min(r.retry, interval), true
	}
	r.retry = 0
	wait = r.due(interval, time.Now())
	if wait < r.interval*9/10 && !r.shortened { // less is the time that the answer took
		r.shortened = true
		fmt.Fprintf(cmd.ErrOrStderr(), "The holds end at %s without another report, so the next one comes after %s and not after --interval %s.\n",
			clock(&r.ends), wait.Truncate(time.Second), r.interval)
	}
	return wait, false
}

// due returns how long the next report may wait after one that has just succeeded: the interval, and at
// most a third of the time for which the registry holds what was reported.
func (r *reporting) due(interval time.Duration, now time.Time) time.Duration {
	wait := interval
	if age, err := policy.ParseAge(r.lease); err == nil {
		wait = min(wait, age.Duration()/perLease)
	}
	if !r.ends.IsZero() {
		left := max(r.ends.Sub(now), cmp.Or(r.shortest, hold.MinLease)) // no lease is shorter, so less is an error of a clock
		wait = min(wait, left/perLease)
	}
	return max(wait, time.Second)
}

// tell logs an error after which reports go on.
func tell(cmd *cobra.Command, err error) {
	fmt.Fprintf(cmd.ErrOrStderr(), "%s: %v\n", time.Now().Format(time.RFC3339), err)
}

// asked is a report.Registry that asks a server.
type asked struct {
	ctx    context.Context
	client *api.Client
	within time.Duration // for each answer
}

// maxTagPages is how many pages of a tag's history are read, of 100 states each.
const maxTagPages = 50

// Tag returns the states of a tag that ended after `since`, and perhaps some before that. The
// history lists the newest first.
func (a asked) Tag(repository, tag string, since time.Time) (states []report.State, err error) {
	in := api.TagQuery{InRepository: api.InRepository{Repository: repository}, Specific: tag, OnlyActive: api.Some(false), Limit: 100}
	for range maxTagPages {
		page, err := a.tags(in)
		if err != nil {
			return states, refusal(err)
		}
		for _, t := range page.Tags {
			s := report.State{Digest: t.ManifestDigest}
			// An end in the future is the tag's expiration; 0: the tag has this digest.
			if end := time.Unix(t.EndTS, 0); t.EndTS != 0 && !end.After(time.Now()) {
				s.End = end
			}
			if states = append(states, s); !s.End.IsZero() && s.End.Before(since) {
				return states, nil
			}
		}
		if page.NextPage == "" {
			return states, nil
		}
		in.NextPage = page.NextPage
	}
	return states, &report.Refusal{Reason: fmt.Sprintf("it was moved more than %d times since then, of which only the last ones count", len(states))}
}

func (a asked) tags(in api.TagQuery) (api.TagPage, error) {
	ctx, cancel := registryLimit(a.ctx, a.within)
	defer cancel()
	return api.ListTags.Call(ctx, a.client, in)
}

// Image returns the manifests whose configuration is `id`, and the manifest with this digest.
func (a asked) Image(repository string, id oci.Digest) (digests []oci.Digest, err error) {
	ctx, cancel := registryLimit(a.ctx, a.within)
	defer cancel()
	found, err := api.FindImage.Call(ctx, a.client, api.ImageItem{InRepository: api.InRepository{Repository: repository}, Image: id})
	return found.Digests, refusal(err)
}

// refusal turns the registry's error into a report.Refusal, and its answer that something isn't
// there into nil. It returns other errors, such as that of a registry that can't be reached.
func refusal(err error) error {
	refused, ok := errors.AsType[*api.Error](err)
	switch {
	case !ok:
		return err
	case refused.Status == http.StatusNotFound:
		return nil
	}
	return &report.Refusal{Reason: err.Error()}
}
