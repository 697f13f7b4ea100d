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
	// MaxManifestSize is the largest size of a manifest, in bytes. It is the size that the
	// specification expects registries to accept ("Pushing Manifests"), and limits the memory
	// that one request uses.
	MaxManifestSize = 4 << 20
	// MaxDescriptors is the largest number of layers in an image and of manifests in an index.
	// It limits how many rows one push can write to the database.
	MaxDescriptors = 10_000
)

// Manifest has the contents of a manifest that a registry needs. It has been checked: its
// digests are supported, its sizes aren't negative, and it is either an image or an index.
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

// manifestKeys are the top-level keys of a manifest that the registry reads.
var manifestKeys = []string{
	"schemaVersion", "mediaType", "artifactType", "config", "layers",
	"manifests", "subject", "annotations", "fsLayers",
}

// ParseManifest parses and checks a manifest that a client sent with contentType; it ignores
// that type's parameters. If contentType is empty, the manifest's field mediaType determines
// the type, and without that field its other fields do. ParseManifest refuses ambiguous
// content: a content type that differs from mediaType, manifests together with config or
// layers (CVE-2021-41190), and keys that occur twice or with different case. It ignores fields
// that the OCI Image Specification doesn't define.
//
// The error of ParseManifest is an [*Error] with code MANIFEST_INVALID, whose message begins
// with the path of the wrong field, such as "layers[2].digest: …". Its status is 413 if `body`
// has more than [MaxManifestSize] bytes, else 400. The Manifest doesn't share memory with
// `body`, so the caller may reuse `body`.
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

// invalid returns a MANIFEST_INVALID error about the manifest's field `path`, or about the
// whole manifest if `path` is empty.
func invalid(path, format string, args ...any) *Error {
	path = cmp.Or(path, "manifest")
	return Errorf(ManifestInvalid, path+": "+format, args...)
}

// syntaxError returns the error that says where the JSON of `body` is wrong; json.Valid has
// refused `body`.
func syntaxError(body []byte) error {
	var v json.RawMessage
	if err := json.Unmarshal(body, &v); err != nil {
		return err
	}
	return fmt.Errorf("there is no JSON value")
}

// readSchema returns an error if the media type isn't supported or the schema version isn't 2.
// For types that once were common, the error says what to push instead. readSchema checks the
// media type first, since manifests of other types may have no schema version.
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

// readKind sets the manifest's media type and kind from the content type, the field mediaType
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

// readConfig parses an image's configuration, which is required. Artifacts without a
// configuration have OCI's empty descriptor there.
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

// readLists parses the layers of an image or the manifests of an index. null counts as an
// empty list, since some encoders write it. An index must have the field manifests, since
// otherwise every JSON object would be an index.
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

// readCommon parses the fields that images and indexes both have.
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

// DistinctLayers returns the layers in their order, each digest once. If a digest is listed
// both as a foreign and as an ordinary layer, it returns the ordinary one, since then the
// registry must have the blob.
func (m *Manifest) DistinctLayers() []Descriptor { return distinct(m.Layers) }

// DistinctManifests returns the manifests of an index in their order, each digest once.
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
