package report

import (
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
)

// DefaultDocker is where Docker listens unless DOCKER_HOST says something else.
const DefaultDocker = "unix:///var/run/docker.sock"

// engineTimeout limits each request to an engine.
const engineTimeout = time.Minute

// maxEngineAnswer is the most bytes that are read of an engine's answer.
const maxEngineAnswer = 64 << 20

// Docker returns the images of all containers that Docker has, also of stopped ones, which may
// be started again. `host` is Docker's address, as in DOCKER_HOST. Images that were built here
// and never pushed or pulled have no digest and are left out.
func Docker(ctx context.Context, host string) ([]Image, error) {
	d, err := dockerClient(host)
	if err != nil {
		return nil, err
	}
	var containers []container
	if err := d.get(ctx, "/containers/json?all=true", &containers); err != nil {
		return nil, Incomplete(err)
	}
	names := map[string][]string{} // by the image's id
	var images []Image
	for _, c := range containers {
		if _, ok := names[c.ImageID]; !ok {
			names[c.ImageID], err = d.names(ctx, c.ImageID)
			if err != nil {
				return nil, Incomplete(err)
			}
		}
		of, err := c.images(names[c.ImageID])
		if err != nil {
			return nil, Incomplete(err)
		}
		images = append(images, of...)
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

// images returns the images by which registries may know the container's image. `names` are its
// names with digests; nil means that the image was deleted while the container exists, so that
// only the name is left by which the container was made.
func (c container) images(names []string) (images []Image, err error) {
	user := c.ID
	if len(c.Names) > 0 {
		user = strings.TrimPrefix(c.Names[0], "/")
	}
	deleted := names == nil
	if deleted {
		names = []string{c.Image}
	}
	for _, n := range names {
		i, err := Parse(n)
		switch {
		case err != nil && deleted: // the image's id
			continue
		case err != nil:
			return nil, err
		}
		i.UsedBy, i.At = "container "+user, time.Unix(c.Created, 0)
		images = append(images, i)
	}
	return images, nil
}

// names returns the names with digests of an image, nil if there is no such image any more.
func (d *docker) names(ctx context.Context, id string) ([]string, error) {
	var image struct{ RepoDigests []string }
	err := d.get(ctx, "/images/"+url.PathEscape(id)+"/json", &image)
	if refused, ok := errors.AsType[*statusError](err); ok && refused.status == http.StatusNotFound {
		return nil, nil
	}
	if image.RepoDigests == nil {
		image.RepoDigests = []string{}
	}
	return image.RepoDigests, err
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
