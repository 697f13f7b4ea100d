package registries

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
)

// manyManifest returns manifest number i of those that the workload manifests-2000 reads. All
// of them have the same configuration and layers; they differ in an annotation.
func (b *bench) manyManifest(i int) blob {
	shared := b.fixture.hot[0].blobs
	return newImage(shared[0], shared[1:], map[string]string{"bench.n": fmt.Sprint(i)}, manifestSize).manifest
}

func manyManifests(b *bench) []probe {
	var ps []probe
	for i := range b.many {
		ps = append(ps, manifestProbe(b.manyRepo(), fixtureTag(i), b.manyManifest(i)))
	}
	return ps
}

// prepareMany pushes the manifests that the workload manifests-2000 reads, if that workload is
// selected.
func (b *bench) prepareMany(ctx context.Context, t *target) error {
	if !b.runs(manyWorkload) {
		return nil
	}
	p := newPusher(t, b.options)
	defer p.close()
	if err := p.ensure(ctx, b.manyRepo(), b.fixture.hot[0].blobs...); err != nil {
		return err
	}
	return b.each(ctx, t, b.pushWorkers, b.many, func(ctx context.Context, p *pusher, i int) error {
		return p.manifest(ctx, b.manyRepo(), fixtureTag(i), b.manyManifest(i))
	})
}

// pulledImages returns the images that the workload pull-images pulls: b.hot images, each with
// a configuration and three layers of smallSize bytes. Their content is the same in every run.
func (b *bench) pulledImages() []image {
	r := rand.NewChaCha8([32]byte([]byte("bench: the images that are whole")))
	var images []image
	for i := range b.hot {
		var layers []blob
		for range 3 {
			layers = append(layers, newBlob(randomBytes(r, smallSize)))
		}
		images = append(images, newImage(config("pulled "+fixtureTag(i)), layers, nil, 0))
	}
	return images
}

// preparePulls pushes the images that the workload pull-images pulls, if that workload is
// selected.
func (b *bench) preparePulls(ctx context.Context, t *target) error {
	if !b.runs(pullsWorkload) {
		return nil
	}
	images := b.pulledImages()
	return b.each(ctx, t, b.pushWorkers, len(images), func(ctx context.Context, p *pusher, i int) error {
		if err := p.ensure(ctx, b.pullRepo(), images[i].blobs...); err != nil {
			return err
		}
		return p.manifest(ctx, b.pullRepo(), fixtureTag(i), images[i].manifest)
	})
}

// openPulls prepares the workload pull-images, whose operation pulls a whole image over one
// connection: its manifest by tag, then its configuration and layers. Before the measurement,
// openPulls pulls each image once and compares all content with its digest.
func openPulls(ctx context.Context, b *bench, t *target) (*session, error) {
	images := b.pulledImages()
	parts := make([][]probe, len(images))
	for i, img := range images {
		parts[i] = append(parts[i], manifestProbe(b.pullRepo(), fixtureTag(i), img.manifest))
		for _, part := range img.blobs {
			parts[i] = append(parts[i], blobProbe(b.pullRepo(), part))
		}
	}
	return openGroups(ctx, b.options, t, http.MethodGet, parts)
}
