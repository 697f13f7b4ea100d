package server

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats"
)

// RecordedSince says from when on pulls were counted. Like ManifestPulls it is
// exported because embedded structs are described only then.
type RecordedSince struct {
	RecordedSince *time.Time `json:"recorded_since" doc:"Every pull since then is counted, or will be within some minutes. Null: it isn't known yet"`
}

// tagPulls are a tag's statistics in a list.
type tagPulls struct {
	Name   string     `json:"tag_name"`
	Count  int64      `json:"tag_pull_count"`
	Last   *time.Time `json:"last_tag_pull_date" doc:"Null: it wasn't pulled since recorded_since"`
	Digest string     `json:"current_manifest_digest" doc:"What the last pull by this tag got"`
}

// ManifestPulls are a manifest's statistics.
type ManifestPulls struct {
	Digest  string     `json:"manifest_digest"`
	Count   int64      `json:"manifest_total_pull_count" doc:"By whatever tag, or by digest"`
	Last    *time.Time `json:"manifest_last_pull_date" doc:"Null: it wasn't pulled since recorded_since"`
	LastTag *string    `json:"last_tag_pulled" doc:"The tag of the last pull by tag; null: there was none"`
}

func newManifestPulls(r pullstats.Row) ManifestPulls {
	m := ManifestPulls{Digest: r.Name, Count: r.Count, Last: optional(r.Last)}
	if r.Other != "" {
		m.LastTag = &r.Other
	}
	return m
}

// pullsOff is the answer where pulls aren't counted.
func (a *api) pullsOff() error {
	if a.server.opt.PullStats != nil && a.server.opt.Pulls != nil {
		return nil
	}
	return refusal(http.StatusNotFound, "pulls are not counted here: the setting pull_statistics.enabled is false")
}

// pullsFailed is the answer where the statistics can't be read.
func (a *api) pullsFailed(ctx context.Context, err error) error {
	a.server.log.WarnContext(ctx, "reading the statistics of pulls", "error", err)
	return oci.Errorf(oci.Unavailable, "the statistics of pulls can't be read now: try again later")
}

// since reads from when on pulls were counted.
func (a *api) since(ctx context.Context) (RecordedSince, error) {
	t, err := a.server.opt.Pulls.Since(ctx)
	if err != nil {
		return RecordedSince{}, a.pullsFailed(ctx, err)
	}
	return RecordedSince{optional(t)}, nil
}

const pullsDelay = "Counts follow within some minutes (pull_statistics.interval). Where pulls aren't counted the answer is 404."

func (a *api) addPulls() {
	a.addRepositoryPulls()
	a.addTagPulls()
	a.addManifestPulls()
	a.addPullState()
}

func (a *api) addTagPulls() {
	type tagPullStatistics struct {
		Name         string     `json:"tag_name"`
		Count        int64      `json:"tag_pull_count"`
		Last         *time.Time `json:"last_tag_pull_date" doc:"Null: it wasn't pulled since recorded_since"`
		Digest       oci.Digest `json:"manifest_digest" doc:"What the tag points to"`
		TotalCount   int64      `json:"manifest_total_pull_count" doc:"Of the manifest, by whatever tag or by digest"`
		ManifestLast *time.Time `json:"manifest_last_pull_date" doc:"Null: it wasn't pulled since recorded_since"`
		RecordedSince
	}
	type output struct{ Body tagPullStatistics }
	add(a, AccessPull, huma.Operation{
		OperationID: "getTagPullStatistics", Method: http.MethodGet, Path: "/repository/{repository}/tag/{tag}/pull_statistics",
		Tags: []string{"pullstatistics"}, Summary: "Tell how often and when a tag was pulled", Description: pullsDelay,
		Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, in *TagInput) (*output, error) {
		if err := a.pullsOff(); err != nil {
			return nil, err
		}
		if err := oci.ValidateTag(in.Tag); err != nil {
			return nil, tagInvalid(in.Tag, err)
		}
		here, err := a.server.catalog.Present(ctx, in.Repository, []string{in.Tag}, nil)
		if err != nil {
			return nil, err
		}
		d, ok := here.Tags[in.Tag]
		if !ok {
			return nil, oci.Errorf(oci.ManifestUnknown, "repository %s has no tag %s", in.Repository, in.Tag).
				WithDetail(map[string]string{"name": in.Repository, "tag": in.Tag})
		}
		tags, err := a.server.opt.Pulls.Tags(ctx, here.Repository, []string{in.Tag})
		if err != nil {
			return nil, a.pullsFailed(ctx, err)
		}
		m, err := a.server.opt.Pulls.Manifest(ctx, here.Repository, d)
		if err != nil {
			return nil, a.pullsFailed(ctx, err)
		}
		t := tags[in.Tag]
		since, err := a.since(ctx)
		return &output{tagPullStatistics{in.Tag, t.Count, optional(t.Last), d, m.Count, optional(m.Last), since}}, err
	})
}

