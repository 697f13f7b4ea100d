package management_test

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/server"
)

// inProcess lets the registry run an operation in its process for the client of a request to
// a path, as a page of the UI does. Its answers are the operation's.
func inProcess[I, O any](r *registry, path string, op api.Operation[I, O]) {
	r.Handler.Mount(server.Mount{Prefix: path, Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var in I
		err := json.NewDecoder(req.Body).Decode(&in)
		var out O
		if err == nil {
			out, err = op.Run(req.Context(), r.Management(), in)
		}
		if err != nil {
			r.Handler.Fail(w, req, err)
			return
		}
		_ = json.NewEncoder(w).Encode(out)
	}), MarshalError: r.Management().Mount().MarshalError})
}

// TestOperationsInProcess: an operation that a page runs in the process has the access, the checks
// and the defaults of a request over HTTP.
func TestOperationsInProcess(t *testing.T) {
	t.Parallel()
	r := closed(t)
	inProcess(r, "/run/", api.CreateProtection)
	inProcess(r, "/delete/", api.DeleteProtection)
	for _, c := range []struct {
		as, in string
		status int
		text   string
	}{
		{"reader", `{"Repository":"acme/app","Body":{"pattern":"^v"}}`, 403, ""},
		{"stranger", `{"Namespace":"acme","Body":{"pattern":"^v"}}`, 403, ""},
		{"maintainer", `{"Body":{"pattern":"^v"}}`, 403, ""},
		{"maintainer", `{"Namespace":"other","Body":{"pattern":"^v"}}`, 403, ""},
		{"maintainer", `{"Repository":"acme/app","Body":{"pattern":"("}}`, 400, "pattern"},
		{"maintainer", `{"Repository":"acme/app","Body":{"pattern":"a\u0000b"}}`, 400, "pattern"},
		{"maintainer", `{"Repository":"acme/APP","Body":{"pattern":"^v"}}`, 400, "APP"},
		{"maintainer", `{"Repository":"acme/app","Body":{"pattern":"` + strings.Repeat("a", 70_000) + `"}}`, 413, "65536"},
		{"maintainer", `{"Repository":"acme/app","Body":{"pattern":"^v"}}`, 200, "uuid"},
		{"root", `{"Body":{"pattern":"^v"}}`, 200, "uuid"},
	} {
		a := r.as(c.as).Do(t, "POST", "/run/", c.in)
		if a.StatusCode != c.status || !strings.Contains(string(a.Content), c.text) {
			t.Errorf("%s %.80s: %d %s, want %d and %q", c.as, c.in, a.StatusCode, a.Content, c.status, c.text)
		}
	}
	for in, want := range map[string]string{`{"Namespace":"acme"}`: "path.uuid: required", `{"Namespace":"acme","UUID":"x"}`: "is not a UUID"} {
		if a := r.as("maintainer").Do(t, "POST", "/delete/", in); a.StatusCode != 400 || !strings.Contains(string(a.Content), want) {
			t.Errorf("deleting the rule %s: %d %s, want %q", in, a.StatusCode, a.Content, want)
		}
	}
}

// TestTagsInProcess: parameters of the path are required, and parameters are told apart that are given and
// that aren't.
func TestTagsInProcess(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 2, nil))
	inProcess(r, "/run/", api.ListTags)
	for in, want := range map[string]struct {
		status        int
		with, without string
	}{
		`{"Repository":"acme/app"}`: {200, `"pushed_at"`, "ended_by"},
		`{"Repository":"acme/app","OnlyActive":{"Value":true,"Given":true}}`:     {200, `"pushed_at"`, "ended_by"},
		`{"Repository":"acme/app","OnlyActive":{"Value":false,"Given":true}}`:    {200, `"ended_by":"move_tag"`, `"has_additional":true`},
		`{"Repository":"acme/app","NotPulled":{"Value":"long","Given":true}}`:    {400, "not_pulled_for", `"tags"`},
		`{"Repository":"acme/app","NotPulled":{"Value":"a\u0000","Given":true}}`: {400, "not_pulled_for", `"tags"`},
		`{}`: {400, "path.repository", `"tags"`},
	} {
		a := r.Do(t, "POST", "/run/", in)
		if text := string(a.Content); a.StatusCode != want.status || !strings.Contains(text, want.with) || strings.Contains(text, want.without) {
			t.Errorf("%s: %d %s, want %d with %s and without %s", in, a.StatusCode, text, want.status, want.with, want.without)
		}
	}
}

// TestQueriesInProcess: query parameters are checked, too, and get their defaults.
func TestQueriesInProcess(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for i := range 60 {
		namespace := "n" + strconv.Itoa(i)
		r.Push(t, namespace+"/app", "x")
		r.Manage(t, "POST", "/organization/"+namespace+"/quota", `{"limit_tags":5}`).WantStatus(t, 201)
	}
	inProcess(r, "/run/", api.ListQuotas)
	var page api.QuotaList
	r.Do(t, "POST", "/run/", `{}`).Into(t, 200, &page)
	if len(page.Quotas) != 50 || page.NextPage == "" { // the default
		t.Errorf("the first page has %d quotas and goes on at %q", len(page.Quotas), page.NextPage)
	}
	next := page.NextPage
	page = api.QuotaList{}
	r.Do(t, "POST", "/run/", encode(t, object{"NextPage": next})).Into(t, 200, &page)
	if len(page.Quotas) != 10 || page.NextPage != "" {
		t.Errorf("the second page has %d quotas and goes on at %q", len(page.Quotas), page.NextPage)
	}
	for _, in := range []string{`{"Limit":-1}`, `{"NextPage":"nonsense"}`, `{"NextPage":"a\u0000"}`} {
		r.Do(t, "POST", "/run/", in).WantStatus(t, 400)
	}
}

// TestPathsInProcess: a parameter of the path can't be left out.
func TestPathsInProcess(t *testing.T) {
	t.Parallel()
	r := setup(t)
	inProcess(r, "/run/", api.ExplainManifest)
	r.Do(t, "POST", "/run/", `{}`).Refused(t, 400, "invalid_request", "path.repository")
}
