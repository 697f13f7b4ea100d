package autoprune_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"github.com/purser-registry/purser/internal/policy"
)

// oracleConfiguration is the configuration of an image.
type oracleConfiguration struct {
	platform string // as os/architecture/variant; a part may be empty
	labels   map[string]string
	unread   bool // Purser couldn't read it
}

// oracleImageOf is an image of a tag, as the selectors labels and platforms see it.
type oracleImageOf struct {
	platform      string // "?" if it isn't known
	labels        map[string]string
	labelsUnknown bool
}

func oraclePlatform(os, architecture, variant string) string {
	if os == "" || architecture == "" {
		return ""
	}
	return strings.ToLower(strings.TrimSuffix(os+"/"+architecture+"/"+variant, "/"))
}

// oracleConfigured returns the image with this manifest by its own configuration.
func oracleConfigured(m oracleManifest) oracleImageOf {
	if m.configuration == nil {
		return oracleImageOf{}
	}
	if m.configuration.unread {
		return oracleImageOf{platform: "?", labelsUnknown: true}
	}
	parts := strings.Split(m.configuration.platform, "/")
	return oracleImageOf{platform: oraclePlatform(parts[0], parts[1], parts[2]), labels: m.configuration.labels}
}

// oracleImagesOf returns the images of a tag with this manifest.
func oracleImagesOf(in oracleInput, m oracleManifest) (images []oracleImageOf) {
	if m.mediaType != oracleIndexType {
		return []oracleImageOf{oracleConfigured(m)}
	}
	for _, one := range m.listed {
		image := oracleImageOf{platform: "?", labelsUnknown: true}
		if child, there := in.manifests[one.digest]; there {
			image = oracleConfigured(child)
		}
		if one.platform != "" {
			parts := strings.Split(one.platform, "/")
			image.platform = oraclePlatform(parts[0], parts[1], parts[2])
		}
		if image.platform != "unknown/unknown" {
			images = append(images, image)
		}
	}
	return images
}

// attributes says whether the selectors annotations, labels and platforms of the policy select
// a tag: "yes", "no", or "doubt".
func (r oracleRule) attributes(in oracleInput, t oracleTag) string {
	m := in.manifests[t.manifest]
	has := func(wanted, values map[string]string) bool {
		for key, pattern := range wanted {
			value, there := values[key]
			if !there || !oracleGlob(pattern, value, false) {
				return false
			}
		}
		return true
	}
	if !has(r.Annotations, m.annotations) {
		return "no"
	}
	if r.Labels == nil && r.Platforms == nil {
		return "yes"
	}
	images := oracleImagesOf(in, m)
	if len(images) == 0 {
		return "no"
	}
	answer := "yes"
	for _, image := range images {
		if r.Platforms != nil {
			switch {
			case image.platform == "?":
				answer = "doubt"
			case !slices.ContainsFunc(r.Platforms, func(p string) bool { return oracleIsPlatform(strings.ToLower(p), image.platform) }):
				return "no"
			}
		}
		if r.Labels != nil {
			switch {
			case image.labelsUnknown:
				answer = "doubt"
			case !has(r.Labels, image.labels):
				return "no"
			}
		}
	}
	return answer
}

// oracleIsPlatform reports whether a platform is one that an element of `platforms` names.
func oracleIsPlatform(element, platform string) bool {
	if strings.Count(element, "/") == 1 {
		return oracleGlob(element, platform, true) || oracleGlob(element+"/*", platform, true)
	}
	return oracleGlob(element, platform, true)
}

