package management

import (
	"context"
	"errors"
	"net/http"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/pullstats/redispulls"
	"github.com/purser-registry/purser/internal/server"
)

func newManifestPulls(r pullstats.Row) api.ManifestPulls {
	m := api.ManifestPulls{Digest: r.Name, Count: r.Count, Last: optional(r.Last), Check: optional(r.Check)}
	if r.Other != "" {
		m.LastTag = &r.Other
	}
	return m
}

// pullsOff returns an error for the client if pulls aren't counted.
func (a *API) pullsOff() error {
	if a.opt.PullStats != nil && a.opt.Pulls != nil {
		return nil
	}
	return server.Refusal(http.StatusNotFound, "pulls are not counted here: the settings pull_statistics.enabled and pull_statistics.redis are false")
}

// pullsFailed logs `err`, because of which pull statistics can't be read, and returns the error
// for the client that asked for them.
func (a *API) pullsFailed(ctx context.Context, err error) error {
	a.server.Warn(ctx, "reading the statistics of pulls failed", err)
	return oci.Errorf(oci.Unavailable, "the statistics of pulls can't be read now: try again later")
}

// readPulls calls `read`, which reads a repository's pull statistics from the database.
// readPulls returns since when pulls have been counted (`since`). If the client asked for
// realtime statistics, it also returns the pulls that are in Redis and not yet in the database
// (`live`), for the caller to add. Its error is meant for the client.
func (a *API) readPulls(ctx context.Context, in api.Realtime, repository int64, read func(ctx context.Context, pulls *pullstats.Reader) error) (live pullstats.Live, since api.RecordedSince, err error) {
	if in.Realtime {
		live, err = a.opt.Pulls.Live(ctx, repository, read)
		ok := err == nil
		since.Realtime = &ok
		if errors.Is(err, pullstats.ErrNotLive) { // the database's statistics, which read has read, are valid by themselves
			a.log.DebugContext(ctx, "the answer leaves out pulls that aren't counted yet", "error", err)
			err = nil
		}
	} else {
		err = read(ctx, a.opt.Pulls)
	}
	if err != nil {
		return live, since, a.pullsFailed(ctx, err)
	}
	t, err := a.opt.Pulls.Since(ctx)
	if err != nil {
		return live, since, a.pullsFailed(ctx, err)
	}
	since.RecordedSince = optional(t)
	return live, since, nil
}

// addPulls binds the operations on the statistics of pulls.
func (a *API) addPulls() {
	serve(a, api.GetRepositoryPulls, a.repositoryPulls)
	serve(a, api.GetTagPulls, a.tagPulls)
	serve(a, api.GetManifestPulls, a.manifestPulls)
	a.addPullState()
	a.addPullHistory()
}

func (a *API) tagPulls(ctx context.Context, in *api.TagPullsQuery) (*api.TagPullStatistics, error) {
	repository, d, err := a.pulledTag(ctx, in.Repository, in.Tag)
	if err != nil {
		return nil, err
	}
	var t, m pullstats.Row
	live, since, err := a.readPulls(ctx, in.Realtime, repository, func(ctx context.Context, pulls *pullstats.Reader) (err error) {
		if t, err = pulls.TagRow(ctx, repository, in.Tag); err == nil {
			m, err = pulls.ManifestRow(ctx, repository, d)
		}
		return err
	})
	t, m = live.Tag(t), live.Manifest(m)
	return &api.TagPullStatistics{
		Name: in.Tag, Count: t.Count, Last: optional(t.Last), Check: optional(t.Check), Digest: d, TotalCount: m.Count, ManifestLast: optional(m.Last), RecordedSince: since,
	}, err
}

func (a *API) manifestPulls(ctx context.Context, in *api.ManifestPullsQuery) (*api.ManifestPullStatistics, error) {
	repository, err := a.pulledManifest(ctx, in.Repository, in.Digest)
	if err != nil {
		return nil, err
	}
	var row pullstats.Row
	live, since, err := a.readPulls(ctx, in.Realtime, repository, func(ctx context.Context, pulls *pullstats.Reader) (err error) {
		row, err = pulls.ManifestRow(ctx, repository, in.Digest)
		return err
	})
	return &api.ManifestPullStatistics{ManifestPulls: newManifestPulls(live.Manifest(row)), RecordedSince: since}, err
}

// pulledTag returns the ids of a repository and of the manifest to which its tag points, for an
// answer about the tag's pulls. Errors: that of pullsOff, NAME_UNKNOWN,
// MANIFEST_UNKNOWN.
func (a *API) pulledTag(ctx context.Context, repository, tag string) (id int64, d oci.Digest, err error) {
	if err := a.pullsOff(); err != nil {
		return 0, d, err
	}
	if err := server.CheckTag(tag); err != nil {
		return 0, d, err
	}
	here, err := a.catalog.Present(ctx, repository, []string{tag}, nil)
	if err != nil {
		return 0, d, err
	}
	d, ok := here.Tags[tag]
	if !ok {
		return 0, d, oci.Errorf(oci.ManifestUnknown, "repository %s has no tag %s", repository, tag).
			WithDetail(map[string]string{"name": repository, "tag": tag})
	}
	return here.Repository, d, nil
}

