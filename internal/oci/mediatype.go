package oci

import (
	"strings"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// The manifest media types that Purser accepts.
const (
	MediaTypeImageManifest      = v1.MediaTypeImageManifest
	MediaTypeImageIndex         = v1.MediaTypeImageIndex
	MediaTypeDockerManifest     = "application/vnd.docker.distribution.manifest.v2+json"
	MediaTypeDockerManifestList = "application/vnd.docker.distribution.manifest.list.v2+json"
)

// The media types of Docker's first manifest schema, which are refused: such a
// manifest names its layers by position and is signed in place, and current
// clients no longer make it.
const (
	MediaTypeDockerSchema1       = "application/vnd.docker.distribution.manifest.v1+json"
	MediaTypeDockerSchema1Signed = "application/vnd.docker.distribution.manifest.v1+prettyjws"
)

// MediaTypeArtifactManifest is a manifest of blobs without a configuration, which the
// specification had in release candidates of version 1.1 and withdrew.
const MediaTypeArtifactManifest = "application/vnd.oci.artifact.manifest.v1+json"

// Other media types with a meaning to a registry.
const (
	// MediaTypeEmpty is the type of the two bytes "{}" that stand where a
	// descriptor is required and there is nothing to describe.
	MediaTypeEmpty = v1.MediaTypeEmptyJSON
	// MediaTypeDockerForeignLayer is Docker's layer that is kept elsewhere.
	MediaTypeDockerForeignLayer = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"
	// MediaTypeOctetStream is the type of a blob of which nothing is known.
	MediaTypeOctetStream = "application/octet-stream"

	nonDistributablePrefix = "application/vnd.oci.image.layer.nondistributable."
)

// Kind tells the two shapes of manifest apart.
type Kind uint8

// KindImage has a configuration and layers, KindIndex a list of manifests.
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

// ManifestTypes returns the four manifest media types that are accepted, in the
// order in which an Accept header would prefer them.
func ManifestTypes() []string {
	return []string{MediaTypeImageManifest, MediaTypeImageIndex, MediaTypeDockerManifest, MediaTypeDockerManifestList}
}

// KindOf returns the kind of a manifest media type, and false when it is none
// that is accepted.
func KindOf(mediaType string) (Kind, bool) {
	switch mediaType {
	case MediaTypeImageManifest, MediaTypeDockerManifest:
		return KindImage, true
	case MediaTypeImageIndex, MediaTypeDockerManifestList:
		return KindIndex, true
	}
	return 0, false
}

// IsManifest tells whether the descriptor's type is that of a manifest that is accepted.
// The other entries of an index are blobs: the index in which BuildKit exports a cache
// lists layers, and the cache's configuration (application/vnd.buildkit.cacheconfig.v0).
func (d Descriptor) IsManifest() bool {
	_, ok := KindOf(d.MediaType)
	return ok
}

// trimParameters returns a Content-Type without its parameters, which the
// specification has a registry ignore ("Pushing Manifests"), in lower case as
// types are compared without regard to case (RFC 9110, section 8.3.1).
func trimParameters(contentType string) string {
	base, _, _ := strings.Cut(contentType, ";")
	return strings.ToLower(strings.TrimSpace(base))
}
