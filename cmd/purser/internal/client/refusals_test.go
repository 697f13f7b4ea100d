package client

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestRefusalsNameTheFlag: where a flag of the command would allow what the registry has refused, the error
// names the flag, and no parameter of the API.
func TestRefusalsNameTheFlag(t *testing.T) {
	t.Parallel()
	o, root := furnished(t)
	held := root.Put(t, "acme/app", "v1", root.Simple(t, "acme/app", 99, nil))
	root.Put(t, "acme/app", "v2", root.Simple(t, "acme/app", 98, nil))
	root.Put(t, "acme/app", "fixed", root.Simple(t, "acme/app", 97, nil))
	root.Put(t, "acme/app", "free", root.Simple(t, "acme/app", 96, nil))
	root.Manage(t, http.MethodPut, "/holds/prod", fmt.Sprintf(`{"digests": [%q]}`, held)).WantStatus(t, 200)
	o.ok("", "protection", "add", "acme", "^v2$")
	o.ok("", "tag", "immutable", "acme/app:fixed")
	o.ok("", "webhook", "create", "acme", "--url", "http://127.0.0.1:9/hook", "--title", "off", "--events", "push")
	o.ok("", "webhook", "update", "acme", "off", "--disable")
	o.ok("", "repo", "delete", "acme/r1", "--yes")
	root.Put(t, "acme/r1", "v1", root.Simple(t, "acme/r1", 1, nil))
	for _, c := range []struct {
		args, want string
	}{
		{"tag delete acme/app:v1 --yes", "; --override-holds deletes it all the same"},
		{"tag delete acme/app:v2 --yes", "; delete it with --override-protection, or remove the rule with \"purser protection remove\""},
		{"tag delete acme/app:fixed --yes", "; delete it with --override-protection, or let a maintainer undo that with \"purser tag immutable --undo\""},
		{"repo delete acme/app --yes", "; --override-holds deletes it all the same"},
		{"namespace delete acme --yes", "; --override-holds deletes it all the same"},
		{"trash restore acme/r1", "restore it under another one with --as NAME"},
		{"repo delete acme/app", "add --yes"},
		{"webhook test acme off", "enable it first with \"purser webhook update --enable\""},
	} {
		code, _, stderr := o.purser("", strings.Fields(c.args)...)
		if code != 3 || !strings.Contains(stderr, c.want) || parameterOfAPI(stderr) != "" {
			t.Errorf("purser %s ends with %d: %swant %q, and not %q", c.args, code, stderr, c.want, parameterOfAPI(stderr))
		}
	}
	code, _, stderr := o.purser("", "tag", "delete", "acme/app:*", "--yes", "--count", "4")
	for _, want := range []string{"acme/app:v1 stays: ", "--override-holds deletes it", "name it alone with --override-protection to delete it"} {
		if code != 3 || !strings.Contains(stderr, want) || parameterOfAPI(stderr) != "" {
			t.Errorf("by a pattern: %d, %swant %q", code, stderr, want)
		}
	}
	// A report whose list is empty though the reporter holds something.
	code, _, stderr = o.purser("\n", "report", "stdin", "prod")
	if code == 0 || !strings.Contains(stderr, "--allow-empty") || parameterOfAPI(stderr) != "" {
		t.Errorf("an empty report: %d %s", code, stderr)
	}
}

// parameterOfAPI returns a parameter of the API that an error names, "" if it names none.
func parameterOfAPI(text string) string {
	for _, name := range []string{"override_protection", "override_holds", "allow_empty", "replace_cluster"} {
		if strings.Contains(text, name) {
			return name
		}
	}
	return ""
}
