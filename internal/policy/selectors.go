package policy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/oci"
)

// maxSelectors is how many elements each list of a policy's selectors may have, and
// maxMediaType is the largest length of a pattern of media types.
const (
	maxSelectors = 32
	maxMediaType = 255
)

// Selectors choose the tags that a policy considers by other properties than their names.
// The zero value chooses all tags. The patterns of media types, artifact types and platforms are in
// lower case.
type Selectors struct {
	Repositories  []string          `json:"repositories,omitempty" maxItems:"32" check:"path" doc:"The policy applies only in repositories whose names match one of these patterns: * stands for any characters but a slash, ** for any. Not for policies of a repository" example:"[\"acme/web/**\"]" flag:"repositories" arg:"PATTERNS" usage:"only in repositories that match one of these PATTERNS, such as acme/web/**; for policies of namespaces and defaults" label:"Only in repositories" hint:"* is any text without a slash, ** any text. Commas between them." placeholder:"acme/web/**"`
	MediaTypes    []string          `json:"mediaTypes,omitempty" maxItems:"32" check:"mediaType" doc:"Only tags whose manifests have one of these media types; * stands for any characters" example:"[\"application/vnd.oci.image.*\"]" flag:"media-type" arg:"TYPES" usage:"only tags whose manifests have one of these media TYPES; * stands for any characters" label:"Media types" placeholder:"application/vnd.oci.image.*"`
	ArtifactTypes []string          `json:"artifactTypes,omitempty" maxItems:"32" check:"mediaType" doc:"Only tags whose manifests have one of these artifact types; * stands for any characters" example:"[\"application/vnd.cncf.helm.*\"]" flag:"artifact-type" arg:"TYPES" usage:"only tags whose manifests have one of these artifact TYPES; * stands for any characters" label:"Artifact types" placeholder:"application/vnd.cncf.helm.*"`
	LargerThan    Size              `json:"largerThan,omitzero" doc:"Only tags whose size is greater" example:"1GiB" flag:"larger-than" arg:"SIZE" usage:"only tags of more than this SIZE, such as 1GiB" label:"Larger than" placeholder:"1 GiB"`
	SmallerThan   Size              `json:"smallerThan,omitzero" doc:"Only tags whose size is less" example:"100MiB" flag:"smaller-than" arg:"SIZE" usage:"only tags of less than this SIZE, such as 100MB" label:"Smaller than" placeholder:"100 MiB"`
	Annotations   map[string]string `json:"annotations,omitempty" doc:"Only tags whose manifests have all of these annotations; in a value, * stands for any characters" example:"{\"org.opencontainers.image.ref.name\": \"nightly-*\"}" flag:"annotation,repeated" arg:"KEY=VALUE" usage:"only tags whose manifests have this annotation, as KEY=VALUE; * stands for any characters of the value; give it again for further annotations"`
	Labels        map[string]string `json:"labels,omitempty" doc:"Only tags whose images have all of these labels in their configuration; in a value, * stands for any characters" example:"{\"stage\": \"test\"}" flag:"label,repeated" arg:"KEY=VALUE" usage:"only tags whose images have this label, as KEY=VALUE; * stands for any characters of the value; give it again for further labels"`
	Platforms     []string          `json:"platforms,omitempty" maxItems:"32" check:"platform" doc:"Only tags whose images are all for these platforms: os/architecture or os/architecture/variant; * stands for any text in its part" example:"[\"linux/arm64\"]" flag:"platform" arg:"PLATFORMS" usage:"only tags whose images are all for these PLATFORMS, such as linux/arm64 or windows/*" label:"Platforms" placeholder:"linux/arm64"`
}

