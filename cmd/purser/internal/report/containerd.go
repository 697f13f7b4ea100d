package report

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	images "github.com/containerd/containerd/api/services/images/v1"
	namespaces "github.com/containerd/containerd/api/services/namespaces/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/purser-registry/purser/internal/oci"
)

// DefaultContainerd is where containerd listens unless its configuration says something else.
const DefaultContainerd = "/run/containerd/containerd.sock"

// Containerd returns the images of all containers of all of containerd's namespaces. `socket` is
// the path of containerd's socket. Containers without an image, such as those whose root is a
// directory, are left out. If a container's image was deleted meanwhile, only its name and the
// time at which the container was made are known.
func Containerd(ctx context.Context, socket string) ([]Image, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxEngineAnswer)))
	if err != nil {
		return nil, fmt.Errorf("connecting to containerd: %w", err)
	}
	defer conn.Close() //nolint:errcheck // only read
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	list, err := namespaces.NewNamespacesClient(conn).List(ctx, &namespaces.ListNamespacesRequest{})
	if err != nil {
		return nil, Incomplete(fmt.Errorf("listing containerd's namespaces: %w", err))
	}
	var found []Image
	for _, n := range list.GetNamespaces() {
		of, err := inNamespace(metadata.AppendToOutgoingContext(ctx, "containerd-namespace", n.GetName()), conn, n.GetName())
		if err != nil {
			return nil, Incomplete(fmt.Errorf("containerd's namespace %s: %w", n.GetName(), err))
		}
		found = append(found, of...)
	}
	return found, nil
}

// inNamespace returns the images of the containers in a namespace.
func inNamespace(ctx context.Context, conn *grpc.ClientConn, name string) ([]Image, error) {
	// The containers come first: the image of a container that is made meanwhile is there
	// before the container.
	made, err := containers.NewContainersClient(conn).List(ctx, &containers.ListContainersRequest{})
	if err != nil {
		return nil, fmt.Errorf("listing containers: %w", err)
	}
	stored, err := images.NewImagesClient(conn).List(ctx, &images.ListImagesRequest{})
	if err != nil {
		return nil, fmt.Errorf("listing images: %w", err)
	}
	s := store{}
	for _, i := range stored.GetImages() {
		if target, err := oci.ParseDigest(i.GetTarget().GetDigest()); err == nil {
			s[i.GetName()] = storedImage{target, i.GetUpdatedAt().AsTime()}
		}
	}
	var found []Image
	for _, c := range made.GetContainers() {
		found = append(found, s.running(c, "container "+name+"/"+c.GetID())...)
	}
	return found, nil
}

// store has the images of a namespace by their names. Names with tags move when they are pulled
// again. Kubernetes' images have a name with their digest too, and their id as a name.
type store map[string]storedImage

type storedImage struct {
	target  oci.Digest
	updated time.Time
}

// running returns the images by which registries may know a container's image. containerd says by
// which name the container was made, and not what the name stood for then. This is known of
// Kubernetes' containers, which tell the image's id, and of names that haven't changed since.
// Otherwise the name counts with what it stands for in containerd now, and with all that it named in
// the registry since the container was made.
func (s store) running(c *containers.Container, user string) []Image {
	r := Running{Name: c.GetImage(), Again: true, UsedBy: user}
	if at := c.GetCreatedAt(); at != nil {
		r.At = at.AsTime()
	}
	by := c.GetImage()
	if of := ofKubernetes(c); of.ImageRef != "" {
		by, r.Name = of.ImageRef, cmp.Or(of.Config.Image.Name, of.Config.Image.Image)
	}
	id, err := oci.ParseDigest(by)
	byID := err == nil
	if byID {
		r.Known = append(r.Known, Image{ID: id})
	}
	image, ok := s[by]
	if !ok {
		return r.Images()
	}
	names := s.names(image.target)
	if byID || !image.updated.After(r.At) {
		r.Known, r.Again = append(r.Known, names...), false
		return r.Images()
	}
	images := r.Images()
	for _, i := range names {
		if i.Host != "" {
			i.UsedBy = user
			images = append(images, i)
		}
	}
	return images
}

// names returns the names that an image has, with its digest, and the digest alone.
func (s store) names(target oci.Digest) []Image {
	images := []Image{{Digest: target}}
	for _, name := range slices.Sorted(maps.Keys(s)) {
		if i, err := Parse(name); err == nil && s[name].target == target {
			images = append(images, Image{Host: i.Host, Repository: i.Repository, Digest: target})
		}
	}
	return images
}

// containerType is the type of what Kubernetes' part of containerd stores with a container.
const containerType = "github.com/containerd/cri/pkg/store/container/Metadata"

// kubernetesContainer is the part of it that says which image the container runs.
type kubernetesContainer struct {
	Config struct {
		Image struct {
			Image string `json:"image"`
			Name  string `json:"user_specified_image"` // of the pod's specification; older kubelets don't say
		} `json:"image"`
	}
	ImageRef string // the image's id
}

// ofKubernetes returns what Kubernetes' part of containerd has stored with a container, nothing for
// other containers.
func ofKubernetes(c *containers.Container) kubernetesContainer {
	for _, e := range c.GetExtensions() {
		var stored struct{ Metadata kubernetesContainer }
		if e.GetTypeUrl() == containerType && json.Unmarshal(e.GetValue(), &stored) == nil {
			return stored.Metadata
		}
	}
	return kubernetesContainer{}
}
