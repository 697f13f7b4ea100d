package ui

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
)

// room is how many bytes of HTML remain for text from clients on a page. Whoever pushes an image
// chooses how much there is of it, and a page has to stay small.
type room int

// clip returns at most n characters of the text, as the function clip of format.go does, and fewer
// if there is less room. Without room it returns "…".
func (r *room) clip(n int, text string) string {
	if most := 4*n + 8; len(text) > most { // n characters have 4n bytes at most
		for most > 0 && !utf8.RuneStart(text[most]) {
			most--
		}
		text = text[:most]
	}
	text = clip(n, text)
	for i, c := range text {
		size := escapedSize(c)
		if int(*r) < size {
			return text[:i] + "…"
		}
		*r -= room(size)
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

// indented returns JSON on several lines, cut after about `limit` bytes. The parameter may be
// malformed; encoding/json isn't used because the depth of hostile JSON would multiply its size.
func indented(text string, limit int) (out string, cut bool) {
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

// pair is a name with its value, both shown as they are.
type pair struct{ Name, Value string }

// pairsOf returns the members of a map in the order of their names, up to `most` of them, and how
// many are left.
func pairsOf(words *room, most int, values map[string]string) (list []pair, left int) {
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	slices.Sort(names)
	for i, name := range names {
		if i == most || *words <= 0 {
			return list, len(names) - i
		}
		list = append(list, pair{words.clip(100, name), words.clip(400, values[name])})
	}
	return list, 0
}

// phrase is a part of a sentence: text, or the digest of a manifest.
type phrase struct{ Text, Digest, Link string }

var digestForm = regexp.MustCompile(`\b(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})\b`)

// phrases splits a sentence where it names manifests of a repository. Those that are missing get
// no link, and neither do others if the repository is "".
func phrases(repository, sentence string, missing []string) (list []phrase) {
	at := 0
	for _, found := range digestForm.FindAllStringIndex(sentence, -1) {
		digest := sentence[found[0]:found[1]]
		p := phrase{Digest: digest}
		if repository != "" && !slices.Contains(missing, digest) {
			p.Link = link(manifestPath, repository, digest)
		}
		list = append(list, phrase{Text: sentence[at:found[0]]}, p)
		at = found[1]
	}
	return append(list, phrase{Text: sentence[at:]})
}

// textsOf returns digests as text.
func textsOf(digests []oci.Digest) []string {
	list := make([]string, len(digests))
	for i, d := range digests {
		list[i] = d.String()
	}
	return list
}

// lenient decodes a member of hostile JSON. What has another type stays empty.
func lenient[T any](members map[string]json.RawMessage, name string) (value T) {
	if json.Unmarshal(members[name], &value) != nil {
		var none T
		return none
	}
	return value
}

// commandLine returns the words of a command as a shell would take them.
func commandLine(list []string) string {
	parts := make([]string, len(list))
	for i, word := range list {
		if parts[i] = word; word == "" || strings.ContainsAny(word, " \t\n\"'\\$") {
			parts[i] = strconv.Quote(word)
		}
	}
	return strings.Join(parts, " ")
}

// artifacts are artifact types and media types of configurations, as people say them.
var artifacts = map[string]string{
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

// kindOf returns what a manifest is, for people, by its media type and its artifact type.
func kindOf(mediaType, artifactType string) string {
	what := kind(mediaType)
	if strings.HasPrefix(what, "index") {
		if text, ok := artifacts[artifactType]; ok {
			return what + ", " + text
		}
		return what
	}
	if artifactType == "" {
		return what
	}
	text, ok := artifacts[artifactType]
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

// agent returns a User-Agent as words: "containerd 2.1, Kubernetes 1.33". One that names no known product
// stays as it is.
func agent(header string) string {
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

// policyWords says in sentences what a policy does.
type policyWords struct {
	Does   string   // what it deletes
	Only   []string // the tags at which it looks
	Keeps  []string // its keep rules
	Limits []string // when and how much it deletes
}

func wordsOf(v api.PolicyView) policyWords {
	w := policyWords{Does: "Deletes " + selectionWords(v.Method, v.Value)}
	if v.Method == string(policy.UntaggedManifests) {
		w.Does = "Deletes no tags; manifests without tags stay for " + ageWords(fmt.Sprint(v.Value))
	}
	if v.Method == string(policy.NumberOfTags) {
		w.Does = "Deletes " + countedWords(v)
	}
	if v.TagPattern != nil {
		verb := "match"
		if !v.TagPatternMatches {
			verb = "don't match"
		}
		w.Only = append(w.Only, fmt.Sprintf("whose names %s %s", verb, clip(256, *v.TagPattern)))
	}
	if text := v.Selectors.String(); text != "" {
		w.Only = append(w.Only, clip(1000, text))
	}
	for _, k := range v.Keep {
		w.Keeps = append(w.Keeps, clip(600, keepWords(k)))
	}
	if v.RemoveOrphans {
		w.Limits = append(w.Limits, "also deletes signatures and the like whose image is gone")
	}
	for i, win := range v.Windows {
		w.Limits = append(w.Limits, []string{"only ", "or "}[min(i, 1)]+clip(200, win.String()))
	}
	if v.Grace.Duration() > 0 {
		w.Limits = append(w.Limits, "waits "+ageWords(v.Grace.String())+" after each change")
	}
	if v.MaxDeleted > 0 {
		w.Limits = append(w.Limits, "asks before it deletes more than "+plural(v.MaxDeleted, "tag", "tags")+" in a run")
	}
	if v.MaxDeletedPercent > 0 {
		w.Limits = append(w.Limits, fmt.Sprintf("asks before it deletes more than %d%% of its tags in a run", v.MaxDeletedPercent))
	}
	if least := v.Floor(); least > 0 {
		w.Limits = append(w.Limits, "leaves each repository at least its "+plural(least, "newest tag", "newest tags"))
	}
	if len(v.RequireReporter) > 0 {
		w.Limits = append(w.Limits, "only while these report what is deployed: "+clip(400, strings.Join(v.RequireReporter, ", ")))
	}
	if age := v.KeepUntagged.String(); age != "" {
		w.Limits = append(w.Limits, "keeps manifests without tags for "+ageWords(age))
	}
	return w
}

// countedWords says what a policy by number deletes.
func countedWords(v api.PolicyView) string {
	text := "all but the newest " + plural(v.Value, "tag", "tags")
	if v.CountImages {
		text = "all but the newest " + plural(v.Value, "image", "images")
	}
	if group := v.GroupBy.String(); group != "" {
		text += " of each group by " + clip(256, group)
	}
	if v.PerPlatform {
		text += " of each platform"
	}
	return text + " of a repository"
}

func selectionWords(method string, value any) string {
	switch policy.Method(method) {
	case policy.NumberOfTags: // see countedWords
	case policy.CreationDate:
		return "tags that were pushed more than " + ageWords(fmt.Sprint(value)) + " ago"
	case policy.UntaggedManifests:
		return "no tags"
	case policy.MaxBytes:
		return "the least recently used tags of a repository that stores more than " + fmt.Sprint(value)
	case policy.LastPulled:
		return "tags that were last used more than " + ageWords(fmt.Sprint(value)) + " ago, or never"
	}
	return "nothing: this version can't read it"
}

// keepWords says which tags a keep rule keeps.
func keepWords(k policy.KeepRule) string {
	switch kind := k.Kind(); {
	case kind == policy.KeepUsed:
		return "tags pushed or used in the last " + ageWords(k.UsedWithin.String())
	case kind == policy.KeepPattern:
		return "tags that match " + k.TagPattern.String()
	case k.Versions == policy.NewestPatches && k.Newest <= 1:
		return "the newest release of each minor version"
	case k.Versions == policy.NewestPrereleases && k.Newest <= 1:
		return "the newest prerelease"
	case kind == policy.KeepNewest:
		return strings.TrimSpace("the newest " + formatNumber(k.Newest) + " " + k.Counting().String())
	}
	return k.String()
}

// units are the units of ages, one and many.
var units = map[byte][2]string{
	's': {"second", "seconds"}, 'm': {"minute", "minutes"}, 'h': {"hour", "hours"},
	'd': {"day", "days"}, 'w': {"week", "weeks"}, 'y': {"year", "years"},
}

// ageWords returns an age such as 90d as people say it.
func ageWords(age string) string {
	n := len(age) - 1
	if n < 1 || strings.Trim(age[:n], "0123456789") != "" {
		return age
	}
	unit, known := units[age[n]]
	if !known {
		return age
	}
	if age[:n] == "1" {
		return "1 " + unit[0]
	}
	return age[:n] + " " + unit[1]
}

// textField is an input of the editor, with its label.
type textField struct {
	Name, Label, Value string
	Hint, Example      string
	Number             bool
	Wrong              bool   // the registry refused its value
	Why                string // why it did
}

// Field returns the input of a member.
func (f policyForm) Field(name string) textField {
	m := policy.MemberOf(name)
	return textField{
		Name: name, Label: m.Label(), Hint: m.Hint(), Example: m.Placeholder(), Number: m.Kind == policy.Whole,
		Value: f.Text[name], Wrong: f.Wrong == name, Why: f.Why,
	}
}

// Fields returns the inputs of members.
func (f policyForm) Fields(names ...string) []textField {
	list := make([]textField, 0, len(names))
	for _, name := range names {
		list = append(list, f.Field(name))
	}
	return list
}

// days are the days of a window.
var days = []option{
	{"mon", "Mon"}, {"tue", "Tue"}, {"wed", "Wed"}, {"thu", "Thu"}, {"fri", "Fri"}, {"sat", "Sat"}, {"sun", "Sun"},
}

// Days returns the days of a window, for the template.
func (f policyForm) Days() []option { return days }

// option is an entry of a select.
type option struct{ Value, Text string }

func hasOption(list []option, value string) bool {
	return slices.ContainsFunc(list, func(o option) bool { return o.Value == value })
}

// Methods returns the ways to select tags.
func (f policyForm) Methods() []option {
	return []option{
		{"creation_date", "were pushed long ago"}, {"last_pulled", "were last used long ago"}, {"number_of_tags", "are not among the newest"},
		{"max_bytes", "were least recently used and exceed a size"}, {"untagged", "no tags: only manifests without tags"},
	}
}

// Modes returns the modes.
func (f policyForm) Modes() []option {
	return []option{{"", "On: delete tags"}, {"observe", "Observe: delete nothing, show what it would"}, {"off", "Off"}}
}

// KeepKinds returns the kinds of keep rules.
func (f policyForm) KeepKinds() []option {
	return []option{
		{"", "–"}, {"newest", "the newest N"}, {"newest_images", "tags of the newest N images"}, {"newest_platform", "the newest N of each platform"}, {"usedWithin", "pushed or used within"}, {"tagPattern", "match a pattern"},
		{"releases", "every release"}, {"newest_patches", "newest N releases of each minor version"}, {"newest_prereleases", "newest N prereleases"},
	}
}

// wrongMember returns the member that a refusal of the registry is about, "" if it names none.
func wrongMember(err error) string {
	name, _, _ := strings.Cut(err.Error(), ":")
	if policy.MemberOf(name).Label() != "" {
		return name
	}
	return ""
}
