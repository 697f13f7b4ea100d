package client

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestIdentify: a name or the beginning of a UUID stands for an item only if no other one is meant.
func TestIdentify(t *testing.T) {
	t.Parallel()
	items := []item{
		{"5f0c9c1e-6b0a-4c8e-9d3b-2a1f0e9d8c7b", []string{"^v", ""}, "one"}, {"5f0cffff-6b0a-4c8e-9d3b-2a1f0e9d8c7b", []string{"5f0c9"}, "two"},
		{"abcd0000-6b0a-4c8e-9d3b-2a1f0e9d8c7b", []string{"twice"}, "three"}, {"abcd0001-6b0a-4c8e-9d3b-2a1f0e9d8c7b", []string{"twice"}, "four"},
	}
	for _, more := range []bool{false, true} {
		for text, want := range map[string]string{
			"^v": items[0].uuid, "5f0cf": items[1].uuid, "5F0C9C1E-": items[0].uuid, "abcd0000…": items[2].uuid,
			"": "isn't possible", "^": "isn't possible", "5f0": "isn't possible", "5f0c": "several", "5f0c9": "several", "twice": "several", "zz": "isn't possible",
		} {
			id, err := identify("RULE", "it", text, func() ([]item, bool, error) { return append([]item{}, items...), more, nil })
			switch {
			case strings.Contains(want, "-") && !more:
				if err != nil || id != want {
					t.Errorf("%q: %s, %v", text, id, err)
				}
			case err == nil || !more && !strings.Contains(err.Error(), want):
				t.Errorf("%q, more: %v: %s, %v", text, more, id, err)
			}
		}
	}
	whole := "FFFFFFFF-6b0a-4c8e-9d3b-2a1f0e9d8c7b"
	if id, err := identify("RULE", "it", whole, nil); err != nil || id != strings.ToLower(whole) {
		t.Errorf("a whole UUID: %s %v", id, err)
	}
}

// TestNamesInsteadOfUUIDs: rules are removed by their patterns, webhooks named by title or URL, policies
// by the beginning of their UUIDs; of several with the same name, none is touched.
func TestNamesInsteadOfUUIDs(t *testing.T) {
	t.Parallel()
	o, _ := furnished(t)
	o.ok("", "protection", "add", "acme", "^v1$")
	o.ok("", "protection", "add", "acme", "^v2$")
	if text := o.ok("", "protection", "remove", "acme", "^v1$", "--yes"); !strings.HasPrefix(text, "Removed rule ^v1$ (") {
		t.Errorf("%s", text)
	}
	o.fails(`RULE: "^v" isn't possible`, 2, "", "protection", "remove", "acme", "^v", "--yes")
	if list := column(t, o.ok("", "protection", "list", "acme"), "UUID"); len(list) != 1 {
		t.Errorf("rules are left: %q", list)
	}
	for _, title := range []string{"chat", "ci"} {
		o.ok("", "webhook", "create", "acme", "--url", "http://127.0.0.1:9/"+title, "--title", title, "--events", "push")
	}
	o.ok("", "webhook", "test", "acme", "chat")
	o.ok("", "webhook", "update", "acme", "http://127.0.0.1:9/ci", "--title", "chat")
	o.fails("several are called chat", 2, "", "webhook", "delete", "acme", "chat")
	o.ok("", "webhook", "delete", "acme", "http://127.0.0.1:9/ci")
	o.ok("", "webhook", "show", "acme", "chat")
	o.ok("", "policy", "create", "acme", "--num-tags", "100", "--yes")
	o.ok("", "policy", "create", "acme", "--older-than", "900d", "--yes")
	var list []struct{ UUID string }
	if err := json.Unmarshal([]byte(o.ok("", "policy", "list", "acme", "-o", "json")), &list); err != nil || len(list) != 2 {
		t.Fatal(list, err)
	}
	begin := list[0].UUID[:9]
	if begin == list[1].UUID[:9] {
		begin = list[0].UUID[:36]
	}
	if text := o.ok("", "policy", "show", "acme", begin); !strings.Contains(text, list[0].UUID) {
		t.Errorf("%s: %s", begin, text)
	}
	if text := o.ok("", "policy", "delete", "acme", begin, "--yes"); !strings.Contains(text, list[0].UUID) {
		t.Errorf("%s: %s", begin, text)
	}
	o.fails(`POLICY: "7" isn't possible`, 2, "", "policy", "show", "acme", "7")
	o.fails(`POLICY: "abcd" isn't possible`, 2, "", "prune", "approve", "acme", "abcd")
}
