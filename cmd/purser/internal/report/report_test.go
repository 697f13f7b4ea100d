package report

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/oci"
)

const (
	one = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	two = "sha256:2222222222222222222222222222222222222222222222222222222222222222"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"alpine": "docker.io/library/alpine:latest", "team/app:v1": "docker.io/team/app:v1", "r.example:5000/app": "r.example:5000/app:latest",
		"localhost/app:v1": "localhost/app:v1", "r.example/a/b/c:v1@" + one: "r.example/a/b/c@" + one, "docker-pullable://r.example/app@" + two: "r.example/app@" + two,
		"[2001:db8::1]:5000/app:v1": "[2001:db8::1]:5000/app:v1",
	} {
		if i, err := Parse(text); err != nil || i.String() != want {
			t.Errorf("%s is %v (%v), want %s", text, i, err, want)
		}
	}
	for _, text := range []string{"", "R.example/App", one, "r.example/app:", "r.example/app@sha256:12", "a b", "r.example/app@" + one + "x"} {
		if i, err := Parse(text); err == nil {
			t.Errorf("%q is %v", text, i)
		}
	}
}

// FuzzParse checks that what Parse accepts has a host and a repository, and a tag or a digest.
func FuzzParse(f *testing.F) {
	f.Add("r.example:5000/app:v1@" + one)
	f.Add("docker-pullable://a")
	f.Fuzz(func(t *testing.T, text string) {
		i, err := Parse(text)
		if err == nil && (i.Host == "" || i.Repository == "" || (i.Tag == "") == i.Digest.IsZero()) {
			t.Errorf("%q is %+v", text, i)
		}
	})
}

// registry is a Registry.
type registry struct {
	states  map[string][]State // by repository:tag, or repository with the id
	refused map[string]string  // reasons by such names
	broken  string             // such a name
	asked   int
	since   map[string]time.Time
}

func (r *registry) Tag(repository, tag string, since time.Time) ([]State, error) {
	return r.answer(repository+":"+tag, since)
}

func (r *registry) Image(repository string, id oci.Digest) (digests []oci.Digest, err error) {
	states, err := r.answer(repository+" with the id "+id.String(), time.Time{})
	for _, s := range states {
		digests = append(digests, s.Digest)
	}
	return digests, err
}

func (r *registry) answer(name string, since time.Time) ([]State, error) {
	r.asked++
	if r.since == nil {
		r.since = map[string]time.Time{}
	}
	r.since[name] = since
	if name == r.broken {
		return nil, errors.New("no answer")
	}
	if reason := r.refused[name]; reason != "" {
		return nil, &Refusal{reason}
	}
	return r.states[name], nil
}

func digest(t *testing.T, n int) oci.Digest {
	t.Helper()
	d, err := oci.ParseDigest(fmt.Sprintf("sha256:%064d", n))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestResolve: a tag had other digests when it was deployed than now. Each digest is reported once,
// the registry is asked once for each tag, as far back as the oldest use, and a tag that isn't there
// must be told. A pod counts with all that its tag named since it was made, a revision with what it
// named then and now.
func TestResolve(t *testing.T) {
	t.Parallel()
	at := time.Unix(1e9, 0)
	after := func(d time.Duration) time.Time { return at.Add(d) }
	r := &registry{states: map[string][]State{
		"moved:v1":                {{digest(t, 1), time.Time{}}, {digest(t, 2), after(time.Hour)}, {digest(t, 3), after(10 * time.Minute)}, {digest(t, 4), after(time.Minute)}, {digest(t, 5), after(-time.Hour)}},
		"byid with the id " + one: {{Digest: digest(t, 6)}},
	}}
	image := func(repository, user string, at time.Time, since bool) Image {
		return Image{Host: "h", Repository: repository, Tag: "v1", At: at, Since: since, UsedBy: user}
	}
	id, _ := oci.ParseDigest(one)
	found, err := Resolve([]Image{
		image("moved", "set a", at, false), image("moved", "pod b", after(5*time.Minute), true), image("moved", "pod b", after(5*time.Minute), true),
		image("moved", "night", time.Time{}, false), image("gone", "pod c", at, false), {Host: "h", Repository: "byid", ID: id, UsedBy: "pod d"},
		{Host: "h", Repository: "x", Digest: digest(t, 4), UsedBy: "pod e"},
	}, r)
	names := []string{"h/moved:v1"}
	want := Found{Items: []Item{
		{digest(t, 1), "set a and 2 more", names}, {digest(t, 4), "set a and 1 more", names}, {digest(t, 2), "pod b", names}, {digest(t, 3), "pod b", names},
		{digest(t, 6), "pod d", []string{"h/byid with the id " + one}},
	}, Unresolved: []Unresolved{{"h/gone:v1", "pod c", absent}}}
	if err != nil || fmt.Sprint(found) != fmt.Sprint(want) {
		t.Errorf("%v, %v\nwant %v", found, err, want)
	}
	if since := r.since["moved:v1"]; r.asked != 3 || since.After(at) || since.Before(after(-time.Hour)) {
		t.Errorf("%d requests, since %v", r.asked, since)
	}
}

// TestUnresolved: images that can't be read don't stop the others, and each is told once. A registry
// that can't be reached does.
func TestUnresolved(t *testing.T) {
	t.Parallel()
	r := &registry{
		states:  map[string][]State{"good:v1": {{Digest: digest(t, 1)}}},
		refused: map[string]string{"closed:v1": "denied", "closed with the id " + one: "denied, too"},
		broken:  "broken:v1",
	}
	id, _ := oci.ParseDigest(one)
	list := []Image{
		{Host: "h", Repository: "closed", Tag: "v1", UsedBy: "pod a"}, {Host: "h", Repository: "closed", Tag: "v1", UsedBy: "pod b", Doubt: true},
		{Host: "h", Repository: "typo", Tag: "v1", UsedBy: "pod c"}, {Host: "h", Repository: "closed", ID: id, UsedBy: "pod a", Doubt: true},
		{Host: "h", Repository: "gone", Tag: "v1", UsedBy: "pod d", Doubt: true}, {Host: "h", Repository: "good", Tag: "v1", UsedBy: "pod e"},
	}
	found, err := Resolve(list, r)
	want := Found{Items: []Item{{digest(t, 1), "pod e", []string{"h/good:v1"}}}, Unresolved: []Unresolved{
		{"h/closed:v1", "pod a", "denied"}, {"h/typo:v1", "pod c", absent}, {"h/closed with the id " + one, "pod a", "denied, too"},
	}}
	if err != nil || fmt.Sprint(found) != fmt.Sprint(want) {
		t.Errorf("%v, %v\nwant %v", found, err, want)
	}
	found, err = Resolve(append(list, Image{Host: "h", Repository: "broken", Tag: "v1"}), r)
	if err == nil || len(found.Items)+len(found.Unresolved) > 0 || !strings.Contains(err.Error(), "h/broken:v1") {
		t.Errorf("%v, %v", found, err)
	}
}
