package autoprune

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/purser-registry/purser/internal/oci"
)

// The JSON fields of a policy's selectors.
const (
	fieldRepositories  = "repositories"
	fieldMediaTypes    = "mediaTypes"
	fieldArtifactTypes = "artifactTypes"
	fieldLarger        = "largerThan"
	fieldSmaller       = "smallerThan"
)

// maxSelectors is how many elements each list of a policy's selectors may have, and
// maxMediaType is the largest length of a pattern of media types.
const (
	maxSelectors = 32
	maxMediaType = 255
)

// selectors choose the tags that a policy considers by other properties than their names.
// The zero value chooses all tags.
type selectors struct {
	repositories              []string          // patterns, see oci.CheckPathPattern; nil: all
	mediaTypes, artifactTypes []string          // patterns in lower case, see matchText; nil: all
	larger, smaller           int64             // bytes; 0: no limit
	annotations, labels       map[string]string // patterns of values, see matchText; nil: all
	platforms                 []string          // patterns, see CheckPlatform; nil: all
}

// SelectorForm are the selectors of a policy in its JSON.
type SelectorForm struct {
	Repositories  []string          `json:"repositories,omitempty" maxItems:"32" doc:"The policy applies only in repositories whose names match one of these patterns: * stands for any characters but a slash, ** for any. Not for policies of a repository" example:"[\"acme/web/**\"]"`
	MediaTypes    []string          `json:"mediaTypes,omitempty" maxItems:"32" doc:"Only tags whose manifests have one of these media types; * stands for any characters" example:"[\"application/vnd.oci.image.*\"]"`
	ArtifactTypes []string          `json:"artifactTypes,omitempty" maxItems:"32" doc:"Only tags whose manifests have one of these artifact types; * stands for any characters" example:"[\"application/vnd.cncf.helm.*\"]"`
	LargerThan    string            `json:"largerThan,omitempty" doc:"Only tags whose size is greater" example:"1GiB"`
	SmallerThan   string            `json:"smallerThan,omitempty" doc:"Only tags whose size is less" example:"100MiB"`
	Annotations   map[string]string `json:"annotations,omitempty" doc:"Only tags whose manifests have all of these annotations; in a value, * stands for any characters" example:"{\"org.opencontainers.image.ref.name\": \"nightly-*\"}"`
	Labels        map[string]string `json:"labels,omitempty" doc:"Only tags whose images have all of these labels in their configuration; in a value, * stands for any characters" example:"{\"stage\": \"test\"}"`
	Platforms     []string          `json:"platforms,omitempty" maxItems:"32" doc:"Only tags whose images are all for these platforms: os/architecture or os/architecture/variant; * stands for any text in its part" example:"[\"linux/arm64\"]"`
}

// Selectors returns the policy's selectors in the form of its JSON.
func (p Policy) Selectors() SelectorForm {
	return SelectorForm{
		Repositories: p.where.repositories, MediaTypes: p.where.mediaTypes, ArtifactTypes: p.where.artifactTypes,
		LargerThan: formatSize(p.where.larger), SmallerThan: formatSize(p.where.smaller),
		Annotations: p.where.annotations, Labels: p.where.labels, Platforms: p.where.platforms,
	}
}

// String describes the selectors, such as: repositories acme/web/**, larger than 1GiB. It is
// "" for none.
func (f SelectorForm) String() string {
	var texts []string
	for _, list := range []struct {
		name     string
		elements []string
	}{{"repositories ", f.Repositories}, {"media types ", f.MediaTypes}, {"artifact types ", f.ArtifactTypes}} {
		if len(list.elements) > 0 {
			texts = append(texts, list.name+strings.Join(list.elements, " or "))
		}
	}
	if f.LargerThan != "" {
		texts = append(texts, "larger than "+f.LargerThan)
	}
	if f.SmallerThan != "" {
		texts = append(texts, "smaller than "+f.SmallerThan)
	}
	if len(f.Annotations) > 0 {
		texts = append(texts, "annotations "+mapText(f.Annotations))
	}
	if len(f.Labels) > 0 {
		texts = append(texts, "labels "+mapText(f.Labels))
	}
	if len(f.Platforms) > 0 {
		texts = append(texts, "platforms "+strings.Join(f.Platforms, " or "))
	}
	return strings.Join(texts, ", ")
}

func (s selectors) equal(other selectors) bool {
	return slices.Equal(s.repositories, other.repositories) && slices.Equal(s.mediaTypes, other.mediaTypes) &&
		slices.Equal(s.artifactTypes, other.artifactTypes) && s.larger == other.larger && s.smaller == other.smaller &&
		maps.Equal(s.annotations, other.annotations) && maps.Equal(s.labels, other.labels) && slices.Equal(s.platforms, other.platforms)
}

// appliesIn returns whether the policy applies in the repository with this path. A policy
// that can't be read applies in all of them.
func (p *Policy) appliesIn(path string) bool {
	return p.where.repositories == nil ||
		slices.ContainsFunc(p.where.repositories, func(pattern string) bool { return oci.MatchPath(pattern, path) })
}

// readsManifests returns whether the policy needs to know the media type, artifact type or
// size of a tag's manifest.
func (p *Policy) readsManifests() bool {
	return p.where.mediaTypes != nil || p.where.artifactTypes != nil || p.where.larger > 0 || p.where.smaller > 0
}

// considers returns whether the policy's pattern and selectors select the tag. `place` is the
// policy's index in Rules.Policies. considers doesn't check whether the tag is attached to an
// image.
func (p *Policy) considers(place int, t *Tag) bool {
	return (!p.readsAttributes() || t.Matched.Has(place)) && p.considersManifest(place, t)
}