// pulledManifest returns the id of a repository that has a manifest, for an answer about the
// manifest's pulls. Its errors are those of pulledTag.
func (a *API) pulledManifest(ctx context.Context, repository string, d oci.Digest) (id int64, err error) {
	if err := a.pullsOff(); err != nil {
		return 0, err
	}
	here, err := a.catalog.Present(ctx, repository, nil, []oci.Digest{d})
	if err != nil {
		return 0, err
	}
	if !here.Manifests[d] {
		return 0, oci.Errorf(oci.ManifestUnknown, "repository %s has no manifest %s", repository, d).
			WithDetail(map[string]string{"name": repository, "digest": d.String()})
	}
	return here.Repository, nil
}

// pullPlace is the position in a repository's pull statistics at which a page of them begins.
// The statistics list all tags first and then all manifests. If Manifests is true, the page
// begins after the manifest with the digest After, else after the tag with the name After.
type pullPlace struct {
	Manifests bool   `json:"m,omitempty"`
	After     string `json:"a"`
}

func (a *API) repositoryPulls(ctx context.Context, in *api.RepositoryPullsQuery) (*api.RepositoryPullStatistics, error) {
	if err := a.pullsOff(); err != nil {
		return nil, err
	}
	var place pullPlace
	if _, err := parseCursor(in.NextPage, "pulls", &place); err != nil {
		return nil, err
	}
	out := &api.RepositoryPullStatistics{Repository: in.Repository}
	next, err := a.pullPage(ctx, out, place, min(in.Limit, 1000), in.Realtime)
	if err != nil {
		return nil, err
	}
	if next != nil {
		out.NextPage = cursor("pulls", next)
	}
	return out, nil
}

// pullPage fills a page of a repository's statistics, and returns where the next one begins, nil on the
// last.
func (a *API) pullPage(ctx context.Context, page *api.RepositoryPullStatistics, place pullPlace, limit int, in api.Realtime) (next *pullPlace, err error) {
	here, err := a.catalog.Present(ctx, page.Repository, nil, nil)
	if err != nil {
		return nil, err
	}
	var tags, manifests []pullstats.Row
	afterTags, afterManifests := place.After, ""
	if place.Manifests {
		afterManifests = place.After
	}
	live, since, err := a.readPulls(ctx, in, here.Repository, func(ctx context.Context, pulls *pullstats.Reader) (err error) {
		if !place.Manifests {
			if tags, err = pulls.TagPage(ctx, here.Repository, afterTags, limit); err != nil {
				return err
			}
		}
		manifests, err = pulls.ManifestPage(ctx, here.Repository, afterManifests, limit)
		return err
	})
	if err != nil {
		return nil, err
	}
	page.RecordedSince = since
	if !place.Manifests {
		tags = pullstats.Merge(tags, live.Tags(), live.Tag, afterTags, limit)
		if len(tags) == limit {
			next = &pullPlace{After: tags[limit-1].Name}
		}
	}
	manifests = pullstats.Merge(manifests, live.Manifests(), live.Manifest, afterManifests, limit)
	manifests = manifests[:min(len(manifests), limit-len(tags))]
	if n := len(manifests); n > 0 && len(tags)+n == limit {
		next = &pullPlace{true, manifests[n-1].Name}
	}
	return next, a.fillPullPage(ctx, page, here.Repository, tags, manifests)
}

// fillPullPage sets the page's pull statistics from the given rows of tags and manifests. It
// leaves out tags and manifests that have been deleted. If the repository with the given id was
// deleted and another repository has its name now, the page stays empty.
func (a *API) fillPullPage(ctx context.Context, page *api.RepositoryPullStatistics, id int64, tags, manifests []pullstats.Row) error {
	names, digests := make([]string, len(tags)), make([]oci.Digest, len(manifests))
	for i, t := range tags {
		names[i] = t.Name
	}
	for i, m := range manifests {
		var err error
		if digests[i], err = oci.ParseDigest(m.Name); err != nil {
			return err
		}
	}
	here, err := a.catalog.Present(ctx, page.Repository, names, digests)
	if err != nil {
		return err
	}
	page.Tags, page.Manifests = make([]api.TagPulls, 0, len(tags)), make([]api.ManifestPulls, 0, len(manifests))
	if here.Repository != id {
		return nil
	}
	for _, t := range tags {
		if _, ok := here.Tags[t.Name]; ok {
			page.Tags = append(page.Tags, api.TagPulls{Name: t.Name, Count: t.Count, Last: optional(t.Last), Check: optional(t.Check), Digest: t.Other})
		}
	}
	for i, m := range manifests {
		if here.Manifests[digests[i]] {
			page.Manifests = append(page.Manifests, newManifestPulls(m))
		}
	}
	return nil
}

