package judge

import (
	"slices"
	"strings"
	"unique"

	"github.com/purser-registry/purser/internal/policy"
)

// platformSeparator separates the platforms in Tag.Platforms.
const platformSeparator = "\x00"

// PlatformsOf returns the platforms of images in the form of Tag.Platforms.
func PlatformsOf(images []policy.ImageAttributes) string {
	var platforms []string
	for _, image := range images {
		switch {
		case !image.PlatformKnown || image.Platform == "" || strings.Contains(image.Platform, platformSeparator):
			return ""
		case image.Platform != policy.UnknownPlatform:
			platforms = append(platforms, image.Platform)
		}
	}
	slices.Sort(platforms)
	return unique.Make(strings.Join(slices.Compact(platforms), platformSeparator)).Value()
}
