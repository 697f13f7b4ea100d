package autoprune

import (
	"strings"

	"github.com/purser-registry/purser/internal/oci"
)

// companionSuffixes end the names that cosign gives to signatures, attestations
// and SBOMs. No suffix is the referrers tag of the OCI Distribution Specification
// ("Unavailable Referrers API"), which lists all that belongs to an image.
var companionSuffixes = []string{"", ".sig", ".att", ".sbom"}

// CompanionOf returns the digest of the image that a tag's name says it belongs to,
// as in sha256-….sig: "sha256-", the image's 64 hexadecimal digits, and nothing or
// one of .sig, .att and .sbom. ok is false for all other names. There is no such
// name for sha512: with a suffix it would be longer than a tag may be. A tag that
// points to the manifest it names isn't a companion (see [Tag]).
func CompanionOf(tag string) (image oci.Digest, ok bool) {
	const prefix, digits = "sha256-", 64
	if len(tag) < len(prefix)+digits || !strings.HasPrefix(tag, prefix) {
		return oci.Digest{}, false
	}
	suffix := tag[len(prefix)+digits:]
	for _, known := range companionSuffixes {
		if suffix != known {
			continue
		}
		image, err := oci.ParseDigest("sha256:" + tag[len(prefix):len(prefix)+digits])
		return image, err == nil
	}
	return oci.Digest{}, false
}
