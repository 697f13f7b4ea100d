package report

import (
	"context"
	"fmt"

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
	targets := map[string]string{}
	for _, i := range stored.GetImages() {
		targets[i.GetName()] = i.GetTarget().GetDigest()
	}
	var found []Image
	for _, c := range made.GetContainers() {
		image, err := Parse(c.GetImage())
		if err != nil || c.GetImage() == "" {
			continue // no image of a registry, such as a root directory
		}
		image.UsedBy = "container " + name + "/" + c.GetID()
		if target, ok := targets[c.GetImage()]; ok {
			if image.Digest, err = oci.ParseDigest(target); err != nil {
				return nil, fmt.Errorf("the image %s: %w", c.GetImage(), err)
			}
			image.Tag = ""
		} else if at := c.GetCreatedAt(); at != nil {
			image.At = at.AsTime()
		}
		found = append(found, image)
	}
	return found, nil
}
