package oci

import (
	"strings"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// The manifest media types that are accepted.
const (
	MediaTypeImageManifest      = v1.MediaTypeImageManifest
	MediaTypeImageIndex         = v1.MediaTypeImageIndex
	MediaTypeDockerManifest     = "application/vnd.docker.distribution.manifest.v2+json"
	MediaTypeDockerManifestList = "application/vnd.docker.distribution.manifest.list.v2+json"
)

// These are the media types of Docker's first manifest schema, which the registry refuses:
// such a manifest identifies its layers by position and contains its own signature, and
// current clients don't produce it any more.
const (
	MediaTypeDockerSchema1       = "application/vnd.docker.distribution.manifest.v1+json"
	MediaTypeDockerSchema1Signed = "application/vnd.docker.distribution.manifest.v1+prettyjws"
)

// MediaTypeArtifactManifest is the type of a manifest with blobs and without a configuration.
// It was in release candidates of version 1.1 of the specification, and isn't in the final
// version.
const MediaTypeArtifactManifest = "application/vnd.oci.artifact.manifest.v1+json"

// These are other media types that a registry must know.
const (
	// MediaTypeEmpty is the type of the content "{}", which OCI's empty descriptor describes.
	// It is used where a descriptor is required and there is no content.
	MediaTypeEmpty = v1.MediaTypeEmptyJSON
	// MediaTypeDockerForeignLayer is Docker's type for a layer that is stored
	// elsewhere.
	MediaTypeDockerForeignLayer = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"
	// MediaTypeOctetStream is the type of a blob of unknown content.
	MediaTypeOctetStream = "application/octet-stream"

	nonDistributablePrefix = "application/vnd.oci.image.layer.nondistributable."
)

// Kind distinguishes images from indexes.
type Kind uint8

// KindImage is an image, with a configuration and layers; KindIndex is a list of manifests.
const (
	KindImage Kind = iota + 1
	KindIndex
)

// String returns "image" or "index".
func (k Kind) String() string {
	switch k {
	case KindImage:
		return "image"
	case KindIndex:
		return "index"
	}
	return "unknown"
}

// ManifestTypes returns the four media types of manifests that the registry accepts, in the
// order in which a client should prefer them in an Accept header.
func ManifestTypes() []string {
	return []string{MediaTypeImageManifest, MediaTypeImageIndex, MediaTypeDockerManifest, MediaTypeDockerManifestList}
}

// KindOf returns the kind of manifest for a media type; false if the registry doesn't accept
// the type for manifests.
func KindOf(mediaType string) (Kind, bool) {
	switch mediaType {
	case MediaTypeImageManifest, MediaTypeDockerManifest:
		return KindImage, true
	case MediaTypeImageIndex, MediaTypeDockerManifestList:
		return KindIndex, true
	}
	return 0, false
}

// IsManifest returns whether the descriptor's media type is an accepted manifest type. An
// index may also list blobs: for example, BuildKit exports a cache as an index of layers and
// the cache's configuration (application/vnd.buildkit.cacheconfig.v0).
func (d Descriptor) IsManifest() bool {
	_, ok := KindOf(d.MediaType)
	return ok
}

// trimParameters returns a Content-Type without its parameters, which registries must ignore
// ("Pushing Manifests"). The result is in lower case, since media types are compared without
// regard to case (RFC 9110, section 8.3.1).
func trimParameters(contentType string) string {
	base, _, _ := strings.Cut(contentType, ";")
	return strings.ToLower(strings.TrimSpace(base))
}