func newRedisPulls(s redispulls.Status) *api.RedisPulls {
	r := &api.RedisPulls{
		Address: s.Address, Reachable: s.Reachable, Memory: s.Memory, MaxMemory: s.MaxMemory, Status: s.State, Error: s.Error,
		Processed: optional(s.Processed), Keys: s.Keys, Problems: append([]string{}, s.Problems...),
	}
	if r.Processed != nil {
		behind := s.Behind.Seconds()
		r.Behind = &behind
	}
	return r
}

func (a *API) pullState(ctx context.Context) (*api.PullState, error) {
	if err := a.pullsOff(); err != nil {
		return nil, err
	}
	s, err := a.opt.PullStats.Status(ctx)
	if err != nil {
		return nil, a.pullsFailed(ctx, err)
	}
	out := &api.PullState{
		RecordedSince: s.Counts, UsedSince: s.Since, CheckedSince: s.Checks, CountedBy: a.opt.Recorder.CountedBy(),
		Behind: s.Behind.Seconds(), Counted: s.Counted, Last: optional(s.Last),
		LastID: s.Read.ID, LastXID: s.Read.XID, Checked: s.Checked,
	}
	if s.Unseen {
		out.Unseen = pullstats.ErrUnseen.Error()
	}
	if s.Foreign {
		out.Problem = pullstats.ErrForeignLog.Error()
	}
	if a.opt.RedisPulls != nil {
		r, err := a.opt.RedisPulls.Status(ctx)
		if err != nil {
			return nil, a.pullsFailed(ctx, err)
		}
		out.Redis = newRedisPulls(r)
	}
	return out, nil
}

// flushPulls counts all pulls that the audit log and Redis have recorded and that aren't
// counted yet. Its error is meant for the client.
func (a *API) flushPulls(ctx context.Context) error {
	if err := a.opt.PullStats.Sync(ctx); err != nil {
		return a.pullsFailed(ctx, err)
	}
	if a.opt.RedisPulls == nil {
		return nil
	}
	if err := a.opt.RedisPulls.Flush(ctx); err != nil {
		a.server.Warn(ctx, "flushing pulls in Redis failed", err)
		return server.Refusal(http.StatusServiceUnavailable, "pulls in Redis can't be counted now: %v", err)
	}
	return nil
}

// abandonRedis gives up pulls that were counted in a Redis server which the registry doesn't
// use any more, and that never reached the statistics in the database. It returns an error if
// this process still uses a Redis server.
func (a *API) abandonRedis(ctx context.Context) error {
	if a.opt.RedisPulls != nil {
		return server.Refusal(http.StatusConflict, "this process has a Redis, whose pulls are counted by \"purser pulls flush\"")
	}
	if err := a.logAct(ctx, audit.ChangeMaintenance, map[string]any{"reset": "pull statistics", "redis": true}); err != nil {
		return err
	}
	if err := a.opt.PullStats.AbandonRedis(ctx); err != nil {
		return a.pullsFailed(ctx, err)
	}
	return nil
}

// addPullState binds the operations on the state of counting.
func (a *API) addPullState() {
	serve(a, api.GetPullState, func(ctx context.Context, _ *struct{}) (*api.PullState, error) { return a.pullState(ctx) })
	serve(a, api.FlushPulls, func(ctx context.Context, _ *struct{}) (*api.PullState, error) {
		s, err := a.pullState(ctx)
		if err != nil {
			return nil, err
		}
		if s.Problem != "" {
			return nil, server.Refusal(http.StatusConflict, "%s", s.Problem)
		}
		if err := a.flushPulls(ctx); err != nil {
			return nil, err
		}
		return a.pullState(ctx)
	})
	serve(a, api.ResetPullCounts, func(ctx context.Context, in *api.PullsReset) (*api.ResetPulls, error) {
		if err := a.pullsOff(); err != nil {
			return nil, err
		}
		if in.Redis {
			return new(api.ResetPulls), a.abandonRedis(ctx)
		}
		if err := a.logAct(ctx, audit.ChangeMaintenance, map[string]any{"reset": "pull statistics"}); err != nil {
			return nil, err
		}
		unread, err := a.resetPulls(ctx, in.NothingLost)
		if err != nil {
			return nil, a.pullsFailed(ctx, err)
		}
		return &api.ResetPulls{Unread: unread}, nil
	})
}

// resetPulls goes on counting on a database that was moved or set back. Unless nothing was lost, reports of
// holds are as unknown as pulls of the time that was lost.
func (a *API) resetPulls(ctx context.Context, nothingLost bool) (unread int64, err error) {
	if nothingLost {
		return a.opt.PullStats.Reset(ctx)
	}
	if err := hold.Unreported(ctx, a.catalog.DB()); err != nil {
		return 0, err
	}
	return a.opt.PullStats.Recover(ctx)
}