// doubts returns whether the policy's pattern and selectors might select the tag, but not all
// that they look at is known.
func (p *Policy) doubts(place int, t *Tag) bool {
	return p.readsAttributes() && !t.Matched.Has(place) && !t.Unmatched.Has(place) && p.considersManifest(place, t)
}

// considersManifest returns whether the policy's pattern, and those of its selectors that
// don't look at attributes, select the tag.
func (p *Policy) considersManifest(place int, t *Tag) bool {
	if t.named {
		return t.names.Has(place) && p.selectsManifest(t)
	}
	return p.Considers(t.Name) && p.selectsManifest(t)
}

// selectsManifest is like considersManifest, without the pattern.
func (p *Policy) selectsManifest(t *Tag) bool {
	matches := func(patterns []string, text string) bool {
		return patterns == nil || text != "" &&
			slices.ContainsFunc(patterns, func(pattern string) bool { return matchText(pattern, strings.ToLower(text)) })
	}
	return !p.readsManifests() || (p.where.larger == 0 || t.Size > p.where.larger) && (p.where.smaller == 0 || t.Size < p.where.smaller) &&
		matches(p.where.mediaTypes, t.MediaType) && matches(p.where.artifactTypes, t.ArtifactType)
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

func readSelectors(fields map[string]json.RawMessage) (s selectors, err error) {
	if s.repositories, err = readList(fieldRepositories, fields, oci.CheckPathPattern); err != nil {
		return s, err
	}
	for _, list := range []struct {
		name string
		p    *[]string
	}{{fieldMediaTypes, &s.mediaTypes}, {fieldArtifactTypes, &s.artifactTypes}} {
		if *list.p, err = readList(list.name, fields, CheckMediaType); err != nil {
			return s, err
		}
		for i, pattern := range *list.p {
			(*list.p)[i] = strings.ToLower(pattern)
		}
	}
	if s.larger, err = readSize(fieldLarger, fields[fieldLarger]); err != nil {
		return s, err
	}
	if s.smaller, err = readSize(fieldSmaller, fields[fieldSmaller]); err != nil {
		return s, err
	}
	if s.smaller > 0 && s.larger >= s.smaller-1 {
		return s, fieldErrorf(fieldSmaller, "no size is larger than %s and smaller than %s", formatSize(s.larger), formatSize(s.smaller))
	}
	return s, readAttributes(fields, &s)
}

// readList reads a field whose value is an array of texts. Left out or null, it is nil.
func readList(name string, fields map[string]json.RawMessage, check func(string) error) ([]string, error) {
	raw := fields[name]
	if raw == nil || string(raw) == "null" {
		return nil, nil
	}
	if raw[0] != '[' {
		return nil, fieldErrorf(name, "it must be an array of strings, not %s", typeName(raw))
	}
	var elements []json.RawMessage
	if err := json.Unmarshal(raw, &elements); err != nil {
		return nil, malformed(err)
	}
	switch {
	case len(elements) == 0:
		return nil, fieldErrorf(name, "it is empty, which selects nothing; leave it out to select everything")
	case len(elements) > maxSelectors:
		return nil, fieldErrorf(name, "it has %d elements and at most %d are allowed", len(elements), maxSelectors)
	}
	list := make([]string, len(elements))
	for i, element := range elements {
		place := fmt.Sprintf("%s[%d]", name, i)
		text, err := readText(place, element)
		if err != nil {
			return nil, err
		}
		if err := check(text); err != nil {
			return nil, fieldErrorf(place, "%v", err)
		}
		list[i] = text
	}
	return list, nil
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

// sizeUnits are the units of sizes. formatSize uses the first that divides a size.
var sizeUnits = []struct {
	name  string
	bytes int64
}{
	{"TiB", 1 << 40}, {"TB", 1e12}, {"GiB", 1 << 30}, {"GB", 1e9}, {"MiB", 1 << 20}, {"MB", 1e6}, {"KiB", 1 << 10}, {"kB", 1e3}, {"", 1},
}

// ParseSize returns the number of bytes that a text stands for: a whole number, above 0, of
// bytes, or of a unit that follows it: kB, MB, GB and TB are powers of 1,000; KiB, MiB, GiB
// and TiB are powers of 1,024.
func ParseSize(text string) (int64, error) {
	digits := len(text) - len(strings.TrimLeft(text, "0123456789"))
	n, err := strconv.ParseInt(text[:digits], 10, 64)
	for _, unit := range sizeUnits {
		switch {
		case text[digits:] != unit.name:
		case err != nil || n > math.MaxInt64/unit.bytes:
			return 0, fmt.Errorf("%.40q isn't a number of bytes up to 8388607TiB", text)
		case n == 0:
			return 0, fmt.Errorf("%.40q is zero", text)
		default:
			return n * unit.bytes, nil
		}
	}
	return 0, fmt.Errorf("%.40q is no size; write a whole number and a unit, such as 64MiB or 1GB", text)
}

func readSize(name string, raw json.RawMessage) (int64, error) {
	if raw == nil || string(raw) == "null" {
		return 0, nil
	}
	text, err := readText(name, raw)
	if err != nil {
		return 0, err
	}
	return readSizeText(name, text)
}

func readSizeText(name, text string) (int64, error) {
	n, err := ParseSize(text)
	if err != nil {
		return 0, fieldErrorf(name, "%v", err)
	}
	return n, nil
}

// formatSize writes a size as ParseSize reads it; "" for 0.
func formatSize(n int64) string {
	for _, unit := range sizeUnits {
		if n > 0 && n%unit.bytes == 0 {
			return strconv.FormatInt(n/unit.bytes, 10) + unit.name
		}
	}
	return ""
}
