package judge

import (
	"slices"

	"github.com/purser-registry/purser/internal/oci"
)

// attachedSuffixes are the endings of tags that are attached to an image: .sig, .att and
// .sbom are those of cosign for signatures, attestations and SBOMs. The empty ending stands
// for the referrers tag of the OCI Distribution Specification ("Unavailable Referrers
// API"), which lists the image's referrers.
var attachedSuffixes = []string{"", ".sig", ".att", ".sbom"}

// AttachedTo returns the digest of the image that a tag's name refers to, as in
// sha256-….sig: the algorithm, 64 hexadecimal digits, and nothing or one of .sig, .att and
// .sbom. ok is false for all other names. Of a sha512 the name has only the first half of
// the digits, because a tag with all 128 and a suffix would be longer than a tag may be;
// therefore the result is a prefix of a digest. A tag that points to the very manifest that
// it names isn't attached; AttachedTo can't see that (see [Tag]).
func AttachedTo(tag string) (image oci.DigestPrefix, ok bool) {
	image, suffix, ok := oci.CutDigest(tag)
	if !ok || !slices.Contains(attachedSuffixes, suffix) {
		return oci.DigestPrefix{}, false
	}
	return image, true
}
