package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Platform is the platform for which a manifest of an index is meant.
type Platform = v1.Platform

// Descriptor describes content by media type, digest and size (OCI Image Specification, "OCI
// Content Descriptors"). Its JSON is that of the specification.
type Descriptor struct {
	MediaType    string            `json:"mediaType"`
	Digest       Digest            `json:"digest"`
	Size         int64             `json:"size"` // bytes
	URLs         []string          `json:"urls,omitempty"`
	ArtifactType string            `json:"artifactType,omitempty"`
	Annotations  map[string]string `json:"annotations,omitempty"`
	Platform     *Platform         `json:"platform,omitempty"`
}

// Foreign returns whether the content is stored elsewhere, so that the registry needn't have
// it: the descriptor has URLs, or its media type is that of a layer that may not be
// redistributed.
func (d Descriptor) Foreign() bool {
	return len(d.URLs) > 0 || d.MediaType == MediaTypeDockerForeignLayer ||
		strings.HasPrefix(d.MediaType, nonDistributablePrefix)
}

// maxTextLength is the largest length of a media type, in bytes: two names of 127 and a slash
// (RFC 6838, section 4.2).
const maxTextLength = 255

var descriptorKeys = []string{
	"mediaType", "digest", "size", "urls", "artifactType", "annotations", "platform",
}

// readDescriptor parses the descriptor `raw`. Media type, digest and size are required. `path`
// names the descriptor's field of the manifest in errors.
func readDescriptor(path string, raw []byte) (Descriptor, error) {
	fields, err := readObject(raw, descriptorKeys)
	if err != nil {
		return Descriptor{}, invalid(path, "%w", err)
	}
	var d Descriptor
	if d.MediaType, err = readText(path+".mediaType", fields["mediaType"]); err != nil {
		return Descriptor{}, err
	}
	if d.MediaType == "" {
		return Descriptor{}, invalid(path+".mediaType", "it is required")
	}
	if d.Digest, err = readDigest(path+".digest", fields["digest"]); err != nil {
		return Descriptor{}, err
	}
	if d.Size, err = readSize(path+".size", fields["size"]); err != nil {
		return Descriptor{}, err
	}
	if d.ArtifactType, err = readText(path+".artifactType", fields["artifactType"]); err != nil {
		return Descriptor{}, err
	}
	if d.Annotations, err = readAnnotations(path+".annotations", fields["annotations"]); err != nil {
		return Descriptor{}, err
	}
	if err := readInto(path+".urls", fields["urls"], &d.URLs); err != nil {
		return Descriptor{}, err
	}
	if err := readInto(path+".platform", fields["platform"], &d.Platform); err != nil {
		return Descriptor{}, err
	}
	return d, nil
}

// readDescriptors parses a list of descriptors. If a digest occurs twice in it, both
// descriptors must have the same size.
func readDescriptors(path string, f field) ([]Descriptor, error) {
	if !f.present() {
		return nil, nil
	}
	elements, err := readArray(f.value, MaxDescriptors)
	if err != nil {
		return nil, invalid(path, "%w", err)
	}
	list := make([]Descriptor, 0, len(elements))
	first := make(map[Digest]int, len(elements))
	for i, raw := range elements {
		at := path + "[" + strconv.Itoa(i) + "]"
		d, err := readDescriptor(at, raw)
		if err != nil {
			return nil, err
		}
		if j, seen := first[d.Digest]; !seen {
			first[d.Digest] = i
		} else if list[j].Size != d.Size {
			return nil, invalid(at+".size", "it is %d but %s[%d] gives %d for the same digest", d.Size, path, j, list[j].Size)
		}
		list = append(list, d)
	}
	return list, nil
}

func readDigest(path string, f field) (Digest, error) {
	if !f.present() {
		return Digest{}, invalid(path, "it is required")
	}
	s, err := readString(f.value)
	if err != nil {
		return Digest{}, invalid(path, "%w", err)
	}
	d, err := ParseDigest(s)
	if err != nil {
		return Digest{}, invalid(path, "%w", err)
	}
	return d, nil
}

func readSize(path string, f field) (int64, error) {
	if !f.present() {
		return 0, invalid(path, "it is required")
	}
	size, err := strconv.ParseInt(string(f.value), 10, 64)
	if err != nil {
		return 0, invalid(path, "it must be a whole number of bytes, not %.40s", f.value)
	}
	if size < 0 {
		return 0, invalid(path, "it may not be negative, but is %d", size)
	}
	return size, nil
}

// readText parses an optional media type. It refuses control characters, which no media type
// has and of which PostgreSQL can't store NUL.
func readText(path string, f field) (string, error) {
	if !f.present() {
		return "", nil
	}
	s, err := readString(f.value)
	if err != nil {
		return "", invalid(path, "%w", err)
	}
	if len(s) > maxTextLength {
		return "", invalid(path, "it has %d bytes and at most %d are allowed", len(s), maxTextLength)
	}
	for i := 0; i < len(s); i++ {
		if s[i] < ' ' || s[i] == 0x7f {
			return "", invalid(path, "control characters aren't allowed, as in %q", s)
		}
	}
	return s, nil
}

// readAnnotations parses an optional map of strings. It refuses NUL characters, which
// PostgreSQL can't store in text or jsonb.
func readAnnotations(path string, f field) (map[string]string, error) {
	var annotations map[string]string
	if err := readInto(path, f, &annotations); err != nil {
		return nil, err
	}
	for key, value := range annotations {
		if strings.ContainsRune(key, 0) || strings.ContainsRune(value, 0) {
			return nil, invalid(path, "%.100q holds a NUL character", key)
		}
	}
	if len(annotations) == 0 {
		return nil, nil
	}
	return annotations, nil
}

// readInto decodes an optional field of the manifest with encoding/json. This is strict enough
// for fields on which no decision of the registry depends.
func readInto(path string, f field, target any) error {
	if !f.present() {
		return nil
	}
	if err := json.Unmarshal(f.value, target); err != nil {
		return invalid(path, "%w", typeError(err))
	}
	return nil
}

// typeError rewords an error of encoding/json so that it names JSON types and not Go types.
func typeError(err error) error {
	if mismatch, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("a JSON %s doesn't fit here", mismatch.Value)
	}
	return err
}

// AddSizes returns a + b, at most [math.MaxInt64]. Neither is negative.
func AddSizes(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
