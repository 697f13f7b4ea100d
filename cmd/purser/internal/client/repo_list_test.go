package client

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
)

// TestListsAskForSizesThatTheyShow: lists of repositories and namespaces ask the registry for sizes only if they
// show them, and not for those of a long list. Without sizes they have no column for them.
func TestListsAskForSizesThatTheyShow(t *testing.T) {
	t.Parallel()
	asked := ""
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.Query().Get("statistics")
		w.Header().Set("Content-Type", "application/json")
		w.Write([]byte(`{"repositories": [{"repository": "acme/app"}], "namespaces": [{"name": "acme"}]}`)) //nolint:errcheck // the client notices
	}))
	defer registry.Close()
	for _, c := range []struct {
		args string
		want bool
	}{
		{"", true}, {"-o json", true}, {"--limit 500", true}, {"-q", false}, {"--limit 0", false}, {"--limit 501", false}, {"--limit 0 -o json", false},
		{"--limit 0 -q", false}, {"--limit 0 --statistics", true}, {"--statistics -q", false},
	} {
		for name, group := range map[string]func(*command.Source) *cobra.Command{"repo": repoCommand, "namespace": namespaceCommand} {
			if name == "namespace" && strings.Contains(c.args, "--statistics") {
				continue
			}
			cmd, out := group(&command.Source{}), new(bytes.Buffer)
			cmd.SetOut(out)
			cmd.SetErr(io.Discard)
			cmd.SetArgs(append([]string{"list", "--server", registry.URL}, strings.Fields(c.args)...))
			if err := cmd.ExecuteContext(t.Context()); err != nil {
				t.Fatalf("%s list %s: %v", name, c.args, err)
			}
			if got := asked == "true"; got != c.want {
				t.Errorf("%s list %s asks for statistics: %v, want %v", name, c.args, got, c.want)
			}
			text := !strings.Contains(c.args, "-q") && !strings.Contains(c.args, "json")
			if got := strings.Contains(out.String(), "SIZE"); got != (text && c.want) {
				t.Errorf("%s list %s has sizes: %v:\n%s", name, c.args, got, out)
			}
		}
	}
}
