package login_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/throttle"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// seen is what a client can see of an answer, and what it cost.
type seen struct {
	status int
	header http.Header
	body   string
	trips  float64 // round trips to the database
}

// look sends a request and returns what the client sees. In the answer, the given names are
// replaced by fixed ones. The caches of access control are empty before the request.
func look(t *testing.T, r *servertest.Registry, q *http.Request, namespace, repository string) seen {
	t.Helper()
	if err := r.Auth.ChangeAccount(t.Context(), "root", auth.AccountChange{}); err != nil { // empties them
		t.Fatal(err)
	}
	const trips = "purser_http_database_round_trips_total"
	before := metric(t, r.Metrics.Only(trips), trips)
	a := serve(t.Context(), r, q)
	rename := func(s string) string {
		s = strings.ReplaceAll(s, "acme+other", "ROBOT")
		s = strings.ReplaceAll(s, repository, "REPOSITORY")
		s = strings.ReplaceAll(s, strings.ReplaceAll(repository, "/", "%2F"), "REPOSITORY")
		return strings.ReplaceAll(s, namespace, "NAMESPACE")
	}
	header := a.Header().Clone()
	header.Del("X-Request-Id")
	for _, list := range header {
		for i := range list {
			list[i] = rename(list[i])
		}
	}
	return seen{a.Code, header, rename(a.Body.String()), metric(t, r.Metrics.Only(trips), trips) - before}
}

func (s seen) compare(t *testing.T, what string, other seen) {
	t.Helper()
	if s.status != other.status || s.body != other.body || s.trips != other.trips {
		t.Errorf("%s:\n%d, %v round trips: %s\n%d, %v round trips: %s", what, s.status, s.trips, s.body, other.status, other.trips, other.body)
	}
	for name := range s.header {
		if strings.Join(s.header[name], ", ") != strings.Join(other.header[name], ", ") {
			t.Errorf("%s: %s is %q and %q", what, name, s.header[name], other.header[name])
		}
	}
	if len(s.header) != len(other.header) {
		t.Errorf("%s: headers %v and %v", what, s.header, other.header)
	}
}

// hidden are the places that a client without a role in them can't tell from each other: a
// private repository that exists, one that doesn't, and one in a namespace that doesn't exist.
// All names are equally long.
var hidden = [][2]string{{"acme", "acme/private"}, {"acme", "acme/missing"}, {"nope", "nope/private"}}

// outsiders returns clients that have no role in the namespace acme, with a name for each.
func outsiders(t *testing.T, r *servertest.Registry) map[string][]string {
	t.Helper()
	stranger := person(t, r, "stranger", false)
	person(t, r, "neighbour", false)
	r.Grant(t, "beta", "neighbour", auth.Administrator)
	var scopes []string
	for _, h := range hidden {
		scopes = append(scopes, "repository:"+h[1]+":*")
	}
	cookie, err := r.Auth.Sessions().Create(t.Context(), stranger.ID, "192.0.2.1", "test")
	if err != nil {
		t.Fatal(err)
	}
	robot, text, err := r.Auth.CreateRobot(t.Context(), "acme", "other", "", auth.Limits{Repositories: []string{"acme/other"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Grant(t, "acme", robot.Name, auth.Administrator)
	return map[string][]string{
		"nobody":                      nil,
		"anonymous token":             servertest.Bearer(r.Token(t, nil, scopes...)),
		"stranger":                    secret("stranger"),
		"stranger with a token":       servertest.Bearer(r.Token(t, secret("stranger"), scopes...)),
		"stranger with another one":   servertest.Bearer(r.Token(t, secret("stranger"), "repository:acme/public:pull")),
		"stranger with a cookie":      {"Cookie", "purser_session=" + cookie},
		"neighbour":                   secret("neighbour"),
		"robot of other repositories": servertest.Basic(robot.Name, text),
	}
}

// TestPrivateLooksAbsent: a client that may not read a repository gets the same answer for each
// operation, at the same cost, whether or not the repository or its namespace exists.
func TestPrivateLooksAbsent(t *testing.T) {
	t.Parallel()
	r := whole(t, &auth.Options{AnonymousPull: true}, func(f *throttle.FailuresOptions) { f.AccountBurst, f.AddressBurst = 10_000, 10_000 })
	person(t, r, "root", true)
	root := r.With(secret("root"))
	for _, repository := range []string{"acme/private", "acme/public", "beta/app"} {
		root.Put(t, repository, "v1", root.Simple(t, repository, 1, nil))
	}
	visibility(t, r, "acme/private", false)
	visibility(t, r, "acme/public", true)
	list, compared := operations(t, r), 0
	for name, headers := range outsiders(t, r) {
		look(t, r, operation{method: "GET", management: true}.request("/api/v1/organization", headers...), "-", "-") // notes that the credentials were used
		for _, o := range list {
			if !o.ofRepository() && (!o.ofNamespace() || strings.HasPrefix(name, "robot")) {
				continue
			}
			var first seen
			for i, h := range hidden {
				s := look(t, r, o.request(o.path(h[0], h[1]), headers...), h[0], h[1])
				if i == 0 {
					first = s
				}
				s.compare(t, name+": "+o.method+" "+o.path(h[0], h[1]), first)
				compared++
			}
		}
	}
	if compared < 1000 {
		t.Errorf("%d answers were compared", compared)
	}
}