func (a *api) addManifestPulls() {
	type input struct {
		Repository string     `path:"repository" doc:"Name of the repository" example:"library/alpine"`
		Digest     oci.Digest `path:"digest" doc:"Digest of the manifest"`
	}
	type manifestPullStatistics struct {
		ManifestPulls
		RecordedSince
	}
	type output struct{ Body manifestPullStatistics }
	add(a, AccessPull, huma.Operation{
		OperationID: "getManifestPullStatistics", Method: http.MethodGet, Path: "/repository/{repository}/manifest/{digest}/pull_statistics",
		Tags: []string{"pullstatistics"}, Summary: "Tell how often and when a manifest was pulled", Description: pullsDelay,
		Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, in *input) (*output, error) {
		if err := a.pullsOff(); err != nil {
			return nil, err
		}
		here, err := a.server.catalog.Present(ctx, in.Repository, nil, []oci.Digest{in.Digest})
		if err != nil {
			return nil, err
		}
		if !here.Manifests[in.Digest] {
			return nil, oci.Errorf(oci.ManifestUnknown, "repository %s has no manifest %s", in.Repository, in.Digest).
				WithDetail(map[string]string{"name": in.Repository, "digest": in.Digest.String()})
		}
		row, err := a.server.opt.Pulls.ManifestRow(ctx, here.Repository, in.Digest)
		if err != nil {
			return nil, a.pullsFailed(ctx, err)
		}
		since, err := a.since(ctx)
		return &output{manifestPullStatistics{newManifestPulls(row), since}}, err
	})
}

// pullPlace is where a page of a repository's statistics begins: tags come first.
type pullPlace struct {
	Manifests bool   `json:"m,omitempty"`
	After     string `json:"a"`
}

