package report

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	images "github.com/containerd/containerd/api/services/images/v1"
	namespaces "github.com/containerd/containerd/api/services/namespaces/v1"
	"github.com/containerd/containerd/api/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

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

// TestDocker: Docker has a running and a stopped container, one of an image with two names, one
// of an image that was built here, and one whose image was deleted.
func TestDocker(t *testing.T) {
	t.Parallel()
	answers := map[string]string{
		"/containers/json": `[{"Id":"c1","Names":["/web"],"Image":"r.example/web:v1","ImageID":"sha256:a","Created":1000000000,"State":"running"},
			{"Id":"c2","Names":["/old"],"Image":"r.example/web:v1","ImageID":"sha256:a","Created":1000000000,"State":"exited"},
			{"Id":"c3","Names":["/built"],"Image":"built","ImageID":"sha256:b","Created":1000000000},
			{"Id":"c4","Names":[],"Image":"r.example/gone:v1","ImageID":"sha256:c","Created":1000000000},
			{"Id":"c5","Names":["/byid"],"Image":"` + one + `","ImageID":"sha256:c","Created":1000000000}]`,
		"/images/sha256:a/json": `{"Id":"sha256:a","RepoDigests":["r.example/web@` + one + `","mirror.example/web@` + one + `"]}`,
		"/images/sha256:b/json": `{"Id":"sha256:b","RepoDigests":null}`,
	}
	broken := ""
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := answers[r.URL.Path]
		switch {
		case r.URL.Path == broken:
			http.Error(w, `{"message":"server error"}`, http.StatusInternalServerError)
		case !ok:
			http.Error(w, `{"message":"No such image"}`, http.StatusNotFound)
		default:
			fmt.Fprint(w, body)
		}
	}))
	defer s.Close()
	host := strings.Replace(s.URL, "http://", "tcp://", 1)
	list, err := Docker(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, i := range Of(list, []string{"r.example"}) {
		got = append(got, i.String()+" "+i.UsedBy)
	}
	want := []string{"r.example/web@" + one + " container web", "r.example/web@" + one + " container old", "r.example/gone:v1 container c4"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("found %v, want %v", got, want)
	}
	for _, path := range []string{"/containers/json", "/images/sha256:b/json"} {
		broken = path
		if list, err := Docker(t.Context(), host); err == nil || len(list) > 0 || !strings.Contains(err.Error(), "server error") {
			t.Errorf("%s fails: %v, %v", path, list, err)
		}
	}
	for _, bad := range []string{"", "ssh://host", "unix://" + filepath.Join(t.TempDir(), "none")} {
		if _, err := Docker(t.Context(), bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// containerd is a containerd with two namespaces. If `broken` is set, it can't list images.
type containerd struct {
	namespaces.UnimplementedNamespacesServer
	broken bool
}

type containersOf struct {
	containers.UnimplementedContainersServer
}

type imagesOf struct {
	images.UnimplementedImagesServer
	broken bool
}

func namespaceOf(ctx context.Context) string {
	md, _ := metadata.FromIncomingContext(ctx)
	return strings.Join(md.Get("containerd-namespace"), ",")
}

func (c *containerd) List(context.Context, *namespaces.ListNamespacesRequest) (*namespaces.ListNamespacesResponse, error) {
	return &namespaces.ListNamespacesResponse{Namespaces: []*namespaces.Namespace{{Name: "k8s.io"}, {Name: "default"}}}, nil
}

func (c containersOf) List(ctx context.Context, _ *containers.ListContainersRequest) (*containers.ListContainersResponse, error) {
	if namespaceOf(ctx) == "default" {
		return &containers.ListContainersResponse{Containers: []*containers.Container{
			{ID: "gone", Image: "r.example/gone:v1", CreatedAt: timestamppb.New(time.Unix(1e9, 0))}, {ID: "rootfs"}}}, nil
	}
	return &containers.ListContainersResponse{Containers: []*containers.Container{{ID: "web", Image: "r.example/web:v1"}}}, nil
}

func (c imagesOf) List(ctx context.Context, _ *images.ListImagesRequest) (*images.ListImagesResponse, error) {
	if c.broken && namespaceOf(ctx) == "default" {
		return nil, status.Error(codes.Unavailable, "no metadata")
	}
	return &images.ListImagesResponse{Images: []*images.Image{{Name: "r.example/web:v1", Target: &types.Descriptor{Digest: one}}}}, nil
}

func (c *containerd) serve(t *testing.T) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "c.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	containers.RegisterContainersServer(s, containersOf{})
	images.RegisterImagesServer(s, imagesOf{broken: c.broken})
	namespaces.RegisterNamespacesServer(s, c)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return socket
}

// TestContainerd: containerd has a container in each of two namespaces, one of an image that was
// deleted. If one list can't be read, no image may be returned.
func TestContainerd(t *testing.T) {
	t.Parallel()
	list, err := Containerd(t.Context(), (&containerd{}).serve(t))
	if err != nil || len(list) != 2 || list[0].String() != "r.example/web@"+one || list[0].UsedBy != "container k8s.io/web" ||
		list[1].String() != "r.example/gone:v1" || !list[1].At.Equal(time.Unix(1e9, 0)) {
		t.Errorf("%+v, %v", list, err)
	}
	if list, err := Containerd(t.Context(), (&containerd{broken: true}).serve(t)); err == nil || len(list) > 0 || !strings.Contains(err.Error(), "namespace default") {
		t.Errorf("%+v, %v", list, err)
	}
}
