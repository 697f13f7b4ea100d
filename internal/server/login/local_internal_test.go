package login

import (
	"net/url"
	"strings"
	"testing"
)

// TestLocalPath: after a log-in, a browser stays at the registry, however the path is written.
func TestLocalPath(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/", "/ui/", "/ui/repositories/acme%2Fapp?tag=v1&q=a+b", "/a//"[:3], "/ui/?next=//evil"} {
		if got := localPath(path, "home"); got != path {
			t.Errorf("%q became %q", path, got)
		}
	}
	for _, path := range []string{
		"", "ui", "//evil.example", "///evil.example", "/\\evil.example", "\\\\evil.example", "\\/evil", "https://evil.example/", "https:evil.example",
		"javascript:alert(1)", "/\t/evil.example", "/\n/evil.example", " //evil.example", "/ /evil", "/%2fevil.example", "/%2F%2Fevil.example", "/%5cevil.example",
		"/%255cevil.example", "/%252fevil.example", "/%25252fevil.example", "/%09/evil", "/a//evil", "/%zz", "/ü", "/a#//evil", "/" + strings.Repeat("a", maxPath),
	} {
		if got := localPath(path, "home"); got != "home" {
			t.Errorf("%q became %q", path, got)
		}
	}
}

// FuzzLocalPath: whatever a link says, the browser resolves the result to this registry.
func FuzzLocalPath(f *testing.F) {
	for _, seed := range []string{"/ui/?a=b", "//evil", "/\\evil", "/%2f%2fevil", "/.//evil", "/..//evil"} {
		f.Add(seed)
	}
	base, err := url.Parse("https://registry.example/auth/oidc/callback")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, next string) {
		got := localPath(next, "/home")
		u, err := base.Parse(strings.ReplaceAll(got, "\\", "/")) // as browsers do
		if err != nil || u.Host != base.Host || u.Scheme != "https" || strings.HasPrefix(u.Path, "//") || strings.ContainsAny(got, "\r\n\t") {
			t.Errorf("%q became %q, which is %v (%v)", next, got, u, err)
		}
	})
}
