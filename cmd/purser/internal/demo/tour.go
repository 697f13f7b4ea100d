package demo

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/worker"
)

const (
	// watchEvery is the time between two looks at the registry while the tour waits.
	watchEvery = 500 * time.Millisecond
	// patience limits the whole tour, which takes half a minute.
	patience = 5 * time.Minute
	// countWithin limits how long the tour waits until all pulls are counted.
	countWithin = 20 * time.Second
)

// tour shows what a registry does, step by step.
type tour struct {
	registry *registry
	api      *api.Client
	client   *client
	line     *line
	policies []*policy

	pushed time.Time // when the last tag was pushed
	most   contents  // before anything was deleted
}

func newTour(r *registry, l *line) (*tour, error) {
	server, err := url.Parse(r.url)
	if err != nil {
		return nil, fmt.Errorf("the registry's address: %w", err)
	}
	return &tour{registry: r, api: api.NewClient(server), client: newClient(r.url), line: l, policies: newPolicies()}, nil
}

// give gives the tour. It returns a command.ExitCode if the check at the end has found
// something.
func (t *tour) give(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the tour isn't over after %s", patience))
	defer cancel()
	for _, step := range []func(context.Context) error{t.welcome, t.teams, t.push, t.pull, t.setPolicies, t.collect, t.summarize, t.check} {
		if err := step(ctx); err != nil {
			if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
				return fmt.Errorf("%w: %w", cause, err)
			}
			return err
		}
	}
	return nil
}

func (t *tour) welcome(context.Context) error {
	return t.line.say("It was ready after %[1]s. Look at it meanwhile, in a browser or in another terminal:\n"+
		"  %[2]s/\n"+
		"  export %[3]s=%[2]s\n"+
		"  purser repo list %[4]s; purser tag list %[5]s; purser gc status; purser audit list %[4]s\n",
		t.registry.took.Round(100*time.Millisecond), t.registry.url, api.ServerVariable, namespace, webRepo)
}

// during calls `show` every watchEvery until `work` returns, and returns the error of `work`.
func (t *tour) during(ctx context.Context, work func(context.Context) error, show func() string) error {
	done := make(chan error, 1)
	go func() { done <- work(ctx) }()
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			t.line.Clear()
			return err
		case <-tick.C:
			t.line.progress(show())
		}
	}
}

func (t *tour) push(ctx context.Context) error {
	if err := t.line.say("\nPushing releases, images of pull requests and nightly builds, signatures and SBOMs to 3 repositories …\n"); err != nil {
		return err
	}
	began := time.Now()
	pushed := func() string {
		n := t.client.traffic()
		return fmt.Sprintf("pushed %s, %s, %s (%s), with those of the teams", command.Count(int64(n.Tags), "tag"), command.Count(int64(n.Manifests), "manifest"),
			command.Count(int64(n.Blobs), "blob"), command.Size(n.Bytes))
	}
	err := t.during(ctx, func(ctx context.Context) error { return push(ctx, t.client) }, pushed)
	if err != nil {
		return err
	}
	t.pushed = time.Now()
	if t.most, err = t.contents(ctx); err != nil {
		return err
	}
	return t.line.say("  %s in %s; layers mounted from another repository: %d\n",
		pushed(), time.Since(began).Round(100*time.Millisecond), t.client.traffic().Mounts)
}

// pull pulls some images, and waits until the statistics have counted this and until the last
// tag is as old as the policies demand.
func (t *tour) pull(ctx context.Context) error {
	var pulls, bytes int64
	for _, p := range []struct {
		repository, tag string
		times           int
	}{{webRepo, "latest", 5}, {webRepo, "v1.10", 2}, {webRepo, "v1.0", 1}, {apiRepo, "main", 4}, {jobsRepo, "v1.1", 1}} {
		platform := amd64
		if p.repository == jobsRepo {
			platform = arm64
		}
		for range p.times {
			n, err := t.client.pull(ctx, p.repository, p.tag, platform)
			if err != nil {
				return err
			}
			pulls++
			bytes += n
		}
	}
	counted, err := t.counted(ctx, pulls)
	if err != nil {
		return err
	}
	if err := t.line.say("  pulled %s (%s); the statistics count %d\n", command.Count(pulls, "image"), command.Size(bytes), counted); err != nil {
		return err
	}
	return worker.Sleep(ctx, time.Until(t.pushed.Add(minAge)))
}

// counted waits, for countWithin at most, until the statistics count n pulls. It returns how
// many they count.
func (t *tour) counted(ctx context.Context, n int64) (counted int64, err error) {
	for until := time.Now().Add(countWithin); ; {
		if counted, err = t.pulls(ctx); err != nil || counted >= n || time.Now().After(until) {
			return counted, err
		}
		if err := worker.Sleep(ctx, watchEvery); err != nil {
			return counted, err
		}
	}
}

// collect shows how tags are pruned and garbage is collected, until nothing is left to do.
func (t *tour) collect(ctx context.Context) error {
	err := t.line.say("\nPruning, and collecting garbage %s after it was left (days, in other registries) …\n", reviewDelay)
	for err == nil {
		var done bool
		var text string
		if done, text, err = t.look(ctx); err != nil || done {
			break
		}
		t.line.progress(text)
		err = worker.Sleep(ctx, watchEvery)
	}
	t.line.Clear()
	return err
}

// look says whether nothing is left to do: no policy deletes more tags, no review is to come,
// and no deletion is pending. `text` describes the state.
func (t *tour) look(ctx context.Context) (done bool, text string, err error) {
	// What a run of auto-pruning deletes is due for a review in the same transaction. So a
	// preview before the state of garbage collection misses nothing.
	left, err := t.preview(ctx, api.PolicyAt{Namespace: namespace}, nil)
	if err != nil {
		return false, "", err
	}
	garbage, err := t.garbage(ctx)
	if err != nil {
		return false, "", err
	}
	c, err := t.contents(ctx)
	if err != nil {
		return false, "", err
	}
	done = left.Complete && left.Deleted == 0 && toReview(garbage) == 0 && garbage.Doomed.Objects.Rows == 0
	return done, progress(c, garbage), nil
}

// keep lets the registry go on until ctx ends.
func (t *tour) keep(ctx context.Context) error {
	err := t.line.say("\nThe registry goes on at %s/ until you interrupt it (Ctrl-C).\n", t.registry.url)
	if err == nil {
		<-ctx.Done()
	}
	return err
}
