package api_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"testing"

	"github.com/purser-registry/purser/internal/api"
)

// sent is a request that a server got.
type sent struct {
	Method, Path, Query string
	Body                map[string]any
}

// record starts a server that answers each request with the next of the answers, the last again
// and again, and records the requests.
func record(t *testing.T, answers ...string) (*api.Client, *[]sent) {
	t.Helper()
	var got []sent
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		one := sent{Method: r.Method, Path: r.URL.EscapedPath(), Query: r.URL.RawQuery}
		_ = json.NewDecoder(r.Body).Decode(&one.Body)
		got = append(got, one)
		_, _ = w.Write([]byte(answers[min(len(got), len(answers))-1]))
	}))
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return api.NewClient(u), &got
}

// TestCall: an operation is sent with the path of its place, in which names are escaped, with the
// query parameters that are set, and with the body.
func TestCall(t *testing.T) {
	t.Parallel()
	c, got := record(t, `{"uuid":"u","rules":[]}`)
	ctx := t.Context()
	rule := api.NewProtectionRule{Pattern: "^v"}
	for _, at := range []api.At{{Repository: "acme/app"}, {Namespace: "acme"}, {}} {
		made, err := api.CreateProtection.Call(ctx, c, api.ProtectionNew{At: at, Body: rule})
		if err != nil || made.UUID != "u" {
			t.Errorf("%+v: %+v, %v", at, made, err)
		}
	}
	if _, err := api.ListProtection.Call(ctx, c, api.ProtectionQuery{Paging: api.Paging{Limit: 3, NextPage: "a/b"}}); err != nil {
		t.Error(err)
	}
	if _, err := api.TeamRoles.Delete.Call(ctx, c, api.RoleItem{At: api.At{Namespace: "acme"}, Team: "a b"}); err != nil {
		t.Error(err)
	}
	if _, err := api.TeamRoles.Delete.Call(ctx, c, api.RoleItem{Team: "a"}); err == nil {
		t.Error("a role of no place was deleted")
	}
	body := map[string]any{"pattern": "^v"}
	want := []sent{
		{"POST", "/api/v1/repository/acme%2Fapp/tagprotection", "", body}, {"POST", "/api/v1/organization/acme/tagprotection", "", body},
		{"POST", "/api/v1/tagprotection", "", body}, {"GET", "/api/v1/tagprotection", "limit=3&next_page=a%2Fb", nil},
		{"DELETE", "/api/v1/organization/acme/permissions/team/a%20b", "", nil},
	}
	if !slices.EqualFunc(*got, want, func(a, b sent) bool {
		return a.Method == b.Method && a.Path == b.Path && a.Query == b.Query && a.Body["pattern"] == b.Body["pattern"]
	}) {
		t.Errorf("sent\n%+v, want\n%+v", *got, want)
	}
}

// TestCallsOfContent: a parameter is sent that is given, though its value is the zero value; a list goes on
// at its cursor; and nothing is expected of an answer without a body.
func TestCallsOfContent(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	of := api.InRepository{Repository: "acme/app"}
	c, got := record(t, `{"tags":[]}`)
	for _, in := range []api.TagQuery{{InRepository: of}, {InRepository: of, OnlyActive: api.Some(false), NotPulled: api.Some("30d")}} {
		if _, err := api.ListTags.Call(ctx, c, in); err != nil {
			t.Error(err)
		}
	}
	if list := *got; len(list) != 2 || list[0].Query != "" || list[1].Query != "not_pulled_for=30d&onlyActiveTags=false" {
		t.Errorf("tags: %+v", list)
	}
	c, got = record(t, `{"items":[{"id":"repository-1"}],"next":"repository-1"}`, `{"items":[{"id":"repository-2"}]}`)
	items, more, err := api.List(ctx, c, api.ListTrash, api.TrashQuery{Namespace: "acme"}, 0)
	if list := *got; err != nil || more || len(items) != 2 || len(list) != 2 || list[1].Query != "cursor=repository-1&limit=100&namespace=acme" {
		t.Errorf("trash: %+v by %+v, %v", items, list, err)
	}
	c, got = record(t, "")
	if _, err := api.DeleteRepository.Call(ctx, c, api.RepositoryDeletion{InRepository: of, Purge: true}); err != nil {
		t.Error(err)
	}
	if list := *got; len(list) != 1 || list[0].Method != "DELETE" || list[0].Path != "/api/v1/repository/acme%2Fapp" || list[0].Query != "purge=true" {
		t.Errorf("deletion: %+v", list)
	}
}

// TestList: a list is fetched page by page until the limit, and says whether there is more.
func TestList(t *testing.T) {
	t.Parallel()
	first, last := `{"rules":[{"uuid":"1"},{"uuid":"2"}],"next_page":"n"}`, `{"rules":[{"uuid":"3"}]}`
	for _, c := range []struct {
		limit, want int
		more        bool
		queries     []string
	}{
		{0, 3, false, []string{"limit=100", "limit=100&next_page=n"}}, {2, 2, true, []string{"limit=2"}},
		{1, 1, true, []string{"limit=1"}}, {3, 3, false, []string{"limit=3", "limit=1&next_page=n"}},
	} {
		client, got := record(t, first, last)
		list, more, err := api.List(t.Context(), client, api.ListProtection, api.ProtectionQuery{}, c.limit)
		var queries []string
		for _, s := range *got {
			queries = append(queries, s.Query)
		}
		if err != nil || len(list) != c.want || more != c.more || !slices.Equal(queries, c.queries) {
			t.Errorf("limit %d: %d entries, more %t, %v, by %q; want %d, %t, by %q", c.limit, len(list), more, err, queries, c.want, c.more, c.queries)
		}
	}
}

// runs is a Runner that only remembers which operations it was asked for.
type runs []string

func (r *runs) Run(_ context.Context, id string, _ any) (any, error) {
	*r = append(*r, id)
	return new(api.ProtectionList), nil
}

// TestRunAtPlaces: in the process, too, an operation is run at the place of its input.
func TestRunAtPlaces(t *testing.T) {
	t.Parallel()
	r := new(runs)
	for _, at := range []api.At{{Repository: "acme/app"}, {Namespace: "acme"}, {}} {
		if _, err := api.ListProtection.Run(t.Context(), r, api.ProtectionQuery{At: at}); err != nil {
			t.Error(err)
		}
	}
	if want := []string{"listRepoTagProtection", "listOrgTagProtection", "listAllTagProtection"}; !slices.Equal(*r, want) {
		t.Errorf("ran %q, want %q", *r, want)
	}
}
