package management

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/server"
)

// RecordedSince says since when pulls have been counted. It is exported, like ManifestPulls,
// because huma includes the members of an embedded struct only if the struct is exported.
type RecordedSince struct {
	RecordedSince *time.Time `json:"recorded_since" doc:"Every pull since then is counted, or will be within some minutes. Null: it isn't known yet"`
	Realtime      *bool      `json:"realtime,omitempty" doc:"If the request had realtime=true: whether the numbers include pulls that aren't counted yet. False: there is no Redis, which alone knows such pulls at once, or it doesn't answer"`
}

// tagPulls has the pull statistics of one tag, as an element of a list in an answer.
type tagPulls struct {
	Name   string     `json:"tag_name"`
	Count  int64      `json:"tag_pull_count"`
	Last   *time.Time `json:"last_tag_pull_date" doc:"Null: not pulled since recorded_since"`
	Check  *time.Time `json:"last_check_date" doc:"The time of the last HEAD request, which is no pull, exact to some minutes; null: there was none"`
	Digest string     `json:"current_manifest_digest" doc:"The manifest that the last pull by this tag returned"`
}

// ManifestPulls has a manifest's pull statistics.
type ManifestPulls struct {
	Digest  string     `json:"manifest_digest"`
	Count   int64      `json:"manifest_total_pull_count" doc:"Pulls by any tag or by digest"`
	Last    *time.Time `json:"manifest_last_pull_date" doc:"Null: not pulled since recorded_since"`
	Check   *time.Time `json:"last_check_date" doc:"The time of the last HEAD request by digest, which is no pull, exact to some minutes; null: there was none"`
	LastTag *string    `json:"last_tag_pulled" doc:"The tag of the last pull by tag; null: there was none"`
}

