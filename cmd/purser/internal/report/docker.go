package report

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/oci"
)

// DefaultDocker is where Docker listens unless DOCKER_HOST says something else.
const DefaultDocker = "unix:///var/run/docker.sock"

// engineTimeout limits each request to an engine.
const engineTimeout = time.Minute

// maxEngineAnswer is the most bytes that are read of an engine's answer.
const maxEngineAnswer = 64 << 20

// Docker returns the images of all containers that Docker has, also of stopped ones, which may
// be started again. `host` is Docker's address, as in DOCKER_HOST. A container counts by the name
// by which it was made, also if Docker has pulled another image by it meanwhile. If the container
// was made by the image's id, it counts by the tags that the image has.
func Docker(ctx context.Context, host string) ([]Image, error) {
	d, err := dockerClient(host)
	if err != nil {
		return nil, err
	}
	var containers []container
	if err := d.get(ctx, "/containers/json?all=true", &containers); err != nil {
		return nil, Incomplete(err)
	}
	known := map[string]dockerImage{} // by the image's id
	var images []Image
	for _, c := range containers {
		if _, ok := known[c.ImageID]; !ok {
			known[c.ImageID], err = d.image(ctx, c.ImageID)
			if err != nil {
				return nil, Incomplete(err)
			}
		}
		if c.Image, err = d.madeBy(ctx, c); err != nil {
			return nil, Incomplete(err)
		}
		images = append(images, c.images(known[c.ImageID])...)
	}
	return images, nil
}

// container is a container as Docker's API lists it.
type container struct {
	ID      string `json:"Id"`
	Names   []string
	Image   string // the name by which it was made, or the image's id
	ImageID string
	Created int64 // seconds since 1970
}

// dockerImage has the names of an image. It has none if the image was deleted while containers of it
// exist.
type dockerImage struct {
	RepoDigests []string // with digests, by which the image was pulled or pushed
	RepoTags    []string // with the tags that the image has now
}

// images returns the images by which registries may know the container's image. Docker never pulls
// again for a container, so its tag counts with what it named when the container was made, unless
// Docker knows no digest: then with all that it named since.
func (c container) images(known dockerImage) (images []Image) {
	r := Running{At: time.Unix(c.Created, 0), Again: true, UsedBy: "container " + c.ID}
	if len(c.Names) > 0 {
		r.UsedBy = "container " + strings.TrimPrefix(c.Names[0], "/")
	}
	for _, name := range known.RepoDigests {
		if i, ok := ParseRunning(name); ok && !i.Digest.IsZero() { // others are such as <none>@<none>
			r.Known, r.Again = append(r.Known, i), false
		}
	}
	if id, err := oci.ParseDigest(c.ImageID); err == nil {
		r.Known = append(r.Known, Image{ID: id})
	}
	names := []string{c.Image}
	if id := strings.TrimPrefix(c.Image, "sha256:"); strings.HasPrefix(strings.TrimPrefix(c.ImageID, "sha256:"), id) {
		names = known.RepoTags
	}
	if len(names) == 0 {
		return r.Images()
	}
	for _, name := range names {
		r.Name = name
		images = append(images, r.Images()...)
	}
	return images
}

// madeBy returns the name by which a container was made. The list has the image's id instead if
// Docker has another image of this name now.
func (d *docker) madeBy(ctx context.Context, c container) (string, error) {
	var made struct{ Config struct{ Image string } }
	err := d.get(ctx, "/containers/"+url.PathEscape(c.ID)+"/json", &made)
	if refused, ok := errors.AsType[*statusError](err); ok && refused.status == http.StatusNotFound {
		return c.Image, nil // the container was deleted meanwhile
	}
	return cmp.Or(made.Config.Image, c.Image), err
}

// image returns the names of an image.
func (d *docker) image(ctx context.Context, id string) (i dockerImage, err error) {
	err = d.get(ctx, "/images/"+url.PathEscape(id)+"/json", &i)
	if refused, ok := errors.AsType[*statusError](err); ok && refused.status == http.StatusNotFound {
		return dockerImage{}, nil
	}
	return i, err
}

// statusError is an answer with an error status.
type statusError struct {
	path   string
	status int
	body   []byte
}

func (e *statusError) Error() string {
	return fmt.Sprintf("docker answered %s with %d: %.300s", e.path, e.status, e.body)
}

type docker struct {
	base   string
	client *http.Client
}

func dockerClient(host string) (*docker, error) {
	scheme, address, _ := strings.Cut(host, "://")
	switch {
	case address == "":
		return nil, fmt.Errorf("the address of Docker is %q; write unix://PATH or tcp://HOST:PORT", host)
	case scheme == "unix":
		dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", address)
		}
		return &docker{"http://docker", &http.Client{Transport: &http.Transport{DialContext: dial}, Timeout: engineTimeout}}, nil
	case scheme == "tcp" || scheme == "http":
		return &docker{"http://" + strings.TrimSuffix(address, "/"), &http.Client{Timeout: engineTimeout}}, nil
	}
	return nil, fmt.Errorf("the address of Docker is %q; only unix://PATH and tcp://HOST:PORT without TLS are possible: run the report on Docker's host", host)
}

func (d *docker) get(ctx context.Context, path string, out any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.base+path, nil)
	if err != nil {
		return fmt.Errorf("asking Docker: %w", err)
	}
	resp, err := d.client.Do(req)
	if err != nil {
		return fmt.Errorf("asking Docker: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxEngineAnswer))
	switch {
	case err != nil:
		return fmt.Errorf("reading Docker's answer: %w", err)
	case resp.StatusCode != http.StatusOK:
		return &statusError{path, resp.StatusCode, body}
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("reading Docker's answer to %s: %w", path, err)
	}
	return nil
}
