package demo

import (
	"context"
	"fmt"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
)

// The repositories of the demo.
const (
	namespace = "demo"
	webRepo   = namespace + "/web"
	apiRepo   = namespace + "/api"
	jobsRepo  = namespace + "/jobs"
)

var repositories = []string{webRepo, apiRepo, jobsRepo}

const (
	mebibyte      = 1 << 20
	webReleases   = 12 // v1.0 to v1.11
	webGeneration = 4  // releases that share a layer with libraries
	pullRequests  = 10
	nightlies     = 8
)

var (
	amd64 = v1.Platform{OS: "linux", Architecture: "amd64"}
	arm64 = v1.Platform{OS: "linux", Architecture: "arm64"}
)

// pusher pushes the demo's images. Their base layers are pushed first, to demo/web; the other
// repositories mount them from there.
type pusher struct {
	*client
	base map[string]content // by architecture
}

// push pushes all images: three repositories at the same time, the tags of each in order.
func push(ctx context.Context, c *client) error {
	p := pusher{c, make(map[string]content)}
	for _, platform := range []v1.Platform{amd64, arm64} {
		layer := newLayer("base", 6*mebibyte)
		p.base[platform.Architecture] = layer
		if err := c.pushBlob(ctx, webRepo, layer); err != nil {
			return err
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.web(ctx) })
	group.Go(func() error { return p.api(ctx) })
	group.Go(func() error { return p.jobs(ctx) })
	return group.Wait()
}

// web pushes releases for two platforms, each with a signature and an SBOM. The newest one is
// also the tag latest.
func (p *pusher) web(ctx context.Context) error {
	platforms := []v1.Platform{amd64, arm64}
	libraries := make([]content, len(platforms))
	for minor := range webReleases {
		images := make([]image, len(platforms))
		for i, platform := range platforms {
			if minor%webGeneration == 0 {
				libraries[i] = newLayer("libraries", 2*mebibyte)
			}
			var err error
			if images[i], err = p.image(ctx, webRepo, platform, libraries[i]); err != nil {
				return err
			}
		}
		index, tags := newIndex(images), []string{fmt.Sprintf("v1.%d", minor)}
		if minor == webReleases-1 {
			tags = append(tags, "latest")
		}
		if err := p.pushManifest(ctx, webRepo, index, tags...); err != nil {
			return err
		}
		for _, attached := range []image{newSignature(webRepo, index), newSBOM("web-"+tags[0], index)} {
			if err := p.pushImage(ctx, webRepo, attached); err != nil {
				return err
			}
		}
	}
	return nil
}

// image makes an image with a base layer, the given layers and a layer of its own, and pushes
// it with the tags, or by its digest if there are none.
func (p *pusher) image(ctx context.Context, repository string, platform v1.Platform, layer content, tags ...string) (image, error) {
	i := newImage(platform, p.base[platform.Architecture], layer, newLayer("program", mebibyte))
	return i, p.pushImage(ctx, repository, i, tags...)
}

// api pushes images of pull requests, which share a layer, one of them with a signature of the
// old kind, and two other images.
func (p *pusher) api(ctx context.Context) error {
	tools := newLayer("tools", 4*mebibyte)
	for n := range pullRequests {
		i, err := p.image(ctx, apiRepo, amd64, tools, fmt.Sprintf("pr-%d", 101+n))
		if err != nil {
			return err
		}
		if n == 0 {
			if err := p.pushImage(ctx, apiRepo, newOldSignature(apiRepo, i.manifest), signatureTag(i.manifest)); err != nil {
				return err
			}
		}
	}
	return p.images(ctx, apiRepo, amd64, "v2.0", "main")
}

// jobs pushes two releases and nightly builds.
func (p *pusher) jobs(ctx context.Context) error {
	tags := []string{"v1.0", "v1.1"}
	for n := range nightlies {
		tags = append(tags, fmt.Sprintf("nightly-%02d", 1+n))
	}
	return p.images(ctx, jobsRepo, arm64, tags...)
}

// images pushes an image for each tag.
func (p *pusher) images(ctx context.Context, repository string, platform v1.Platform, tags ...string) error {
	for _, tag := range tags {
		if _, err := p.image(ctx, repository, platform, newLayer("libraries", mebibyte), tag); err != nil {
			return err
		}
	}
	return nil
}