// String describes the selectors, such as: repositories acme/web/**, larger than 1GiB. It is
// "" for none.
func (s Selectors) String() string {
	var texts []string
	for _, list := range []struct {
		name     string
		elements []string
	}{{"repositories ", s.Repositories}, {"media types ", s.MediaTypes}, {"artifact types ", s.ArtifactTypes}} {
		if len(list.elements) > 0 {
			texts = append(texts, list.name+strings.Join(list.elements, " or "))
		}
	}
	if s.LargerThan > 0 {
		texts = append(texts, "larger than "+s.LargerThan.String())
	}
	if s.SmallerThan > 0 {
		texts = append(texts, "smaller than "+s.SmallerThan.String())
	}
	if len(s.Annotations) > 0 {
		texts = append(texts, "annotations "+mapText(s.Annotations))
	}
	if len(s.Labels) > 0 {
		texts = append(texts, "labels "+mapText(s.Labels))
	}
	if len(s.Platforms) > 0 {
		texts = append(texts, "platforms "+strings.Join(s.Platforms, " or "))
	}
	return strings.Join(texts, ", ")
}

// AppliesIn returns whether the policy applies in the repository with this path. A policy
// that can't be read applies in all of them.
func (s *Selectors) AppliesIn(path string) bool {
	return s.Repositories == nil ||
		slices.ContainsFunc(s.Repositories, func(pattern string) bool { return oci.MatchPath(pattern, path) })
}

// ReadsManifests returns whether the policy needs to know the media type, artifact type or
// size of a tag's manifest.
func (s *Selectors) ReadsManifests() bool {
	return s.MediaTypes != nil || s.ArtifactTypes != nil || s.LargerThan > 0 || s.SmallerThan > 0
}

// MatchManifest returns whether the selectors select a manifest of these types and this size, as far
// as they look at these.
func (s *Selectors) MatchManifest(mediaType, artifactType string, size int64) bool {
	matches := func(patterns []string, text string) bool {
		return patterns == nil || text != "" &&
			slices.ContainsFunc(patterns, func(pattern string) bool { return matchText(pattern, strings.ToLower(text)) })
	}
	return !s.ReadsManifests() || (s.LargerThan == 0 || Size(size) > s.LargerThan) && (s.SmallerThan == 0 || Size(size) < s.SmallerThan) &&
		matches(s.MediaTypes, mediaType) && matches(s.ArtifactTypes, artifactType)
}

// matchText returns whether the text matches the pattern, in which "*" stands for any
// characters, also for none.
func matchText(pattern, text string) bool {
	parts := strings.Split(pattern, "*")
	last := len(parts) - 1
	if last == 0 {
		return text == pattern
	}
	rest, ok := strings.CutPrefix(text, parts[0])
	if !ok {
		return false
	}
	for _, part := range parts[1:last] {
		if _, rest, ok = strings.Cut(rest, part); !ok {
			return false
		}
	}
	return strings.HasSuffix(rest, parts[last])
}

// check returns an error if the selectors select nothing, and writes patterns in lower case.
func (s *Selectors) check() error {
	for _, list := range [][]string{s.MediaTypes, s.ArtifactTypes, s.Platforms} {
		for i, pattern := range list {
			list[i] = strings.ToLower(pattern)
		}
	}
	if s.SmallerThan > 0 && s.LargerThan >= s.SmallerThan-1 {
		return fieldErrorf("smallerThan", "no size is larger than %s and smaller than %s", s.LargerThan, s.SmallerThan)
	}
	return nil
}

// mediaTypePattern has the characters of a media type (RFC 6838, section 4.2), and stars.
var mediaTypePattern = regexp.MustCompile(`^[A-Za-z0-9!#$&^_.+*/-]+$`)

// CheckMediaType returns an error unless the text is a pattern of media types.
func CheckMediaType(pattern string) error {
	switch {
	case pattern == "":
		return fmt.Errorf("it is empty")
	case len(pattern) > maxMediaType:
		return fmt.Errorf("it has more than %d characters", maxMediaType)
	case !mediaTypePattern.MatchString(pattern):
		return fmt.Errorf("%.40q has a character that media types don't have", pattern)
	}
	return nil
}
