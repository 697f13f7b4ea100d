package report

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
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
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// containerd is a containerd with containers and images by namespace. It can't list the images of
// the namespace `broken`.
type containerd struct {
	namespaces.UnimplementedNamespacesServer
	containers map[string][]*containers.Container
	images     map[string][]*images.Image
	broken     string
}

type containersOf struct {
	containers.UnimplementedContainersServer
	*containerd
}

type imagesOf struct {
	images.UnimplementedImagesServer
	*containerd
}

func namespaceOf(ctx context.Context) string {
	md, _ := metadata.FromIncomingContext(ctx)
	return strings.Join(md.Get("containerd-namespace"), ",")
}

func (c *containerd) List(context.Context, *namespaces.ListNamespacesRequest) (*namespaces.ListNamespacesResponse, error) {
	var list []*namespaces.Namespace
	for _, name := range []string{"k8s.io", "default"} {
		list = append(list, &namespaces.Namespace{Name: name})
	}
	return &namespaces.ListNamespacesResponse{Namespaces: list}, nil
}

func (c containersOf) List(ctx context.Context, _ *containers.ListContainersRequest) (*containers.ListContainersResponse, error) {
	return &containers.ListContainersResponse{Containers: c.containers[namespaceOf(ctx)]}, nil
}

func (c imagesOf) List(ctx context.Context, _ *images.ListImagesRequest) (*images.ListImagesResponse, error) {
	if namespaceOf(ctx) == c.broken {
		return nil, status.Error(codes.Unavailable, "no metadata")
	}
	return &images.ListImagesResponse{Images: c.images[namespaceOf(ctx)]}, nil
}

func (c *containerd) serve(t *testing.T) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "c.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	containers.RegisterContainersServer(s, containersOf{containerd: c})
	images.RegisterImagesServer(s, imagesOf{containerd: c})
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

// made is when the containers of these tests were made.
var made = time.Unix(1e9, 0)

// stored is an image that was last changed so long after the containers were made.
func stored(name, target string, after time.Duration) *images.Image {
	return &images.Image{Name: name, Target: &types.Descriptor{Digest: target}, UpdatedAt: timestamppb.New(made.Add(after))}
}