// drawOracleAttributes draws what the selectors look at of a manifest.
func drawOracleAttributes(t *rapid.T, m *oracleManifest) {
	if often(t, 2) {
		m.annotations = map[string]string{"stage": draw(t, "test", "Test", "prod", "")}
	}
	if m.mediaType == oracleIndexType {
		for _, child := range m.children {
			m.listed = append(m.listed, oracleListed{child, drawOraclePlatform(t, "")})
		}
		if often(t, 5) {
			m.listed = append(m.listed, oracleListed{oracleDigest(99), drawOraclePlatform(t, "")})
		}
		if often(t, 3) {
			m.listed = append(m.listed, oracleListed{oracleDigest(98), "unknown/unknown/"})
		}
		return
	}
	if often(t, 6) {
		return
	}
	m.configuration = &oracleConfiguration{platform: drawOraclePlatform(t, "//"), unread: often(t, 5)}
	if often(t, 2) {
		m.configuration.labels = map[string]string{"tier": draw(t, "1", "2"), draw(t, "team", "x"): draw(t, "alpha", "beta")}
	}
}

func drawOraclePlatform(t *rapid.T, none string) string {
	return draw(t, none, "linux/amd64/", "linux/amd64/", "Linux/arm64/v8", "linux/arm/v7", "windows/amd64/")
}

// drawOracleAttributeSelectors draws the selectors by attributes of a policy.
func drawOracleAttributeSelectors(t *rapid.T) (text string) {
	if often(t, 3) {
		text += `, "annotations": ` + draw(t, `{"stage": "test"}`, `{"stage": "*"}`, `{"stage": "p*d"}`, `{"stage": ""}`)
	}
	if often(t, 3) {
		text += `, "labels": ` + draw(t, `{"tier": "1"}`, `{"tier": "*", "team": "*a*"}`, `{"x": "be*"}`)
	}
	if often(t, 3) {
		text += `, "platforms": ` + draw(t, `["linux/AMD64"]`, `["linux/*"]`, `["linux/arm64", "windows/amd64"]`, `["*/arm/v7", "*/*/v8"]`)
	}
	return text
}

// attributes returns the attributes of a manifest as the reader of tags finds them.
func (s oracleScene) attributes(digest string) (a policy.Attributes) {
	m := s.manifests[digest]
	a.Annotations = m.annotations
	entries := []oracleListed{{digest: digest}}
	if m.mediaType == oracleIndexType {
		entries = m.listed
	}
	for _, one := range entries {
		var image policy.ImageAttributes
		if child, there := s.manifests[one.digest]; there {
			c := child.configuration
			image.PlatformKnown = c == nil || !c.unread
			if image.LabelsKnown = image.PlatformKnown; c != nil && !c.unread {
				image.Labels, image.Platform = c.labels, oraclePlatformText(c.platform)
			}
		}
		if one.platform != "" {
			image.Platform, image.PlatformKnown = oraclePlatformText(one.platform), true
		}
		a.Images = append(a.Images, image)
	}
	return a
}

func oraclePlatformText(platform string) string {
	return strings.Trim(strings.ToLower(platform), "/")
}

// payload returns the content of a manifest, with spaces up to its size.
func (s oracleScene) payload(digest string) []byte {
	m := s.manifests[digest]
	content := map[string]any{"annotations": m.annotations}
	if m.mediaType == oracleIndexType {
		list := []any{}
		for _, one := range m.listed {
			entry := map[string]any{"mediaType": oracleImageType, "digest": one.digest}
			if one.platform != "" {
				entry["platform"] = oraclePlatformMembers(one.platform)
			}
			list = append(list, entry)
		}
		content["manifests"] = list
	}
	text, err := json.Marshal(content)
	if padding := int(s.own[digest]) - len(text); err == nil && padding >= 0 {
		return append(text, strings.Repeat(" ", padding)...)
	}
	panic("a manifest is larger than its size")
}

func oraclePlatformMembers(platform string) map[string]any {
	parts := strings.Split(platform, "/")
	members := map[string]any{"os": parts[0], "architecture": parts[1], "variant": parts[2]}
	maps.DeleteFunc(members, func(_ string, text any) bool { return text == "" })
	return members
}

// content returns the configuration's JSON. The text `id` makes its digest unique.
func (c oracleConfiguration) content(id string) []byte {
	content := oraclePlatformMembers(c.platform)
	content["id"] = id
	content["config"] = map[string]any{"Labels": c.labels}
	text, err := json.Marshal(content)
	if err != nil {
		panic(err)
	}
	return text
}
