package management_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/clock"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
	"github.com/purser-registry/purser/internal/server/servertest"
	"github.com/purser-registry/purser/internal/webhook"
)

// whole returns a registry whose management API has all its operations, including those on
// webhooks, auto-pruning and pull statistics, which a registry of setup lacks.
func whole(t *testing.T) *registry { return onDatabase(t, everything(t)) }

// everything turns on all operations.
func everything(t *testing.T) func(o *servertest.Options, d *db.DB) {
	return func(o *servertest.Options, d *db.DB) {
		var err error
		if o.Management.Webhooks, err = webhook.New(webhook.Options{DB: d, Pulls: true, Log: o.Log}); err != nil {
			t.Fatal(err)
		}
		if o.Management.Autoprune, err = autoprune.New(autoprune.Options{DB: d, Catalog: o.Catalog, Log: o.Log, Interval: time.Second}); err != nil {
			t.Fatal(err)
		}
		if o.Management.Pulls, err = pullstats.NewReader(pullstats.Options{DB: d}); err != nil {
			t.Fatal(err)
		}
		if o.Management.Clocks, err = clock.New(clock.Options{DB: d, Log: o.Log}); err != nil {
			t.Fatal(err)
		}
		places := statsdb.Databases{Log: d, Stats: d, Alive: catalog.LivingNamespaces}
		if o.Management.PullStats, err = pullstats.NewSyncWorker(pullstats.SyncOptions{Databases: places, Logger: slog.New(slog.DiscardHandler)}); err != nil {
			t.Fatal(err)
		}
	}
}

// schema has those members of a JSON schema in the OpenAPI document that these tests read.
type schema struct {
	Ref        string             `json:"$ref"`
	Type       any                `json:"type"`
	Properties map[string]*schema `json:"properties"`
	Required   []string           `json:"required"`
}

type parameter struct {
	Name, In string
	Required bool
	Schema   schema
}

type described struct {
	Paths map[string]map[string]struct {
		Parameters  []parameter
		RequestBody struct {
			Content map[string]struct{ Schema schema }
		}
	}
	Components struct{ Schemas map[string]*schema }
}

// fill returns the path with values for its variables, and with a query that has the required
// parameters. The parameter called `name` gets `value`; all other parameters get valid values.
func fill(path, name, value string, list []parameter) string {
	query := url.Values{}
	for _, p := range list {
		v := map[string]string{"repository": "acme/app", "orgname": "acme", "tag": "v1", "digest": digest("x").String(),
			"policy_uuid": "0b0e2d2e-0000-4000-8000-000000000000"}[p.Name]
		if v == "" {
			v = "x"
		}
		if p.Name == name {
			v = value
		}
		if p.In == "path" {
			path = strings.ReplaceAll(path, "{"+p.Name+"}", url.PathEscape(v))
		} else if p.In == "query" && (p.Required || p.Name == name) {
			query.Set(p.Name, v)
		}
	}
	return path + "?" + query.Encode()
}

var hostile = map[string]string{
	"NUL": "\x00", "NUL within": "a\x00b", "invalid UTF-8": "\xff\xfe", "half a rune": "\xe2\x82", "surrogate": "\xed\xa0\x80",
	"huge": "99999999999999999999999999", "beyond 64 bits": "9223372036854775808", "most": "9223372036854775807",
	"negative": "-1", "least": "-9223372036854775808", "empty": "", "long": strings.Repeat("a", 20_000), "quote": "'\"\\%_", "line": "a\r\nb",
	"NaN": "NaN", "date": "0000-00-00T00:00:00Z", "far date": "99999-01-01T00:00:00Z", "date before Christ": "-4713-11-24T00:00:00Z",
	"old date": "0001-01-01T00:00:00Z", "last date": "9999-12-31T23:59:59.999999999Z", "cursor": "AAAA", "digest": "sha256:" + strings.Repeat("0", 64),
}

