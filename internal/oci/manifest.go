package oci

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"
)

const (
	// MaxManifestSize limits a manifest, in bytes. It is the size that the
	// specification expects registries to accept ("Pushing Manifests"), and bounds the
	// memory that one request uses.
	MaxManifestSize = 4 << 20
	// MaxDescriptors limits the layers of an image, and the manifests of an index. It
	// bounds the rows that one push may write.
	MaxDescriptors = 10_000
)

// Manifest has the data of a manifest that a registry needs. It is valid: its digests
// are supported, its sizes aren't negative, and it is either an image or an index.
type Manifest struct {
	MediaType string // one of [ManifestTypes]
	Kind      Kind
	// ArtifactType is the manifest's own artifactType, else the configuration's
	// media type for an image and "" for an index (OCI Distribution
	// Specification, "Listing Referrers").
	ArtifactType string
	Config       *Descriptor       // images only
	Layers       []Descriptor      // of an image, in order; may contain a digest twice
	Manifests    []Descriptor      // of an index, in order; may contain a digest twice
	Subject      *Descriptor       // nil if there is none
	Annotations  map[string]string // nil if there are none
}

// manifestKeys are the top-level keys that determine what a manifest is.
var manifestKeys = []string{
	"schemaVersion", "mediaType", "artifactType", "config", "layers",
	"manifests", "subject", "annotations", "fsLayers",
}

