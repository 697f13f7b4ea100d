package policy

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// maxAttribute is the largest length of a key or a value in annotations and labels, in bytes.
const maxAttribute = 255

// UnknownPlatform is the platform of an index's entries that aren't images, such as the
// attestations that BuildKit pushes.
const UnknownPlatform = "unknown/unknown"

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

// ReadsAttributes returns whether the policy needs to know a tag's attributes.
func (s *Selectors) ReadsAttributes() bool { return s.Annotations != nil || s.ReadsImages() }

// ReadsImages returns whether the policy needs to know attributes of images: labels or platforms.
func (s *Selectors) ReadsImages() bool { return s.Labels != nil || s.Platforms != nil }

// MatchAttributes returns whether the selectors annotations, labels and platforms
// select a tag with these attributes. `known` is false if that depends on what isn't known.
func (s *Selectors) MatchAttributes(a Attributes) (selected, known bool) {
	if !s.MatchAnnotations(a.Annotations) {
		return false, true
	}
	return s.MatchImages(a.Images)
}

// MatchAnnotations is like MatchAttributes, with the selector annotations alone.
func (s *Selectors) MatchAnnotations(annotations map[string]string) bool {
	return matchMap(s.Annotations, annotations)
}

// MatchImages is like MatchAttributes, without the selector annotations.
func (s *Selectors) MatchImages(list []ImageAttributes) (selected, known bool) {
	if !s.ReadsImages() {
		return true, true
	}
	images, known := 0, true
	for _, image := range list {
		if image.PlatformKnown && image.Platform == UnknownPlatform {
			continue
		}
		images++
		switch {
		case s.Platforms == nil:
		case !image.PlatformKnown:
			known = false
		case !slices.ContainsFunc(s.Platforms, func(pattern string) bool { return matchPlatform(pattern, image.Platform) }):
			return false, true
		}
		switch {
		case s.Labels == nil:
		case !image.LabelsKnown:
			known = false
		case !matchMap(s.Labels, image.Labels):
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

// mapText writes the members of a map, such as: a=b and c=d.
func mapText(m map[string]string) string {
	var texts []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		texts = append(texts, key+"="+m[key])
	}
	return strings.Join(texts, " and ")
}
