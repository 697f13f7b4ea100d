package distribution_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/purser-registry/purser/internal/oci"
)

// TestConditionalPut: a client pushes a manifest to a tag with If-Match or If-None-Match. The
// registry must move the tag only if the condition holds for the manifest to which the tag
// points, and otherwise answer 412 (RFC 9110, section 13.1).
func TestConditionalPut(t *testing.T) {
	t.Parallel()
	r := setup(t)
	one, two := r.Simple(t, "a", 1, nil), r.Simple(t, "a", 2, nil)
	first, second := digest(one).String(), digest(two).String()
	quoted := func(d string) string { return `"` + d + `"` }
	put := func(payload string, headers ...string) answer {
		return r.Do(t, "PUT", "/v2/a/manifests/v1", payload, headers...)
	}
	is := func(d string) { r.Do(t, "HEAD", "/v2/a/manifests/v1", "").Want(t, 200, "", "Docker-Content-Digest", d) }

	// The tag doesn't exist.
	put(one, "If-Match", "*").Want(t, 412, oci.Denied)
	put(one, "If-Match", quoted(first)).Want(t, 412, oci.Denied)
	r.Do(t, "HEAD", "/v2/a/manifests/"+first, "").Want(t, 404, oci.ManifestUnknown) // nothing was stored
	put(one, "If-None-Match", "*").Want(t, 201, "", "Etag", quoted(first))
	is(first)

	// The tag exists.
	for range 2 { // the first time the manifest is new, the second it isn't
		put(two, "If-None-Match", "*").Want(t, 412, oci.Denied)
		put(two, "If-Match", quoted(second)).Want(t, 412, oci.Denied)
		put(two, "If-Match", `"nonsense"`).Want(t, 412, oci.Denied)
		put(two, "If-Match", "").Want(t, 412, oci.Denied)
		put(two, "If-Match", "W/"+quoted(first)).Want(t, 412, oci.Denied) // a weak validator never matches If-Match
		put(two, "If-None-Match", quoted(second)+", W/"+quoted(first)).Want(t, 412, oci.Denied)
		is(first)
		r.Do(t, "PUT", "/v2/a/manifests/other", two).Want(t, 201, "")
	}
	a := put(two, "If-Match", quoted(second)).Want(t, 412, oci.Denied)
	if !strings.Contains(string(a.Content), `"digest":"`+first+`"`) {
		t.Errorf("%s doesn't say what the tag points to", a.Content)
	}
	put(two, "If-Match", quoted(second)+", "+quoted(first)).Want(t, 201, "")
	is(second)
	put(one, "If-Match", "*", "If-None-Match", quoted(first)).Want(t, 201, "")
	is(first)
	put(one, "If-Match", quoted(first)).Want(t, 201, "") // as it is

	// The first two of the following requests push invalid manifests. They must get the same
	// errors as without a condition.
	put("{}", "If-Match", "*").Want(t, 400, oci.ManifestInvalid)
	put(image(t, digest("nowhere"), nil, nil), "If-None-Match", "*").Want(t, 400, oci.ManifestBlobUnknown)
	r.Do(t, "PUT", "/v2/none/manifests/v1", index(t), "If-Match", "*").Want(t, 412, oci.Denied)
	r.Do(t, "GET", "/v2/none/tags/list", "").Want(t, 404, oci.NameUnknown)
}

// TestConditionOnDigest: a client pushes a manifest by digest, with tags in the query, and with
// If-Match or If-None-Match. The condition must apply to the manifest with this digest, not to
// the tags.
func TestConditionOnDigest(t *testing.T) {
	t.Parallel()
	r := setup(t)
	m := r.Simple(t, "a", 1, nil)
	d := digest(m).String()
	path := "/v2/a/manifests/" + d + "?tag=v1"
	r.Do(t, "PUT", path, m, "If-Match", "*").Want(t, 412, oci.Denied)
	r.Do(t, "PUT", path, m, "If-None-Match", "*").Want(t, 201, "")
	r.Do(t, "PUT", path, m, "If-None-Match", "*").Want(t, 412, oci.Denied)
	r.Do(t, "PUT", path, m, "If-None-Match", `"`+d+`"`).Want(t, 412, oci.Denied)
	r.Do(t, "PUT", path, m, "If-Match", `"`+d+`"`).Want(t, 201, "")
}

