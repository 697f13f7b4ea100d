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

// The media types of Docker's first manifest schema, which are refused: such a manifest
// identifies its layers by position and contains its own signature, and current clients
// no longer produce it.
const (
	MediaTypeDockerSchema1       = "application/vnd.docker.distribution.manifest.v1+json"
	MediaTypeDockerSchema1Signed = "application/vnd.docker.distribution.manifest.v1+prettyjws"
)

// MediaTypeArtifactManifest is a manifest of blobs without a configuration. Release
// candidates of version 1.1 of the specification had it; the final version doesn't.
const MediaTypeArtifactManifest = "application/vnd.oci.artifact.manifest.v1+json"

// Other media types that matter to a registry.
const (
	// MediaTypeEmpty is the type of the two bytes "{}", which stand for an empty
	// descriptor's content where a descriptor is required.
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

// KindImage has a configuration and layers; KindIndex has a list of manifests.
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

// ManifestTypes returns the four manifest media types that are accepted, in order of
// preference for an Accept header.
func ManifestTypes() []string {
	return []string{MediaTypeImageManifest, MediaTypeImageIndex, MediaTypeDockerManifest, MediaTypeDockerManifestList}
}

// KindOf returns the kind of a manifest media type, and false if the type isn't
// accepted.
func KindOf(mediaType string) (Kind, bool) {
	switch mediaType {
	case MediaTypeImageManifest, MediaTypeDockerManifest:
		return KindImage, true
	case MediaTypeImageIndex, MediaTypeDockerManifestList:
		return KindIndex, true
	}
	return 0, false
}

// IsManifest says whether the descriptor's type is an accepted manifest type. Other
// entries of an index are blobs: for example, BuildKit exports a cache as an index that
// lists layers and the cache's configuration (application/vnd.buildkit.cacheconfig.v0).
func (d Descriptor) IsManifest() bool {
	_, ok := KindOf(d.MediaType)
	return ok
}

// trimParameters returns a Content-Type without its parameters, which registries must
// ignore ("Pushing Manifests"), and in lower case, since types are compared
// case-insensitively (RFC 9110, section 8.3.1).
func trimParameters(contentType string) string {
	base, _, _ := strings.Cut(contentType, ";")
	return strings.ToLower(strings.TrimSpace(base))
}