// TestAPIHostileParameters sends requests to every operation of the management API. In each
// request, one parameter has one of the values in the map `hostile`, such as NUL, invalid UTF-8
// or a huge number. No request may cause a server error. If PostgreSQL can't store the value,
// the API must refuse the request with an error that names the parameter.
func TestAPIHostileParameters(t *testing.T) {
	t.Parallel()
	r := whole(t)
	r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	var d described
	r.Manage(t, "GET", "/openapi.json", "").Into(t, 200, &d)
	n := 0
	for path, methods := range d.Paths {
		for method, op := range methods {
			for _, p := range op.Parameters {
				for kind, value := range hostile {
					n++
					at := fill(path, p.Name, value, op.Parameters)
					a := r.Do(t, strings.ToUpper(method), at, "")
					if a.StatusCode >= 500 && a.StatusCode != 503 {
						failures := r.Log.Records(t, "request failed")
						t.Errorf("%s %s, %s in %s: %d: %v", method, path, kind, p.Name, a.StatusCode, failures[len(failures)-1]["error"])
					}
					text := strings.Contains(kind, "NUL") || kind == "invalid UTF-8" || kind == "half a rune" || kind == "surrogate"
					if text && p.In != "header" && (a.StatusCode != 400 || !strings.Contains(string(a.Content), p.Name)) {
						t.Errorf("%s %s, %s in %s: %d %.200s, want 400 with the parameter's name", method, path, kind, p.Name, a.StatusCode, a.Content)
					}
				}
			}
			n += r.hostileBodies(t, d, method, path, op.Parameters, op.RequestBody.Content["application/json"].Schema)
		}
	}
	if n < 1000 {
		t.Errorf("only %d values were tried", n)
	}
}

// hostileBodies sends requests in which one member of the body has one of the values in the map
// `hostile`. It does so for every member of the body's schema `s`. It checks the answers as
// TestAPIHostileParameters does, and returns the number of requests.
func (r *registry) hostileBodies(t *testing.T, d described, method, path string, list []parameter, s schema) (n int) {
	t.Helper()
	if name, found := strings.CutPrefix(s.Ref, "#/components/schemas/"); found {
		s = *d.Components.Schemas[name]
	}
	values := []any{"\x00", "a\x00b", "\ufffd", "", strings.Repeat("a", 20_000), -1, 1e18, 1e300, true, []any{"\x00"}, object{"\x00": "\x00"}}
	for _, member := range slices.Sorted(maps.Keys(s.Properties)) {
		for _, value := range values {
			n++
			body := object{}
			for _, required := range s.Required {
				body[required] = sample(required, s.Properties[required])
			}
			body[member] = value
			a := r.Do(t, strings.ToUpper(method), fill(path, "", "", list), encode(t, body), "Content-Type", "application/json")
			if a.StatusCode >= 500 && a.StatusCode != 503 {
				t.Errorf("%s %s, %v as %s: %d %s", method, path, value, member, a.StatusCode, a.Content)
			}
			if encoded := encode(t, value); strings.Contains(encoded, `\u0000`) &&
				(a.StatusCode != 400 || !strings.Contains(string(a.Content), member)) {
				t.Errorf("%s %s, %s as %s: %d %s, want 400 with the member's name", method, path, encoded, member, a.StatusCode, a.Content)
			}
		}
	}
	return n
}

// sample returns a valid value for a member of a body.
func sample(name string, s *schema) any {
	switch s.Type {
	case "integer", "number":
		return 1
	case "boolean":
		return false
	}
	switch name {
	case "method":
		return "number_of_tags"
	case "manifest_digest":
		return digest("x").String()
	}
	return "x"
}

