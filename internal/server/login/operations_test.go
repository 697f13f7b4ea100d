package login_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/throttle"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/server/servertest"
	"github.com/purser-registry/purser/internal/webhook"
)

// operation is a method at a path pattern of one of the interfaces.
type operation struct {
	method, pattern string
	access          string // as the interface declares it
	management      bool
}

func (o operation) String() string { return o.method + " " + o.pattern }

// operations returns all operations of a registry: those of the OCI API from its routes, and
// those of the management API from its OpenAPI document.
func operations(t *testing.T, r *servertest.Registry) (list []operation) {
	t.Helper()
	for _, o := range r.Distribution.Operations() {
		list = append(list, operation{o.Method, o.Pattern, o.Access.String(), false})
	}
	var document struct {
		Paths map[string]map[string]struct {
			Access string `json:"x-access"`
		}
	}
	r.Manage(t, "GET", "/openapi.json", "").Into(t, 200, &document)
	for path, methods := range document.Paths {
		for method, o := range methods {
			list = append(list, operation{strings.ToUpper(method), path, o.Access, true})
		}
	}
	for _, hidden := range []string{"/api/v1/openapi.json", "/api/v1/openapi.yaml", "/api/v1/"} {
		list = append(list, operation{"GET", hidden, "any", true})
	}
	slices.SortFunc(list, func(a, b operation) int { return strings.Compare(a.String(), b.String()) })
	return list
}

// values stand for the variables in patterns of the management API. The default is "x".
var values = map[string]string{
	"tag": "v1", "digest": "sha256:" + strings.Repeat("0", 64), "error_type": "denied",
	"uuid": "00000000-0000-0000-0000-000000000000", "id": "00000000-0000-0000-0000-000000000000",
	"delivery": "00000000-0000-0000-0000-000000000000",
}

var variable = regexp.MustCompile(`\{(\w+)\}`)

// path returns a path that the pattern of the operation matches, about a repository or a
// namespace.
func (o operation) path(namespace, repository string) string {
	ref := "v1"
	switch {
	case strings.Contains(o.pattern, "/uploads/"):
		ref = values["uuid"]
	case strings.Contains(o.pattern, "/blobs/"), strings.Contains(o.pattern, "/referrers/"):
		ref = values["digest"]
	case strings.Contains(o.pattern, "/manifests/") && o.method == "DELETE":
		ref = "absent"
	}
	return variable.ReplaceAllStringFunc(o.pattern, func(v string) string {
		switch name := strings.Trim(v, "{}"); name {
		case "name", "repository":
			return repository
		case "orgname":
			return namespace
		case "ref":
			return ref
		default:
			if value, ok := values[name]; ok {
				return value
			}
			return "x"
		}
	})
}

// ofRepository says whether the operation is about one repository, ofNamespace whether it is
// about one namespace.
func (o operation) ofRepository() bool {
	return strings.Contains(o.pattern, "{name}") || strings.Contains(o.pattern, "{repository}")
}
func (o operation) ofNamespace() bool { return strings.Contains(o.pattern, "{orgname}") }

// ofHolds says whether the operation is about reporters of holds: those of the namespace that its
// query names or, without one, those of the whole registry.
func (o operation) ofHolds() bool { return strings.HasPrefix(o.pattern, "/api/v1/holds") }

// request returns a request of the operation that changes nothing even if it is allowed: after
// the check of the access, its body or query is found to be invalid.
func (o operation) request(path string, headers ...string) *http.Request {
	var body io.Reader
	deletion := o.method == "DELETE" && (!o.management || o.ofHolds()) // of what isn't there
	if o.method != "GET" && o.method != "HEAD" && !deletion {
		body = strings.NewReader("not JSON")
	}
	if o.pattern == "/v2/{name}/blobs/uploads/" {
		path += "?digest=invalid"
	}
	r := httptest.NewRequest(o.method, "http://127.0.0.1"+path, body)
	if body != nil {
		r.Header.Set("Content-Type", "text/plain")
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

// serve sends a request to a registry in this process.
func serve(ctx context.Context, r *servertest.Registry, q *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r.Handler.ServeHTTP(w, q.WithContext(ctx))
	return w
}

// whole starts a registry with access control whose management API has all its operations.
func whole(t *testing.T, access *auth.Options, change ...func(*throttle.FailuresOptions)) *servertest.Registry {
	t.Helper()
	dsn := dbtest.DSN(t)
	d, err := db.Open(t.Context(), db.Options{DSN: dsn})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	failures := throttle.FailuresOptions{DB: d}
	for _, f := range change {
		f(&failures)
	}
	access.Failures = throttle.NewFailures(failures)
	r := servertest.NewReplica(t, dsn, pgtest.TempDir(t), func(o *servertest.Options) {
		o.Access = access
		o.TrashKeep = time.Hour
		if o.Management.Webhooks, err = webhook.New(webhook.Options{DB: d, Log: o.Log}); err != nil {
			t.Fatal(err)
		}
		if o.Management.Autoprune, err = autoprune.New(autoprune.Options{DB: d, Catalog: o.Catalog, Log: o.Log, Interval: time.Second}); err != nil {
			t.Fatal(err)
		}
	})
	r.Listen(t)
	return r
}

// quickly is an htpasswd-like hash of the password "secret", which is cheap to check.
const quickly = "$2a$04$GUpy6xzprDqgyKRJ5bwklOWVUT1bo3yxHOEVKvpTSMAk78mbWSovW"

// person creates an account with the password "secret".
func person(t *testing.T, r *servertest.Registry, name string, superuser bool) auth.Account {
	t.Helper()
	a, err := r.Auth.CreateAccount(t.Context(), auth.NewAccount{Name: name, PasswordHash: quickly, Superuser: superuser})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// secret returns the headers of an account that person has made.
func secret(name string) []string { return servertest.Basic(name, "secret") }

// visibility sets whether a repository is public; nil is the default of the registry.
func visibility(t *testing.T, r *servertest.Registry, repository string, public any) {
	t.Helper()
	if _, err := r.DB.Pool.Exec(t.Context(), "UPDATE repositories SET is_public = $2 WHERE path = $1", repository, public); err != nil {
		t.Fatal(err)
	}
}

// metric returns the sum of a counter over all its labels.
func metric(t *testing.T, from prometheus.Gatherer, name string) (sum float64) {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue()
		}
	}
	return sum
}
