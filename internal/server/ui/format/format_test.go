package format

import (
	"testing"
	"time"
)

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
		if got := Agent(header); got != want {
			t.Errorf("%q: %q, want %q", header, got, want)
		}
	}
}

func TestFormats(t *testing.T) {
	t.Parallel()
	big := int64(1234567)
	for got, want := range map[string]string{
		Bytes(0): "0 B", Bytes(1023): "1023 B", Bytes(1024): "1.0 KiB", Bytes(10 << 10): "10 KiB",
		Bytes(1024*1024 - 1): "1.0 MiB", Bytes(int64(1500) << 20): "1.5 GiB", Bytes((*int64)(nil)): "–", Bytes(-2048): "−2.0 KiB",
		Number(0): "0", Number(999): "999", Number(&big): "1,234,567", Number(-1000): "−1,000",
		Plural(1, "tag", "tags"): "1 tag", Plural(2000, "tag", "tags"): "2,000 tags",
		ShortDigest("sha256:0123456789abcdef0123"): "0123456789ab", ShortDigest("sha512:0123456789abcdef"): "sha512:0123456789ab", ShortDigest("x"): "x",
		Clip(3, "abcdef"): "abc…", Clip(9, "a\u202eb"): "a\ufffdb", Clip(9, "a\x00b"): "a\ufffdb",
		Ago(time.Time{}): "never", Ago((*time.Time)(nil)): "never", Ago(time.Now().Add(-90 * time.Minute)): "1 h ago",
		Ago(time.Now().Add(-3 * time.Second)): "just now", Ago(time.Now().Add(72*time.Hour + time.Minute)): "in 3 days",
		Sentence("it failed"): "It failed.", Sentence("Why?"): "Why?", Sentence(" "): "",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
