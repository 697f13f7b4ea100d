package ui

import "testing"

// TestAgentWords: pages show clients as people call them, with the version that matters.
func TestAgentWords(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{
		"containerd/v2.1.3 kubernetes/v1.33.1": "containerd 2.1, Kubernetes 1.33",
		"docker/28.1.1 go/go1.26 git-commit/01f442b kernel/6.18 os/linux arch/amd64 UpstreamClient(Docker-Client/28.1.1 \\(linux\\))": "Docker 28.1",
		"skopeo/1.18.0": "skopeo 1.18", "cri-o/1.33.0 go/go1.24 os/linux arch/amd64": "CRI-O 1.33", "Helm/3.18.0": "Helm 3.18",
		"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/138.0.0.0 Safari/537.36":                 "Chrome 138.0",
		"Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.5 Safari/605.1.15": "Safari 18.5",
		"Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0":                                                "Firefox 140.0",
		"Go-http-client/1.1": "Go-http-client/1.1", "": "", "<b>docker": "<b>docker",
	} {
		if got := agent(header); got != want {
			t.Errorf("%q: %q, want %q", header, got, want)
		}
	}
}