// TestHostileDistributionParameters sends requests to the OCI API in which one parameter has
// one of the values in the map `hostile`, such as NUL or invalid UTF-8. It checks the answers as
// TestAPIHostileParameters does for the management API.
func TestHostileDistributionParameters(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	d := digest("x").String()
	at := r.StartUpload(t, "acme/app", "")
	for _, q := range []struct{ method, path, name string }{
		{"GET", "/v2/_catalog", "last"}, {"GET", "/v2/_catalog", "n"}, {"GET", "/v2/acme/app/tags/list", "last"},
		{"GET", "/v2/acme/app/tags/list", "n"}, {"GET", "/v2/acme/app/referrers/" + d, "artifactType"},
		{"GET", "/v2/acme/app/referrers/" + d, "last"}, {"GET", "/v2/acme/app/referrers/" + d, "n"},
		{"POST", "/v2/acme/app/blobs/uploads/", "mount"}, {"POST", "/v2/acme/app/blobs/uploads/?mount=" + d, "from"},
		{"POST", "/v2/acme/app/blobs/uploads/", "digest"}, {"POST", "/v2/acme/app/blobs/uploads/", "digest-algorithm"},
		{"PUT", at, "digest"}, {"PUT", "/v2/acme/app/manifests/" + d, "tag"}, {"GET", "/v2/", "anything"},
	} {
		for kind, value := range hostile {
			sep := "?"
			if strings.Contains(q.path, "?") {
				sep = "&"
			}
			a := r.Do(t, q.method, q.path+sep+q.name+"="+url.QueryEscape(value), "")
			if a.StatusCode >= 500 {
				t.Errorf("%s %s, %s in %s: %d %s", q.method, q.path, kind, q.name, a.StatusCode, a.Content)
			}
			if strings.Contains(kind, "NUL") && (a.StatusCode != 400 || !strings.Contains(string(a.Content), q.name)) {
				t.Errorf("%s %s, %s in %s: %d %s, want 400 with the parameter's name", q.method, q.path, kind, q.name, a.StatusCode, a.Content)
			}
		}
	}
	for kind, value := range hostile {
		for _, path := range []string{"/v2/%s/tags/list", "/v2/acme/app/manifests/%s", "/v2/acme/app/blobs/%s", "/v2/acme/app/referrers/%s", "/v2/acme/app/blobs/uploads/%s"} {
			for _, method := range []string{"GET", "PUT", "PATCH", "DELETE"} {
				if a := r.Do(t, method, fmt.Sprintf(path, url.PathEscape(value)), "x"); a.StatusCode >= 500 {
					t.Errorf("%s %s with %s: %d %s", method, path, kind, a.StatusCode, a.Content)
				}
			}
		}
	}
}

// TestHostileHeaders: clients send headers with every kind of bytes that net/http accepts, such
// as invalid UTF-8. One of these headers is User-Agent, which the registry writes into the
// audit log. The requests must succeed. The registry may refuse a manifest because of its
// Content-Type, but not with a server error.
func TestHostileHeaders(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for i, value := range []string{"\xff\xfe", "\xe2\x82", strings.Repeat("a", 1023) + "\u20ac", strings.Repeat("\xff", 5000), "a\tb"} {
		repository := fmt.Sprintf("acme/app%d", i)
		payload := r.Simple(t, repository, i, nil)
		for _, name := range []string{"User-Agent", "X-Request-Id", "Accept", "Referer"} {
			r.Do(t, "PUT", "/v2/"+repository+"/manifests/v1", payload, name, value).Want(t, 201, "")
			r.Do(t, "GET", "/v2/"+repository+"/manifests/v1", "", name, value).Want(t, 200, "")
			if a := r.Manage(t, "DELETE", "/repository/"+repository+"/tag/v1", "", name, value); a.StatusCode != 204 {
				t.Errorf("%s %q: %d %s", name, value, a.StatusCode, a.Content)
			}
		}
		if a := r.Do(t, "PUT", "/v2/"+repository+"/manifests/v2", payload, "Content-Type", value); a.StatusCode >= 500 {
			t.Errorf("Content-Type %q: %d %s", value, a.StatusCode, a.Content)
		}
	}
	// A client pushes a manifest in which a member has text that PostgreSQL can't store. That
	// must not cause a server error.
	for _, text := range []string{"a\x00b", "\xff", "\xed\xa0\x80"} {
		b, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		for _, member := range []string{"artifactType", "mediaType"} {
			payload := `{"schemaVersion":2,"` + member + `":` + string(b) + `,"config":{"mediaType":"application/vnd.oci.empty.v1+json","digest":"` +
				r.Push(t, "acme/app", "{}").String() + `","size":2},"layers":[],"subject":{"mediaType":"` + oci.MediaTypeImageManifest + `","digest":"` +
				digest("s").String() + `","size":1},"annotations":{` + string(b) + `:` + string(b) + `}}`
			if a := r.Do(t, "PUT", "/v2/acme/app/manifests/v3", payload); a.StatusCode >= 500 {
				t.Errorf("%q in a manifest's %s: %d %s", text, member, a.StatusCode, a.Content)
			}
		}
	}
}
