package management

import (
	"context"
	"regexp"
	"slices"
	"time"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/oci"
)

const (
	// maxListedConfig is a size in bytes: a list reads only configurations that aren't larger.
	maxListedConfig = 64 << 10
	// configTime is how long one list reads configurations, one after the other.
	configTime = 300 * time.Millisecond
	// knownPlatforms is how many configurations' platforms stay in memory. A configuration never changes.
	knownPlatforms = 20_000
)

// platformForm matches the platforms that a list shows.
var platformForm = regexp.MustCompile(`^[A-Za-z0-9._-]{1,32}/[A-Za-z0-9._-]{1,32}(/[A-Za-z0-9._-]{1,32})?$`)

// imageConfigs are the artifact types of images, which have a platform in their configuration.
var imageConfigs = []string{"", "application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"}

// addPlatforms sets the platforms of images in a list of tags. They are in the images' configurations, which
// are read from the store unless somebody has read them before. The platforms of images whose
// configuration can't be read within configTime stay unknown.
func (a *API) addPlatforms(ctx context.Context, repository string, tags []api.ListedTag) error {
	var images []oci.Digest
	for _, t := range tags {
		if !t.IsManifestList && slices.Contains(imageConfigs, t.ArtifactType) && !slices.Contains(images, t.ManifestDigest) {
			images = append(images, t.ManifestDigest)
		}
	}
	if len(images) == 0 {
		return nil
	}
	configs, err := a.browser.Configurations(ctx, repository, images)
	if err != nil {
		return err
	}
	platforms := a.platformsOf(ctx, repository, configs)
	for i := range tags {
		if text := platforms[configs[tags[i].ManifestDigest].Digest]; text != "" {
			tags[i].Platforms = []string{text}
		}
	}
	return nil
}

// platformsOf returns the platforms that configurations name, by the configurations' digests.
func (a *API) platformsOf(ctx context.Context, repository string, configs map[oci.Digest]browse.Configuration) map[oci.Digest]string {
	found := make(map[oci.Digest]string, len(configs))
	ctx, cancel := context.WithTimeout(ctx, configTime)
	defer cancel()
	for _, c := range configs {
		text, known := a.platforms.Get(c.Digest)
		if c.Platform != "" {
			text, known = c.Platform, true
		}
		if !known && ctx.Err() == nil {
			var image builtImage
			if a.readConfig(ctx, repository, c.Digest, maxListedConfig, &image) == nil {
				if text = image.platform.String(); !platformForm.MatchString(text) { // whoever pushed it may have written anything
					text = ""
				}
				a.platforms.Set(c.Digest, text)
			}
		}
		found[c.Digest] = text
	}
	return found
}