func newManifestPulls(r pullstats.Row) ManifestPulls {
	m := ManifestPulls{Digest: r.Name, Count: r.Count, Last: optional(r.Last), Check: optional(r.Check)}
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

// Realtime is the query parameter by which a client asks for statistics that include the pulls
// which Redis has counted but which aren't in the database yet.
type Realtime struct {
	Realtime bool `query:"realtime" doc:"Add the pulls in Redis that aren't counted yet. If there is no Redis, or it doesn't answer, the numbers are those of the database"`
}

// readPulls calls `read`, which reads a repository's pull statistics from the database.
// readPulls returns since when pulls have been counted (`since`). If the client asked for
// realtime statistics, it also returns the pulls that are in Redis and not yet in the database
// (`live`), for the caller to add. Its error is meant for the client.
func (a *API) readPulls(ctx context.Context, in Realtime, repository int64, read func(ctx context.Context, pulls *pullstats.Reader) error) (live pullstats.Live, since RecordedSince, err error) {
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

const pullsDelay = "Counts are updated within some minutes (pull_statistics.interval). Where pulls aren't counted the answer is 404."

func (a *API) addPulls() {
	a.addRepositoryPulls()
	a.addTagPulls()
	a.addManifestPulls()
	a.addPullState()
	a.addPullHistory()
}

func (a *API) addTagPulls() {
	type input struct {
		TagInput
		Realtime
	}
	type tagPullStatistics struct {
		Name         string     `json:"tag_name"`
		Count        int64      `json:"tag_pull_count"`
		Last         *time.Time `json:"last_tag_pull_date" doc:"Null: not pulled since recorded_since"`
		Check        *time.Time `json:"last_check_date" doc:"The time of the last HEAD request, which is no pull, exact to some minutes; null: there was none"`
		Digest       oci.Digest `json:"manifest_digest" doc:"The manifest that the tag points to"`
		TotalCount   int64      `json:"manifest_total_pull_count" doc:"Pulls of the manifest by any tag or by digest"`
		ManifestLast *time.Time `json:"manifest_last_pull_date" doc:"Null: not pulled since recorded_since"`
		RecordedSince
	}
	type output struct{ Body tagPullStatistics }
	add(a, auth.Pull, huma.Operation{
		OperationID: "getTagPullStatistics", Method: http.MethodGet, Path: "/repository/{repository}/tag/{tag}/pull_statistics",
		Tags: []string{"pullstatistics"}, Summary: "Get how often and when a tag was pulled", Description: pullsDelay,
		Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, in *input) (*output, error) {
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
		return &output{tagPullStatistics{in.Tag, t.Count, optional(t.Last), optional(t.Check), d, m.Count, optional(m.Last), since}}, err
	})
}

func (a *API) addManifestPulls() {
	type input struct {
		Repository string     `path:"repository" doc:"Name of the repository" example:"library/alpine"`
		Digest     oci.Digest `path:"digest" doc:"Digest of the manifest"`
		Realtime
	}
	type manifestPullStatistics struct {
		ManifestPulls
		RecordedSince
	}
	type output struct{ Body manifestPullStatistics }
	add(a, auth.Pull, huma.Operation{
		OperationID: "getManifestPullStatistics", Method: http.MethodGet, Path: "/repository/{repository}/manifest/{digest}/pull_statistics",
		Tags: []string{"pullstatistics"}, Summary: "Get how often and when a manifest was pulled", Description: pullsDelay,
		Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, in *input) (*output, error) {
		repository, err := a.pulledManifest(ctx, in.Repository, in.Digest)
		if err != nil {
			return nil, err
		}
		var row pullstats.Row
		live, since, err := a.readPulls(ctx, in.Realtime, repository, func(ctx context.Context, pulls *pullstats.Reader) (err error) {
			row, err = pulls.ManifestRow(ctx, repository, in.Digest)
			return err
		})
		return &output{manifestPullStatistics{newManifestPulls(live.Manifest(row)), since}}, err
	})
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

func (a *API) addRepositoryPulls() {
	type input struct {
		Repository string `path:"repository" doc:"Name of the repository" example:"library/alpine"`
		Limit      int    `query:"limit" minimum:"1" default:"100" doc:"Most tags and manifests of a page. More than 1000 counts as 1000"`
		NextPage   string `query:"next_page" doc:"Where the page begins: next_page of the page before"`
		Realtime
	}
	type repositoryPullStatistics struct {
		Repository string          `json:"repository"`
		Tags       []tagPulls      `json:"tags" nullable:"false" doc:"Ordered by name"`
		Manifests  []ManifestPulls `json:"manifests" nullable:"false" doc:"Ordered by digest; they come after all tags"`
		RecordedSince
		NextPage string `json:"next_page,omitempty" doc:"Where the next page begins; absent on the last"`
	}
	type output struct{ Body repositoryPullStatistics }
	add(a, auth.Pull, huma.Operation{
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
		page, since, err := a.pullPage(ctx, in.Repository, place, min(in.Limit, 1000), in.Realtime)
		if err != nil {
			return nil, err
		}
		out := repositoryPullStatistics{in.Repository, page.tags, page.manifests, since, ""}
		if page.next != nil {
			out.NextPage = cursor("pulls", page.next)
		}
		return &output{out}, nil
	})
}

// pullPage is a page of a repository's statistics.
type pullPage struct {
	tags      []tagPulls
	manifests []ManifestPulls
	next      *pullPlace
}

func (a *API) pullPage(ctx context.Context, repository string, place pullPlace, limit int, in Realtime) (page pullPage, since RecordedSince, err error) {
	here, err := a.catalog.Present(ctx, repository, nil, nil)
	if err != nil {
		return page, since, err
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
		return page, since, err
	}
	if !place.Manifests {
		tags = pullstats.Merge(tags, live.Tags(), live.Tag, afterTags, limit)
		if len(tags) == limit {
			page.next = &pullPlace{After: tags[limit-1].Name}
		}
	}
	manifests = pullstats.Merge(manifests, live.Manifests(), live.Manifest, afterManifests, limit)
	manifests = manifests[:min(len(manifests), limit-len(tags))]
	if n := len(manifests); n > 0 && len(tags)+n == limit {
		page.next = &pullPlace{true, manifests[n-1].Name}
	}
	return page, since, a.fillPullPage(ctx, repository, here.Repository, &page, tags, manifests)
}

// fillPullPage sets the page's pull statistics from the given rows of tags and manifests. It
// leaves out tags and manifests that have been deleted. If the repository with the given id was
// deleted and another repository has its name now, the page stays empty.
func (a *API) fillPullPage(ctx context.Context, repository string, id int64, page *pullPage, tags, manifests []pullstats.Row) error {
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
	here, err := a.catalog.Present(ctx, repository, names, digests)
	if err != nil {
		return err
	}
	page.tags, page.manifests = make([]tagPulls, 0, len(tags)), make([]ManifestPulls, 0, len(manifests))
	if here.Repository != id {
		return nil
	}
	for _, t := range tags {
		if _, ok := here.Tags[t.Name]; ok {
			page.tags = append(page.tags, tagPulls{t.Name, t.Count, optional(t.Last), optional(t.Check), t.Other})
		}
	}
	for i, m := range manifests {
		if here.Manifests[digests[i]] {
			page.manifests = append(page.manifests, newManifestPulls(m))
		}
	}
	return nil
}