func (a *api) addRepositoryPulls() {
	type input struct {
		Repository string `path:"repository" doc:"Name of the repository" example:"library/alpine"`
		Limit      int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"How many tags and manifests on a page at most"`
		NextPage   string `query:"next_page" doc:"Where the page begins, from the page before"`
	}
	type repositoryPullStatistics struct {
		Repository string          `json:"repository"`
		Tags       []tagPulls      `json:"tags" nullable:"false" doc:"By name"`
		Manifests  []ManifestPulls `json:"manifests" nullable:"false" doc:"By digest, after all tags"`
		RecordedSince
		NextPage string `json:"next_page,omitempty" doc:"Where the next page begins; absent on the last"`
	}
	type output struct{ Body repositoryPullStatistics }
	add(a, AccessPull, huma.Operation{
		OperationID: "getRepositoryPullStatistics", Method: http.MethodGet, Path: "/repository/{repository}/pull_statistics",
		Tags: []string{"pullstatistics"}, Summary: "List how often and when tags and manifests were pulled",
		Description: "Tags and manifests that were never pulled, or are gone, are left out, so a page may be shorter than limit. " + pullsDelay,
		Errors:      []int{http.StatusNotFound},
	}, func(ctx context.Context, in *input) (*output, error) {
		if err := a.pullsOff(); err != nil {
			return nil, err
		}
		var place pullPlace
		if _, err := parseCursor(in.NextPage, "pulls", &place); err != nil {
			return nil, err
		}
		page, err := a.pullPage(ctx, in.Repository, place, in.Limit)
		if err != nil {
			return nil, err
		}
		since, err := a.since(ctx)
		out := repositoryPullStatistics{in.Repository, page.tags, page.manifests, since, ""}
		if page.next != nil {
			out.NextPage = cursor("pulls", page.next)
		}
		return &output{out}, err
	})
}

// pullPage is a page of a repository's statistics.
type pullPage struct {
	tags      []tagPulls
	manifests []ManifestPulls
	next      *pullPlace
}

func (a *api) pullPage(ctx context.Context, repository string, place pullPlace, limit int) (page pullPage, err error) {
	here, err := a.server.catalog.Present(ctx, repository, nil, nil)
	if err != nil {
		return page, err
	}
	var tags, manifests []pullstats.Row
	if !place.Manifests {
		if tags, err = a.server.opt.Pulls.TagPage(ctx, here.Repository, place.After, limit); err != nil {
			return page, a.pullsFailed(ctx, err)
		}
		if len(tags) == limit {
			page.next = &pullPlace{After: tags[limit-1].Name}
		}
		place, limit = pullPlace{Manifests: true}, limit-len(tags)
	}
	if page.next == nil {
		if manifests, err = a.server.opt.Pulls.ManifestPage(ctx, here.Repository, place.After, limit); err != nil {
			return page, a.pullsFailed(ctx, err)
		}
		if len(manifests) == limit {
			page.next = &pullPlace{true, manifests[limit-1].Name}
		}
	}
	return page, a.fillPullPage(ctx, repository, &page, tags, manifests)
}

// fillPullPage takes over the statistics of what is there.
func (a *api) fillPullPage(ctx context.Context, repository string, page *pullPage, tags, manifests []pullstats.Row) error {
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
	here, err := a.server.catalog.Present(ctx, repository, names, digests)
	if err != nil {
		return err
	}
	page.tags, page.manifests = make([]tagPulls, 0, len(tags)), make([]ManifestPulls, 0, len(manifests))
	for _, t := range tags {
		if _, ok := here.Tags[t.Name]; ok {
			page.tags = append(page.tags, tagPulls{t.Name, t.Count, optional(t.Last), t.Other})
		}
	}
	for i, m := range manifests {
		if here.Manifests[digests[i]] {
			page.manifests = append(page.manifests, newManifestPulls(m))
		}
	}
	return nil
}

// pullState is how counting stands.
type pullState struct {
	RecordedSince time.Time  `json:"recorded_since" doc:"Every pull since then is counted, or will be"`
	Behind        float64    `json:"behind_seconds" doc:"Age of the oldest pull that isn't counted yet; 0: there is none"`
	Counted       int64      `json:"counted" doc:"Pulls that were counted, ever"`
	Last          *time.Time `json:"last_processed_timestamp" doc:"The newest pull that was read; null: none was"`
	LastID        int64      `json:"last_processed_log_id"`
	LastXID       uint64     `json:"last_processed_xid" doc:"The log is read in the order of this and the id"`
	Checked       time.Time  `json:"checked_at" doc:"When the log was last read"`
	Problem       string     `json:"problem,omitempty" doc:"Why nothing can be counted, and what to do"`
}

func (a *api) pullState(ctx context.Context) (out pullState, err error) {
	if err := a.pullsOff(); err != nil {
		return out, err
	}
	s, err := a.server.opt.PullStats.Status(ctx)
	if err != nil {
		return out, a.pullsFailed(ctx, err)
	}
	out = pullState{
		RecordedSince: s.Since, Behind: s.Behind.Seconds(), Counted: s.Counted, Last: optional(s.Last),
		LastID: s.Read.ID, LastXID: s.Read.XID, Checked: s.Checked,
	}
	if s.Foreign {
		out.Problem = pullstats.ErrForeignLog.Error()
	}
	return out, nil
}

func (a *api) addPullState() {
	type output struct{ Body pullState }
	add(a, AccessAdmin, huma.Operation{
		OperationID: "getPullStatisticsState", Method: http.MethodGet, Path: "/pull_statistics", Tags: []string{"pullstatistics"},
		Summary: "Tell how far pulls are counted", Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, _ *struct{}) (*output, error) {
		s, err := a.pullState(ctx)
		return &output{s}, err
	})
	add(a, AccessAdmin, huma.Operation{
		OperationID: "flushPullStatistics", Method: http.MethodPost, Path: "/pull_statistics/flush", Tags: []string{"pullstatistics"},
		Summary: "Count now what isn't counted yet", Errors: []int{http.StatusNotFound, http.StatusConflict},
		Description: "The answer comes when all that can be counted is. Pulls of the last second, and those behind a transaction " +
			"that is open in the database, may be left. 409: see problem.",
	}, func(ctx context.Context, _ *struct{}) (*output, error) {
		s, err := a.pullState(ctx)
		if err != nil {
			return nil, err
		}
		if s.Problem != "" {
			return nil, refusal(http.StatusConflict, "%s", s.Problem)
		}
		if err := a.server.opt.PullStats.Sync(ctx); err != nil {
			return nil, a.pullsFailed(ctx, err)
		}
		s, err = a.pullState(ctx)
		return &output{s}, err
	})
	type resetOutput struct {
		Body struct {
			Unread int64 `json:"unread" doc:"Pulls in the log that are to be counted now"`
		}
	}
	add(a, AccessAdmin, huma.Operation{
		OperationID: "resetPullStatistics", Method: http.MethodPost, Path: "/pull_statistics/reset", Tags: []string{"pullstatistics"},
		Summary: "Go on counting after a restore", Errors: []int{http.StatusNotFound},
		Description: "After the database was restored from a dump or moved to another server it can't be told by transaction ids " +
			"which pulls were counted. This puts the log in order: what was counted isn't again, what wasn't will be. Counts stay.",
	}, func(ctx context.Context, _ *struct{}) (*resetOutput, error) {
		if err := a.pullsOff(); err != nil {
			return nil, err
		}
		if err := a.server.logAct(ctx, audit.ChangeMaintenance, map[string]any{"reset": "pull statistics"}); err != nil {
			return nil, err
		}
		out := new(resetOutput)
		var err error
		if out.Body.Unread, err = a.server.opt.PullStats.Reset(ctx); err != nil {
			return nil, a.pullsFailed(ctx, err)
		}
		return out, nil
	})
}
