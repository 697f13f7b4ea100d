package autoprune

import (
	"slices"

	"github.com/purser-registry/purser/internal/oci"
)

// attachedSuffixes are the endings of the names that cosign gives to signatures,
// attestations and SBOMs. The empty ending stands for the referrers tag of the OCI
// Distribution Specification ("Unavailable Referrers API"), which lists all that belongs to
// an image.
var attachedSuffixes = []string{"", ".sig", ".att", ".sbom"}

// AttachedTo returns the digest of the image that a tag's name says it belongs to, as in
// sha256-….sig: the algorithm, 64 hexadecimal digits, and nothing or one of .sig, .att
// and .sbom. ok is false for all other names. A referrers tag has half the digits of a
// sha512; with all of them and a suffix a name would be longer than a tag may be. A tag
// that points to the manifest it names isn't attached to anything (see [Tag]).
func AttachedTo(tag string) (image oci.DigestPrefix, ok bool) {
	image, suffix, ok := oci.CutDigest(tag)
	if !ok || !slices.Contains(attachedSuffixes, suffix) {
		return oci.DigestPrefix{}, false
	}
	return image, true
}