// TestContainerd: containerd has a container in each of two namespaces, one of an image that was
// deleted. If one list can't be read, no image may be returned.
func TestContainerd(t *testing.T) {
	t.Parallel()
	server := func(broken string) *containerd {
		return &containerd{
			containers: map[string][]*containers.Container{
				"k8s.io":  {{ID: "web", Image: "r.example/web:v1", CreatedAt: timestamppb.New(made)}},
				"default": {{ID: "gone", Image: "r.example/gone:v1", CreatedAt: timestamppb.New(made)}, {ID: "rootfs"}},
			},
			images: map[string][]*images.Image{"k8s.io": {stored("r.example/web:v1", one, -time.Hour), stored("half", "sha256:11", 0)}},
			broken: broken,
		}
	}
	list, err := Containerd(t.Context(), server("").serve(t))
	var got []string
	for _, i := range list {
		got = append(got, i.String()+" "+i.UsedBy)
	}
	want := []string{"r.example/web:v1 container k8s.io/web", "r.example/web@" + one + " container k8s.io/web", "r.example/gone:v1 container default/gone"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("found %q, %v\nwant %q", got, err, want)
	}
	if list, err := Containerd(t.Context(), server("default").serve(t)); err == nil || len(list) > 0 || !strings.Contains(err.Error(), "namespace default") {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestRunningInContainerd has the forms in which containerd names the image of a container: of
// Kubernetes, with what it stores beside it, and of others, with a name alone. The name may have
// been pulled anew since the container was made.
func TestRunningInContainerd(t *testing.T) {
	t.Parallel()
	const web, id = "r.example/shop/web", "sha256:3333333333333333333333333333333333333333333333333333333333333333"
	withID := web + " with the id " + id
	for name, c := range map[string]struct {
		image, spec string // of the container; spec is the pod's, "-" without Kubernetes
		images      []*images.Image
		want        []string
		since       bool
	}{
		"a name":                             {web + ":v1", "-", []*images.Image{stored(web+":v1", one, -time.Hour)}, []string{web + ":v1", web + "@" + one}, false},
		"a name with a digest":               {web + "@" + one, "-", []*images.Image{stored(web+"@"+one, one, 0)}, []string{web + "@" + one}, false},
		"another name of the image":          {"mirror.example/web:v1", "-", []*images.Image{stored("mirror.example/web:v1", one, 0), stored(web+":v2", one, time.Hour)}, []string{"mirror.example/web:v1", "mirror.example/web@" + one, web + "@" + one}, false},
		"a name that was pulled anew":        {web + ":v1", "-", []*images.Image{stored(web+":v1", two, time.Hour)}, []string{web + ":v1", web + "@" + two}, true},
		"a name that is gone":                {web + ":v1", "-", nil, []string{web + ":v1"}, true},
		"an id":                              {id, "-", []*images.Image{stored(id, one, 0), stored(web+":v1", one, 0)}, []string{web + "@" + one}, false},
		"a pod":                              {web + ":v1", web + ":v1", []*images.Image{stored(id, one, 0), stored(web+":v1", one, 0), stored(web+"@"+one, one, 0)}, []string{web + ":v1", web + "@" + one}, false},
		"a pod whose tag was pulled anew":    {web + ":v1", web + ":v1", []*images.Image{stored(id, one, time.Hour), stored(web+":v1", two, time.Hour), stored(web+"@"+one, one, 0)}, []string{web + ":v1", web + "@" + one}, false},
		"a pod by the id":                    {id, web + ":v1", []*images.Image{stored(id, one, 0)}, []string{withID, web + ":v1", web + "@" + one}, false},
		"a pod of a mirror's image":          {"mirror.example/web:v1", web + ":v1", []*images.Image{stored(id, one, 0), stored("mirror.example/web:v1", one, 0)}, []string{"mirror.example/web@" + one, withID, web + ":v1", web + "@" + one}, false},
		"a pod whose image was deleted":      {web + ":v1", web + ":v1", []*images.Image{stored(web+":v1", two, time.Hour)}, []string{withID, web + ":v1"}, true},
		"a pod of a kubelet that names none": {id, id, []*images.Image{stored(id, one, 0), stored(web+":v1", one, 0)}, []string{web + "@" + one}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			made := &containers.Container{ID: "web", Image: c.image, CreatedAt: timestamppb.New(made)}
			if c.spec != "-" {
				members := fmt.Sprintf(`"image":%q`, id)
				if c.spec != id {
					members += fmt.Sprintf(`,"user_specified_image":%q`, c.spec)
				}
				made.Extensions = map[string]*anypb.Any{"io.containerd.cri.container.metadata": {
					TypeUrl: "github.com/containerd/cri/pkg/store/container/Metadata",
					Value:   fmt.Appendf(nil, `{"Version":"v1","Metadata":{"ID":"web","Config":{"image":{%s}},"ImageRef":%q}}`, members, id),
				}}
			}
			list, err := Containerd(t.Context(), (&containerd{
				containers: map[string][]*containers.Container{"k8s.io": {made}}, images: map[string][]*images.Image{"k8s.io": c.images},
			}).serve(t))
			if got := namesOf(list); err != nil || !slices.Equal(got, c.want) {
				t.Errorf("found %q, %v\nwant %q", got, err, c.want)
			}
			for _, i := range list {
				if i.Tag != "" && (i.Since != c.since || !i.At.Equal(made.CreatedAt.AsTime()) || i.Doubt == c.since) {
					t.Errorf("%s counts at %v, since then: %v, in doubt: %v", i, i.At, i.Since, i.Doubt)
				}
			}
		})
	}
}
