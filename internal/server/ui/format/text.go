package format

import (
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Room is how many bytes of HTML remain for text from clients on a page. Whoever pushes an image
// chooses how much there is of it, and a page has to stay small.
type Room int

// Clip returns at most n characters of the text, as the function clip of format.go does, and fewer
// if there is less room. Without room it returns "…".
func (r *Room) Clip(n int, text string) string {
	if most := 4*n + 8; len(text) > most { // n characters have 4n bytes at most
		for most > 0 && !utf8.RuneStart(text[most]) {
			most--
		}
		text = text[:most]
	}
	text = Clip(n, text)
	for i, c := range text {
		size := escapedSize(c)
		if int(*r) < size {
			return text[:i] + "…"
		}
		*r -= Room(size)
	}
	return text
}

// escapedSize returns how many bytes html/template writes for a character of a text.
func escapedSize(c rune) int {
	switch c {
	case '<', '>':
		return 4
	case '&', '"', '\'', '+':
		return 5
	}
	return utf8.RuneLen(c)
}

// Indented returns JSON on several lines, cut after about `limit` bytes. The parameter may be
// malformed; encoding/json isn't used because the depth of hostile JSON would multiply its size.
func Indented(text string, limit int) (out string, cut bool) {
	var b strings.Builder
	depth, quoted, escaped := 0, false, false
	line := func() {
		b.WriteByte('\n')
		b.WriteString(strings.Repeat("  ", min(max(depth, 0), 12)))
	}
	for i := 0; i < len(text); i++ {
		c := text[i]
		if b.Len() >= limit && utf8.RuneStart(c) {
			return b.String(), true
		}
		if quoted {
			b.WriteByte(c)
			quoted, escaped = escaped || c != '"', !escaped && c == '\\'
			continue
		}
		switch c {
		case ' ', '\t', '\n', '\r':
		case '{', '[':
			b.WriteByte(c)
			rest := strings.TrimLeft(text[i+1:min(len(text), i+64)], " \t\r\n")
			if depth++; rest == "" || rest[0] != '}' && rest[0] != ']' {
				line()
			}
		case '}', ']':
			depth--
			if last := b.String(); last != "" && last[len(last)-1] != '{' && last[len(last)-1] != '[' {
				line()
			}
			b.WriteByte(c)
		case ',':
			b.WriteByte(c)
			line()
		case ':':
			b.WriteString(": ")
		default:
			quoted = c == '"'
			b.WriteByte(c)
		}
	}
	return b.String(), false
}

// Pair is a name with its value, both shown as they are.
type Pair struct{ Name, Value string }

// PairsOf returns the members of a map in the order of their names, up to `most` of them, and how
// many are left.
func PairsOf(words *Room, most int, values map[string]string) (list []Pair, left int) {
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	slices.Sort(names)
	for i, name := range names {
		if i == most || *words <= 0 {
			return list, len(names) - i
		}
		list = append(list, Pair{words.Clip(100, name), words.Clip(400, values[name])})
	}
	return list, 0
}

// Lenient decodes a member of hostile JSON. What has another type stays empty.
func Lenient[T any](members map[string]json.RawMessage, name string) (value T) {
	if json.Unmarshal(members[name], &value) != nil {
		var none T
		return none
	}
	return value
}

// CommandLine returns the words of a command as a shell would take them.
func CommandLine(list []string) string {
	parts := make([]string, len(list))
	for i, word := range list {
		if parts[i] = word; word == "" || strings.ContainsAny(word, " \t\n\"'\\$") {
			parts[i] = strconv.Quote(word)
		}
	}
	return strings.Join(parts, " ")
}

// Artifacts are artifact types and media types of configurations, as people say them.
var Artifacts = map[string]string{
	"application/vnd.oci.image.config.v1+json":         "image",
	"application/vnd.docker.container.image.v1+json":   "image",
	"application/vnd.oci.empty.v1+json":                "artifact",
	"application/vnd.docker.plugin.v1+json":            "Docker plugin",
	"application/vnd.dev.cosign.artifact.sig.v1+json":  "signature (cosign)",
	"application/vnd.dev.cosign.simplesigning.v1+json": "signature (cosign)",
	"application/vnd.dev.cosign.artifact.sbom.v1+json": "SBOM (cosign)",
	"application/vnd.dev.sigstore.bundle.v0.3+json":    "signature or attestation (Sigstore)",
	"application/vnd.cncf.notary.signature":            "signature (Notary)",
	"application/vnd.in-toto+json":                     "attestation (in-toto)",
	"application/vnd.dsse.envelope.v1+json":            "attestation (DSSE)",
	"application/spdx+json":                            "SBOM (SPDX)",
	"text/spdx":                                        "SBOM (SPDX)",
	"text/spdx+json":                                   "SBOM (SPDX)",
	"application/vnd.cyclonedx":                        "SBOM (CycloneDX)",
	"application/vnd.cyclonedx+json":                   "SBOM (CycloneDX)",
	"application/vnd.cyclonedx+xml":                    "SBOM (CycloneDX)",
	"application/vnd.syft+json":                        "SBOM (Syft)",
	"application/sarif+json":                           "scan report (SARIF)",
	"application/vnd.cncf.helm.config.v1+json":         "Helm chart",
	"application/vnd.cncf.flux.config.v1+json":         "Flux artifact",
	"application/vnd.wasm.config.v0+json":              "WebAssembly module",
}

// KindOf returns what a manifest is, for people, by its media type and its artifact type.
func KindOf(mediaType, artifactType string) string {
	what := Kind(mediaType)
	if strings.HasPrefix(what, "index") {
		if text, ok := Artifacts[artifactType]; ok {
			return what + ", " + text
		}
		return what
	}
	if artifactType == "" {
		return what
	}
	text, ok := Artifacts[artifactType]
	switch {
	case !ok:
		return "artifact"
	case text == "image":
		return what
	}
	return text
}

// agentNames are the products that clients of registries name in the header User-Agent, as people call
// them, in the order in which they are shown.
var agentNames = []struct{ token, name string }{
	{"containerd", "containerd"}, {"nerdctl", "nerdctl"}, {"docker", "Docker"}, {"buildkit", "BuildKit"}, {"cri-o", "CRI-O"}, {"podman", "Podman"}, {"buildah", "Buildah"},
	{"skopeo", "skopeo"}, {"containers", "containers/image"}, {"crane", "crane"}, {"go-containerregistry", "go-containerregistry"}, {"regctl", "regctl"}, {"regclient", "regclient"},
	{"oras", "oras"}, {"oras-go", "oras"}, {"helm", "Helm"}, {"cosign", "cosign"}, {"kaniko", "kaniko"}, {"flux", "Flux"}, {"argocd", "Argo CD"}, {"trivy", "Trivy"},
	{"kubelet", "Kubernetes"}, {"kubernetes", "Kubernetes"}, {"k3s", "k3s"}, {"purser", "Purser"}, {"curl", "curl"},
	{"edg", "Edge"}, {"opr", "Opera"}, {"firefox", "Firefox"}, {"chromium", "Chromium"}, {"headlesschrome", "Chromium"}, {"chrome", "Chrome"}, {"safari", "Safari"},
}

// browsersLike are the products that browsers name besides their own.
var browsersLike = map[string][]string{"Edge": {"Chrome", "Safari"}, "Opera": {"Chrome", "Safari"}, "Chromium": {"Chrome", "Safari"}, "Chrome": {"Safari"}}

var productForm = regexp.MustCompile(`(?:^|[ (;])([A-Za-z][A-Za-z-]*)/v?([0-9]+)(\.[0-9]+)?`)

// Agent returns a User-Agent as words: "containerd 2.1, Kubernetes 1.33". One that names no known product
// stays as it is.
func Agent(header string) string {
	versions := make(map[string]string)
	for _, m := range productForm.FindAllStringSubmatch(header[:min(len(header), 500)], 50) {
		token := strings.ToLower(m[1])
		if _, seen := versions[token]; !seen {
			versions[token] = m[2] + m[3]
		}
	}
	if v := versions["version"]; v != "" && versions["safari"] != "" {
		versions["safari"] = v // Safari's own version has another name
	}
	var words []string
	left := map[string]bool{}
	for _, n := range agentNames {
		version := versions[n.token]
		if version == "" || left[n.name] {
			continue
		}
		left[n.name] = true
		for _, like := range browsersLike[n.name] {
			left[like] = true
		}
		words = append(words, n.name+" "+version)
	}
	if len(words) == 0 {
		return header
	}
	return strings.Join(words, ", ")
}
