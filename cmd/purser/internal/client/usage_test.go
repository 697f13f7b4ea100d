package client

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
)

// TestUsage: 'purser usage' lists the namespaces of the registry, or the repositories of one namespace over all pages,
// with what is their own; what is the namespace's own only if the registry says so. A list that was cut says so.
func TestUsage(t *testing.T) {
	t.Parallel()
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer := `{"measured_from": "2026-03-01T00:00:00Z", "measured_at": "2026-03-01T00:00:00Z", "blobs": 9, "bytes": 4096, "trash_bytes": 1024,
			"unreferenced_bytes": 512, "disks": [{"of": "blobs", "free_bytes": 2048, "size_bytes": 8192}], "namespaces": [{"name": "acme", "blobs": 3, "bytes": 2048, "own_bytes": 512}]}`
		switch q := r.URL.Query(); {
		case strings.HasSuffix(r.URL.Path, "/acme/usage") && q.Get("next_page") == "":
			answer = `{"measured_at": "2026-03-01T00:00:00Z", "blobs": 3, "bytes": 2048, "repositories": [{"name": "acme/app", "blobs": 2, "bytes": 1536, "own_bytes": 1024}], "next_page": "x"}`
		case strings.HasSuffix(r.URL.Path, "/acme/usage"):
			answer = `{"measured_at": "2026-03-01T00:00:00Z", "blobs": 3, "bytes": 2048, "own_bytes": 256, "repositories": [{"name": "acme/web", "blobs": 1, "bytes": 512, "own_bytes": 0}]}`
		}
		w.Write([]byte(answer)) //nolint:errcheck // the client notices
	}))
	defer registry.Close()
	for _, c := range []struct{ args, want, without string }{
		{"", "stored 4.0 KiB in repositories 2.5 KiB in the trash alone 1.0 KiB in no repository 512 B free for blobs 2.0 KiB of 8.0 KiB NAMESPACE STORED OWN SHARED BLOBS acme 2.0 KiB 512 B 1.5 KiB 3", ""},
		{"acme", "namespace acme measured 2026-03-01 00:00:00 stored 2.0 KiB REPOSITORY STORED OWN SHARED BLOBS acme/app 1.5 KiB 1.0 KiB 512 B 2 acme/web 512 B 0 B 512 B 1", "of its own"},
		{"acme --limit 1", "acme/app", "acme/web"},
		{"acme -q", "acme/app acme/web", "STORED"},
		{"acme -o json", `"name": "acme/web"`, "next_page"},
	} {
		cmd, out := usageCommand(&command.Source{}), new(bytes.Buffer)
		cmd.SetOut(out)
		cmd.SetErr(out)
		cmd.SetArgs(append([]string{"--server", registry.URL}, strings.Fields(c.args)...))
		cmd.SilenceUsage = true
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Fatalf("usage %s: %v", c.args, err)
		}
		got := strings.Join(strings.Fields(out.String()), " ")
		if !strings.Contains(got, c.want) || c.without != "" && strings.Contains(got, c.without) {
			t.Errorf("usage %s prints\n%s\nwant %q, without %q", c.args, got, c.want, c.without)
		}
	}
}
