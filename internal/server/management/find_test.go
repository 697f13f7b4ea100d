package management_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/api"
)

// TestFind: the search answers what the client may read, in the words of a client, and the host of a
// pasted reference may be the registry's own.
func TestFind(t *testing.T) {
	t.Parallel()
	c := restricted(t)
	find := func(r *registry, text string) string {
		t.Helper()
		var found api.FoundItems
		r.Manage(t, "GET", "/find/all?query="+url.QueryEscape(text), "").Into(t, 200, &found)
		var list []string
		for _, i := range found.Results {
			list = append(list, i.Kind+" "+i.Name)
		}
		return strings.Join(append(list, found.More...), ", ")
	}
	host := strings.TrimPrefix(c.URL, "http://")
	digest := c.root.Put(t, "acme/team/app", "v1", c.root.Simple(t, "acme/team/app", 1, nil)).String()
	for text, want := range map[string]string{
		"acme":                         "namespace acme, repository acme/team/app",
		"v1":                           "tag acme/team/app:v1",
		host + "/acme/team/app:v1":     "repository acme/team/app, tag acme/team/app:v1",
		"elsewhere/acme/team/app:v1":   "",
		digest[7:13]:                   "manifest acme/team/app@" + digest,
		"acme/team/app@" + digest[:12]: "repository acme/team/app, manifest acme/team/app@" + digest,
	} {
		for _, who := range []*registry{c.root, c.reader} {
			if got := find(who, text); got != want {
				t.Errorf("%s finds %q, want %q", text, got, want)
			}
		}
		for _, who := range []*registry{c.stranger, c.nobody} {
			if got := find(who, text); got != "" {
				t.Errorf("%s: who may read nothing finds %q", text, got)
			}
		}
	}
	c.reader.Manage(t, "GET", "/find/all", "").WantStatus(t, 400)
	c.reader.Manage(t, "GET", "/find/all?query="+strings.Repeat("a", 513), "").WantStatus(t, 400)
}
