package ui

import (
	"regexp"
	"strings"
)

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
