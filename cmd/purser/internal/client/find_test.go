package client

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
)

// TestFindCommand: the command prints what a search finds as clients write it, and says when there
// may be more.
func TestFindCommand(t *testing.T) {
	t.Parallel()
	digest := "sha256:" + strings.Repeat("ab", 32)
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.URL.RequestURI(); got != "/api/v1/find/all?limit=3&query=v1%25" {
			t.Errorf("asked for %s", got)
		}
		w.Header().Set("Content-Type", "application/json")
		w.Write([]byte(`{"results": [{"kind": "repository", "name": "acme/app", "repository": "acme/app"},` + //nolint:errcheck // the client notices
			`{"kind": "tag", "name": "acme/app:v1", "repository": "acme/app", "tag": "v1", "digest": "` + digest + `"},` +
			`{"kind": "manifest", "name": "acme/app@` + digest + `", "repository": "acme/app", "digest": "` + digest + `", "tags": ["v1", "v2"]}], "more": ["tag"]}`))
	}))
	defer registry.Close()
	var out bytes.Buffer
	cmd := findCommand(&command.Source{})
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"v1%", "--limit", "3", "--server", registry.URL})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"repository  acme/app", "acme/app:v1", "v1, v2", "There may be more (tag)"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("printed %q, want %q", out.String(), want)
		}
	}
}
