package management

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/server"
	"github.com/purser-registry/purser/internal/worker"
)

// cursor encodes a position in a list (`place`) as text, which an answer gives as next_page.
// The text also contains the list's name and order (`of`), so that parseCursor can refuse a
// cursor of another list.
func cursor(of string, place any) string {
	b, err := json.Marshal(struct {
		Of    string `json:"o"`
		Place any    `json:"p"`
	}{of, place})
	if err != nil {
		return "" // can't fail: positions consist of strings and numbers
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// parseCursor decodes the cursor `text` into `place`. It returns false for an empty text, by
// which a client asks for the first page. It returns an error if the text isn't a cursor, or is
// a cursor of a list whose name and order aren't `of`.
func parseCursor(text, of string, place any) (bool, error) {
	if text == "" {
		return false, nil
	}
	var c struct {
		Of    string          `json:"o"`
		Place json.RawMessage `json:"p"`
	}
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || json.Unmarshal(b, &c) != nil {
		return false, badQuery("next_page", "%.100q isn't a cursor that a list has given: begin again without one", text)
	}
	if c.Of != of {
		return false, badQuery("next_page", "the cursor is of another list or another order: begin again without one")
	}
	if json.Unmarshal(c.Place, place) != nil || !utf8.Valid(c.Place) || strings.Contains(string(c.Place), `\u0000`) {
		return false, badQuery("next_page", "%.100q isn't a cursor that a list has given: begin again without one", text)
	}
	return true, nil
}

// nameFilter returns the filter for package catalog. It returns an error for the client if a
// parameter contains NUL or invalid UTF-8, which PostgreSQL can't store.
func nameFilter(f api.NameFilter) (browse.NameFilter, error) {
	for name, value := range map[string]string{"prefix": f.Prefix, "contains": f.Contains} {
		if err := isText(name, value); err != nil {
			return browse.NameFilter{}, err
		}
	}
	return browse.NameFilter{Prefix: f.Prefix, Contains: f.Contains}, nil
}

func isText(name, value string) error {
	if !utf8.ValidString(value) || strings.ContainsRune(value, 0) {
		return badQuery(name, "%q is not text", value)
	}
	return nil
}

// optional returns nil for the zero time.
func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func checkNamespace(field, name string) error {
	if err := oci.ValidateName(name); err != nil {
		return server.Refusal(http.StatusBadRequest, "%s: %v", field, err)
	}
	if strings.Contains(name, "/") {
		return server.Refusal(http.StatusBadRequest, "%s: %q has a slash: a namespace is the first part of a repository's name", field, name)
	}
	return nil
}

// addNamespaces binds the operations on namespaces.
func (a *API) addNamespaces() {
	serve(a, api.ListNamespaces, a.listNamespaces)
	serve(a, api.CreateNamespace, func(ctx context.Context, in *api.NamespaceNew) (*string, error) {
		if err := checkNamespace("name", in.Body.Name); err != nil {
			return nil, err
		}
		created := "Created"
		return &created, a.catalog.CreateNamespace(ctx, in.Body.Name)
	})
	serve(a, api.GetNamespace, func(ctx context.Context, in *api.NamespaceSizes) (*api.NamespaceDetails, error) {
		if err := checkNamespace("orgname", in.Namespace); err != nil {
			return nil, err
		}
		viewer, err := a.server.Viewer(ctx)
		if err != nil {
			return nil, err
		}
		d, err := a.browser.DescribeNamespace(ctx, viewer, in.Namespace, in.Links)
		if err != nil {
			return nil, err
		}
		out := &api.NamespaceDetails{NamespaceDetails: d}
		if a.opt.Accounts != nil && a.may(ctx, auth.Administer, auth.OfNamespace(in.Namespace)) {
			err = a.listTeams(ctx, out)
		}
		return out, err
	})
	serveDeletion(a, api.DeleteNamespace, func(ctx context.Context, in *api.NamespaceDeletion) (string, error) {
		return a.trash.RemoveNamespace(ctx, in.Namespace, deletionOptions(in.Override, in.Purge)...)
	})
}

// sumTime is how long a page of namespaces waits for its sizes, the time until its turn included. Adding them
// up takes far less unless the database is overloaded.
const sumTime = 2 * time.Second

// listNamespaces returns a page of namespaces. If their sizes can't be added up in time, it returns the page
// without them.
func (a *API) listNamespaces(ctx context.Context, in *api.NamespaceQuery) (*api.NamespaceList, error) {
	f, err := nameFilter(in.NameFilter)
	if err != nil {
		return nil, err
	}
	var after string
	if _, err := parseCursor(in.NextPage, "namespace", &after); err != nil {
		return nil, err
	}
	viewer, err := a.server.Viewer(ctx)
	if err != nil {
		return nil, err
	}
	found, next, err := a.browser.Namespaces(ctx, viewer, f, after, min(in.Limit, 100))
	if err != nil {
		return nil, err
	}
	if in.Statistics && len(found) > 0 {
		limited, cancel := context.WithTimeout(ctx, sumTime)
		defer cancel()
		err := a.runInTurn(limited, a.sums, sumTime, func(ctx context.Context) error { return a.browser.AddSizes(ctx, viewer, found) })
		if err != nil && (ctx.Err() != nil || limited.Err() == nil) {
			return nil, err
		}
	}
	out := &api.NamespaceList{Namespaces: found}
	if next != "" {
		out.NextPage = cursor("namespace", next)
	}
	return out, nil
}

// unused returns a filter that selects the tags which, for as long as the parameter
// not_pulled_for says, were neither pushed, nor pulled, nor asked for by HEAD. It returns nil if
// the parameter is missing. It returns an error for the client if the parameter is invalid, if
// the client asks for a page by number, if the clocks aren't fit to judge by, or if the pull statistics
// are incomplete (knowsUses).
func (a *API) unused(ctx context.Context, in *api.TagQuery) (*browse.UnusedTags, error) {
	if !in.NotPulled.Given {
		return nil, nil
	}
	age, err := policy.ParseAge(in.NotPulled.Value)
	if err != nil {
		return nil, badQuery("not_pulled_for", "%v", err)
	}
	if in.Page > 1 {
		return nil, badQuery("page", "tags that weren't pulled for a while come by next_page alone")
	}
	if err := a.trustsClocks(ctx, age); err != nil {
		return nil, err
	}
	since, err := a.knowsUses(ctx, age)
	if err != nil {
		return nil, err
	}
	return &browse.UnusedTags{Since: since, LastUses: a.lastUses}, nil
}

// trustsClocks returns an error for the client while the clocks disagree or are in doubt: then nobody can
// tell how long ago a tag was used. The times of pushes and uses are those of the databases.
func (a *API) trustsClocks(ctx context.Context, age policy.Age) error {
	if a.opt.Clocks == nil {
		return nil
	}
	err := a.opt.Clocks.Check(ctx)
	if errors.Is(err, worker.ErrRest) {
		return oci.Errorf(oci.Unavailable, "which tags weren't pulled for %s can't be told now: %v", age, err)
	}
	return err
}

// knowsUses returns the time that is `age` ago by the clock of the statistics' database. It returns an
// error for the client if the pull statistics may lack pulls or HEAD requests since that time.
func (a *API) knowsUses(ctx context.Context, age policy.Age) (since time.Time, err error) {
	refused := func(format string, args ...any) (time.Time, error) {
		return since, server.Refusal(http.StatusConflict, "which tags weren't pulled for "+age.String()+" can't be told: "+format, args...)
	}
	if a.pullsOff() != nil {
		return refused("pulls aren't counted here, because the setting pull_statistics.enabled is false")
	}
	// Settle comes before Status: if a process has died with uses in memory, the status says so.
	if err := a.opt.PullStats.Settle(ctx); err != nil {
		if errors.Is(err, pullstats.ErrUnsettled) {
			return since, oci.Errorf(oci.Unavailable, "which tags weren't pulled for %s can't be told now: %v", age, err)
		}
		return since, a.pullsFailed(ctx, err)
	}
	status, err := a.opt.PullStats.Status(ctx)
	behind := status.Behind
	if err == nil && a.opt.RedisPulls != nil {
		var inRedis time.Duration
		inRedis, err = a.opt.RedisPulls.Behind(ctx)
		behind = max(behind, inRedis)
	}
	if err != nil {
		return since, a.pullsFailed(ctx, err)
	}
	since = status.Now.Add(-age.Duration())
	recorded, what := status.Since, "pulls are counted"
	if status.Checks.After(recorded) {
		recorded, what = status.Checks, "HEAD requests, which are uses too, are remembered"
	}
	switch {
	case status.Foreign:
		return refused("%v", pullstats.ErrForeignLog)
	case status.Unseen:
		return refused("%v", pullstats.ErrUnseen)
	case !recorded.Before(since):
		return refused("%s since %s, so they can be from %s on", what,
			recorded.UTC().Format(time.RFC3339), recorded.Add(age.Duration()).UTC().Format(time.RFC3339))
	case behind > judge.DefaultMaxBehind:
		return since, oci.Errorf(oci.Unavailable, "which tags weren't pulled for %s can't be told now: the statistics of pulls are %s behind; "+
			"\"purser pulls status\" shows their progress", age, behind.Round(time.Second))
	}
	return since, nil
}

// lastUses returns when each of the tags was last pulled or asked for by HEAD. Only requests by
// the tag's name count; pulling the tag's manifest by digest isn't a use of the tag.
func (a *API) lastUses(ctx context.Context, repository int64, names []string) (map[string]time.Time, error) {
	uses, err := a.opt.PullStats.Uses(ctx, repository, names, nil)
	if err != nil {
		return nil, a.pullsFailed(ctx, err)
	}
	return uses.Tags, nil
}