// TestConditionalDelete: a client deletes a tag or manifest with If-Match or If-None-Match. If
// the condition doesn't hold, the registry must answer 412 and delete nothing.
func TestConditionalDelete(t *testing.T) {
	t.Parallel()
	r := setup(t)
	d := r.Put(t, "a", "v1", r.Simple(t, "a", 1, nil)).String()
	other := digest("other").String()
	for _, ref := range []string{"v1", d} {
		r.Do(t, "DELETE", "/v2/a/manifests/"+ref, "", "If-Match", `"`+other+`"`).Want(t, 412, oci.Denied)
		r.Do(t, "DELETE", "/v2/a/manifests/"+ref, "", "If-None-Match", "*").Want(t, 412, oci.Denied)
		r.Do(t, "GET", "/v2/a/manifests/v1", "").Want(t, 200, "")
	}
	r.Do(t, "DELETE", "/v2/a/manifests/none", "", "If-Match", "*").Want(t, 404, oci.ManifestUnknown)
	r.Do(t, "DELETE", "/v2/a/manifests/v1", "", "If-Match", `"`+d+`"`).Want(t, 202, "")
	r.Do(t, "DELETE", "/v2/a/manifests/"+d, "", "If-Match", `"`+d+`"`).Want(t, 202, "")
}

// TestConditionRace: in each round, twelve clients push to one tag through two replicas at the
// same time. The condition of each push is that the tag still points where the previous round
// left it. Exactly one push must succeed; the others must get 412.
func TestConditionRace(t *testing.T) {
	t.Parallel()
	r := setup(t)
	other := replica(t, r.DSN, r.Dir)
	other.Listen(t)
	const clients, rounds = 12, 6
	// Each round pushes manifests that the previous round didn't push. Otherwise a client could
	// push the manifest to which the tag already points, and would get 201 although it changes
	// nothing.
	both := make([]string, 2*clients)
	for i := range both {
		both[i] = r.Simple(t, "a", i, nil)
	}
	condition := []string{"If-None-Match", "*"}
	for round := range rounds {
		payloads := both[round%2*clients:][:clients]
		var won atomic.Int64
		var winner atomic.Pointer[string]
		var all sync.WaitGroup
		start := make(chan struct{})
		for i := range clients {
			all.Go(func() {
				<-start
				via := []*registry{r, other}[i%2]
				payload := payloads[(i+round)%clients]
				if round%2 == 1 { // two clients each push the same manifest
					payload = payloads[(i/2+round)%clients]
				}
				a, err := via.Try(t.Context(), "PUT", "/v2/a/manifests/v1", strings.NewReader(payload), condition...)
				switch {
				case err != nil:
					t.Error(err)
				case a.StatusCode == 201:
					won.Add(1)
					d := digest(payload).String()
					winner.Store(&d)
				case a.StatusCode != 412:
					t.Errorf("%d %s", a.StatusCode, a.Content)
				}
			})
		}
		close(start)
		all.Wait()
		if won.Load() != 1 {
			t.Fatalf("round %d: %d clients replaced the same tag", round, won.Load())
		}
		r.Do(t, "HEAD", "/v2/a/manifests/v1", "").Want(t, 200, "", "Docker-Content-Digest", *winner.Load())
		condition = []string{"If-Match", `"` + *winner.Load() + `"`}
	}
}

// TestPutRoundTrips: a client pushes manifests with and without a condition. A PUT must take
// one round trip to the database if the manifest is new, and two if the repository already has
// it.
func TestPutRoundTrips(t *testing.T) {
	t.Parallel()
	r := setup(t)
	trips := func() float64 {
		families, err := r.Metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() != "purser_http_database_round_trips_total" {
				continue
			}
			for _, m := range f.GetMetric() {
				labels := fmt.Sprint(m.GetLabel())
				if strings.Contains(labels, "manifests/{ref}") && strings.Contains(labels, "PUT") {
					return m.GetCounter().GetValue()
				}
			}
		}
		return 0
	}
	r.Put(t, "a", "warm", r.Simple(t, "a", "warm", nil)) // from now on the cache knows the repository
	for name, headers := range map[string][]string{"none": nil, "if-none-match": {"If-None-Match", "*"}} {
		m := r.Simple(t, "a", name, nil)
		for i, want := range []float64{1, 2} {
			before := trips()
			r.Do(t, "PUT", fmt.Sprintf("/v2/a/manifests/%s-%d", name, i), m, headers...).Want(t, 201, "")
			if got := trips() - before; got != want {
				t.Errorf("condition %s, put %d: %v round trips, want %v", name, i, got, want)
			}
		}
	}
}
