package autoprune

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// The JSON fields of the selectors by attributes of images.
const (
	fieldAnnotations = "annotations"
	fieldLabels      = "labels"
	fieldPlatforms   = "platforms"
)

// maxAttribute is the largest length of a key or a value in annotations and labels, in bytes.
const maxAttribute = 255

// unknownPlatform is the platform of an index's entries that aren't images, such as the
// attestations that BuildKit pushes.
const unknownPlatform = "unknown/unknown"

// Attributes are the properties of a tag's manifest that the selectors annotations, labels
// and platforms look at.
type Attributes struct {
	Annotations map[string]string
	// Images are the images of an index, or else the manifest itself.
	Images []ImageAttributes
}

// ImageAttributes are the properties of an image that selectors look at.
type ImageAttributes struct {
	Platform      string // os/architecture or os/architecture/variant in lower case; "" for none
	PlatformKnown bool
	Labels        map[string]string
	LabelsKnown   bool
}

// readsAttributes returns whether the policy needs to know a tag's attributes.
func (p *Policy) readsAttributes() bool { return p.where.annotations != nil || p.readsImages() }

// readsImages returns whether the policy needs to know attributes of images: labels or platforms.
func (p *Policy) readsImages() bool { return p.where.labels != nil || p.where.platforms != nil }

// MatchAttributes returns whether the policy's selectors annotations, labels and platforms
// select a tag with these attributes. `known` is false if that depends on what isn't known.
func (p *Policy) MatchAttributes(a Attributes) (selected, known bool) {
	if !matchMap(p.where.annotations, a.Annotations) {
		return false, true
	}
	return p.matchImages(a.Images)
}

// matchImages is like MatchAttributes, without the selector annotations.
func (p *Policy) matchImages(list []ImageAttributes) (selected, known bool) {
	if !p.readsImages() {
		return true, true
	}
	images, known := 0, true
	for _, image := range list {
		if image.PlatformKnown && image.Platform == unknownPlatform {
			continue
		}
		images++
		switch {
		case p.where.platforms == nil:
		case !image.PlatformKnown:
			known = false
		case !slices.ContainsFunc(p.where.platforms, func(pattern string) bool { return matchPlatform(pattern, image.Platform) }):
			return false, true
		}
		switch {
		case p.where.labels == nil:
		case !image.LabelsKnown:
			known = false
		case !matchMap(p.where.labels, image.Labels):
			return false, true
		}
	}
	return images > 0 && known, images == 0 || known
}

// matchMap returns whether `values` has all keys of `patterns`, with values that match.
func matchMap(patterns, values map[string]string) bool {
	for key, pattern := range patterns {
		if value, ok := values[key]; !ok || !matchText(pattern, value) {
			return false
		}
	}
	return true
}

// matchPlatform returns whether a platform matches a pattern of [CheckPlatform]. A pattern
// without a variant matches every variant.
func matchPlatform(pattern, platform string) bool {
	want, got := strings.Split(pattern, "/"), strings.Split(platform, "/")
	if platform == "" || len(got) < len(want) {
		return false
	}
	for i := range want {
		if want[i] != "*" && want[i] != got[i] {
			return false
		}
	}
	return true
}

var platformPattern = regexp.MustCompile(`^([a-z0-9_.-]+|\*)/([a-z0-9_.-]+|\*)(/([a-z0-9_.-]+|\*))?$`)

// CheckPlatform returns an error unless the text is a pattern of platforms.
func CheckPlatform(pattern string) error {
	switch {
	case len(pattern) > maxMediaType:
		return fmt.Errorf("it has more than %d characters", maxMediaType)
	case !platformPattern.MatchString(strings.ToLower(pattern)):
		return fmt.Errorf("%.40q is no platform; write os/architecture or os/architecture/variant, such as linux/arm64 or linux/arm/v7", pattern)
	}
	return nil
}

// ParseAttribute reads KEY=VALUE, for the selectors annotations and labels.
func ParseAttribute(text string) (key, value string, err error) {
	key, value, ok := strings.Cut(text, "=")
	if !ok {
		return "", "", fmt.Errorf("%.40q has no =; write KEY=VALUE, or KEY=* for any value", text)
	}
	return key, value, checkAttribute(key, value)
}

func checkAttribute(key, value string) error {
	switch {
	case key == "":
		return fmt.Errorf("a key is empty")
	case len(key) > maxAttribute:
		return fmt.Errorf("a key has more than %d bytes", maxAttribute)
	case len(value) > maxAttribute:
		return fmt.Errorf("the value of %.40q has more than %d bytes", key, maxAttribute)
	}
	return nil
}

// readAttributes reads the selectors by attributes of images.
func readAttributes(fields map[string]json.RawMessage, s *selectors) (err error) {
	if s.annotations, err = readMap(fieldAnnotations, fields); err != nil {
		return err
	}
	if s.labels, err = readMap(fieldLabels, fields); err != nil {
		return err
	}
	if s.platforms, err = readList(fieldPlatforms, fields, CheckPlatform); err != nil {
		return err
	}
	for i, pattern := range s.platforms {
		s.platforms[i] = strings.ToLower(pattern)
	}
	return nil
}

// readMap reads a field whose value is an object of texts. Left out or null, it is nil.
func readMap(name string, fields map[string]json.RawMessage) (map[string]string, error) {
	raw := fields[name]
	if raw == nil || string(raw) == "null" {
		return nil, nil
	}
	if raw[0] != '{' {
		return nil, fieldErrorf(name, "it must be an object of strings, not %s", typeName(raw))
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	if _, err := decoder.Token(); err != nil { // the opening brace
		return nil, malformed(err)
	}
	m := make(map[string]string)
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return nil, malformed(err)
		}
		key, _ := token.(string)
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return nil, malformed(err)
		}
		if _, twice := m[key]; twice {
			return nil, fieldErrorf(name, "%.40q is given twice", key)
		}
		if value[0] != '"' {
			return nil, fieldErrorf(name, "the value of %.40q must be a string, not %s", key, typeName(value))
		}
		if m[key], err = readText(name, value); err != nil {
			return nil, err
		}
		if err := checkAttribute(key, m[key]); err != nil {
			return nil, fieldErrorf(name, "%v", err)
		}
	}
	switch {
	case len(m) == 0:
		return nil, fieldErrorf(name, "it is empty; leave it out to select everything")
	case len(m) > maxSelectors:
		return nil, fieldErrorf(name, "it has %d members and at most %d are allowed", len(m), maxSelectors)
	}
	return m, nil
}

// mapText writes the members of a map, such as: a=b and c=d.
func mapText(m map[string]string) string {
	var texts []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		texts = append(texts, key+"="+m[key])
	}
	return strings.Join(texts, " and ")
}