// ParseManifest parses and checks a manifest that was sent with contentType, whose
// parameters are ignored. If contentType is empty, the manifest's mediaType determines
// the type, and without that its fields do. Ambiguous content is refused: a content
// type that differs from the mediaType, manifests beside config or layers
// (CVE-2021-41190), and keys that occur twice or with different case. Members that the
// OCI Image Specification doesn't define are ignored.
//
// The error is an [*Error] with code MANIFEST_INVALID whose message begins with the
// offending field, "layers[2].digest: …". Its status is 413 if body has more than
// [MaxManifestSize] bytes, else 400. The result doesn't refer to body, so that body can
// be reused.
func ParseManifest(contentType string, body []byte) (*Manifest, error) {
	if len(body) > MaxManifestSize {
		return nil, Errorf(ManifestInvalid, "the manifest has more than %d bytes", MaxManifestSize).
			WithStatus(http.StatusRequestEntityTooLarge)
	}
	if !utf8.Valid(body) {
		return nil, invalid("", "it isn't UTF-8")
	}
	if !json.Valid(body) {
		return nil, invalid("", "it isn't JSON: %w", syntaxError(body))
	}
	fields, err := readObject(bytes.TrimSpace(body), manifestKeys)
	if err != nil {
		return nil, invalid("", "%w", err)
	}
	m := &Manifest{}
	for _, step := range []func(string, map[string]field) error{
		m.readSchema, m.readKind, m.readConfig, m.readLists, m.readCommon,
	} {
		if err := step(contentType, fields); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// invalid returns a MANIFEST_INVALID error about the field at path, or about the whole
// manifest if path is empty.
func invalid(path, format string, args ...any) *Error {
	path = cmp.Or(path, "manifest")
	return Errorf(ManifestInvalid, path+": "+format, args...)
}

// syntaxError says where text is invalid that json.Valid refused.
func syntaxError(body []byte) error {
	var v json.RawMessage
	if err := json.Unmarshal(body, &v); err != nil {
		return err
	}
	return fmt.Errorf("there is no JSON value")
}

// readSchema refuses media types that aren't supported, with specific messages for
// types that once were common, and schema versions other than 2. It checks the media
// type first, since manifests of other types may have no schema version.
func (m *Manifest) readSchema(contentType string, fields map[string]field) error {
	const schema1 = "Docker schema 1 manifests aren't supported: push the image with a current client, which sends schema 2 or OCI"
	sent := trimParameters(contentType)
	if sent == "" { // readKind reports a mediaType that can't be read
		sent, _ = readText("mediaType", fields["mediaType"])
	}
	switch sent {
	case MediaTypeDockerSchema1, MediaTypeDockerSchema1Signed:
		return invalid("mediaType", schema1)
	case MediaTypeArtifactManifest:
		return invalid("mediaType", "%s isn't supported: the specification withdrew it. Push an image manifest with an artifactType instead, as current clients do", sent)
	}
	if _, known := KindOf(sent); sent != "" && !known {
		return unsupportedType(sent)
	}
	version := string(fields["schemaVersion"].value)
	if version == "1" || fields["fsLayers"].present() {
		return invalid("schemaVersion", schema1)
	}
	if version == "" {
		return invalid("schemaVersion", "it is required and must be 2")
	}
	if version != "2" {
		return invalid("schemaVersion", "it must be 2, not %.40s", version)
	}
	return nil
}

func unsupportedType(mediaType string) error {
	return invalid("mediaType", "%.200q isn't supported: it must be one of %s", mediaType, strings.Join(ManifestTypes(), ", "))
}

// readKind determines media type and kind from the content type, the mediaType field
// and the other fields.
func (m *Manifest) readKind(contentType string, fields map[string]field) error {
	declared, err := readText("mediaType", fields["mediaType"])
	if err != nil {
		return err
	}
	sent := trimParameters(contentType)
	if sent != "" && declared != "" && sent != declared {
		return invalid("mediaType", "it is %q but the Content-Type is %q: they must be the same", declared, sent)
	}
	image := fields["config"].present() || fields["layers"].present()
	index := fields["manifests"].present()
	if image && index {
		return invalid("manifests", "a manifest has either manifests or config and layers, never both")
	}
	switch {
	case sent != "":
		m.MediaType = sent
	case declared != "":
		m.MediaType = declared
	case index:
		m.MediaType = MediaTypeImageIndex
	default:
		m.MediaType = MediaTypeImageManifest
	}
	kind, ok := KindOf(m.MediaType)
	if !ok {
		return unsupportedType(m.MediaType)
	}
	m.Kind = kind
	if kind == KindImage && index {
		return invalid("manifests", "%s has config and layers, not manifests", m.MediaType)
	}
	if kind == KindIndex && image {
		return invalid("manifests", "%s has manifests, not config and layers", m.MediaType)
	}
	return nil
}

// readConfig reads an image's configuration, which is required. Artifacts without a
// configuration use OCI's empty descriptor.
func (m *Manifest) readConfig(_ string, fields map[string]field) error {
	if m.Kind != KindImage {
		return nil
	}
	if !fields["config"].present() {
		return invalid("config", "it is required in an image manifest")
	}
	config, err := readDescriptor("config", fields["config"].value)
	if err != nil {
		return err
	}
	m.Config = &config
	return nil
}

// readLists reads layers or manifests. null counts as an empty list, since some
// encoders write it. An index must have the field manifests, since otherwise any object
// would be an index.
func (m *Manifest) readLists(_ string, fields map[string]field) error {
	var err error
	if m.Kind == KindImage {
		m.Layers, err = readDescriptors("layers", fields["layers"])
		return err
	}
	if fields["manifests"].value == nil {
		return invalid("manifests", "it is required in an index")
	}
	m.Manifests, err = readDescriptors("manifests", fields["manifests"])
	return err
}

// readCommon reads the members that both kinds have.
func (m *Manifest) readCommon(_ string, fields map[string]field) error {
	var err error
	if m.ArtifactType, err = readText("artifactType", fields["artifactType"]); err != nil {
		return err
	}
	if m.ArtifactType == "" && m.Config != nil {
		m.ArtifactType = m.Config.MediaType
	}
	if fields["subject"].present() {
		subject, err := readDescriptor("subject", fields["subject"].value)
		if err != nil {
			return err
		}
		m.Subject = &subject
	}
	m.Annotations, err = readAnnotations("annotations", fields["annotations"])
	return err
}

// DistinctLayers returns the layers without repeated digests, in order of first
// occurrence. If a digest is listed both as a foreign and as an ordinary layer, the
// ordinary one is returned, because then the blob must exist.
func (m *Manifest) DistinctLayers() []Descriptor { return distinct(m.Layers) }

// DistinctManifests returns an index's manifests without repeated digests, in order of
// first occurrence.
func (m *Manifest) DistinctManifests() []Descriptor { return distinct(m.Manifests) }

func distinct(list []Descriptor) []Descriptor {
	at := make(map[Digest]int, len(list))
	out := make([]Descriptor, 0, len(list))
	for _, d := range list {
		i, seen := at[d.Digest]
		switch {
		case !seen:
			at[d.Digest] = len(out)
			out = append(out, d)
		case out[i].Foreign() && !d.Foreign():
			out[i] = d
		}
	}
	return out
}
