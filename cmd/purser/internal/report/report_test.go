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

// TestItems: a tag had another digest when it was deployed than now. Both must be reported, each
// digest once, and a tag that isn't there must be told.
func TestItems(t *testing.T) {
	t.Parallel()
	d1, _ := oci.ParseDigest(one)
	d2, _ := oci.ParseDigest(two)
	at := time.Unix(1e9, 0)
	asked := 0
	resolve := func(repository, tag string, when time.Time) ([]oci.Digest, error) {
		asked++
		switch {
		case repository == "moved" && tag == "v1" && when.Equal(at):
			return []oci.Digest{d1, d2}, nil
		case repository == "broken":
			return nil, errors.New("no answer")
		}
		return nil, nil
	}
	moved := Image{Host: "h", Repository: "moved", Tag: "v1", At: at, UsedBy: "pod a"}
	gone := Image{Host: "h", Repository: "gone", Tag: "v1", UsedBy: "pod b"}
	items, unknown, err := Items([]Image{moved, moved, gone, {Host: "h", Repository: "x", Digest: d2, UsedBy: "pod c"}}, resolve)
	if err != nil || asked != 2 || fmt.Sprint(items) != fmt.Sprintf("[{%s pod a and 1 more} {%s pod a and 2 more}]", one, two) || len(unknown) != 1 || unknown[0].Repository != "gone" {
		t.Errorf("%v, unknown %v, %v; %d requests", items, unknown, err, asked)
	}
	if items, _, err := Items([]Image{{Host: "h", Repository: "broken", Tag: "v1"}}, resolve); err == nil || items != nil || !strings.Contains(err.Error(), "h/broken:v1") {
		t.Errorf("%v, %v", items, err)
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
