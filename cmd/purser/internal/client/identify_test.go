package client

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/server/servertest"
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

// TestBeginningsOfUUIDs: what has a UUID alone is written by how that begins: runs, notices, log-ins of browsers,
// deletions by a pattern, and what the audit log is asked for. Tokens have titles too. Of several, none is taken.
func TestBeginningsOfUUIDs(t *testing.T) {
	t.Parallel()
	o, root := furnished(t)
	begin := func(id string) string { return id[:9] }
	first := func(heading string, args ...string) string {
		t.Helper()
		return column(t, o.ok("", args...), heading)[0]
	}
	root.Exec(t, `INSERT INTO autopruneruns (id, namespace_id, namespace, state, started_at, ended_at)
		SELECT gen_random_uuid(), id, name, 'success', now(), now() FROM top_level_namespaces WHERE name = 'acme'`)
	run := first("RUN", "prune", "runs")
	if text := o.ok("", "prune", "show", begin(run)); !strings.Contains(text, run) {
		t.Errorf("the run %s is %s", run, text)
	}
	o.ok("", "prune", "undo", begin(run))
	o.fails(`RUN: "zzzz" isn't possible`, 2, "", "prune", "show", "zzzz")

	o.ok("", "webhook", "create", "acme", "--url", "http://127.0.0.1:9/hook", "--title", "chat", "--events", "push")
	o.ok("", "webhook", "test", "acme", "chat")
	notice := first("DELIVERY", "webhook", "deliveries", "acme", "chat")
	if text := o.ok("", "webhook", "show", "acme", "chat", begin(notice)); !strings.Contains(text, notice) {
		t.Errorf("the notice %s is %s", notice, text)
	}

	root.Put(t, "acme/app", "pr-1", root.Simple(t, "acme/app", "pr", nil))
	root.Put(t, "acme/app", "pr-2", root.Simple(t, "acme/app", "pr", nil))
	root.Put(t, "acme/app", "main", root.Simple(t, "acme/app", "main", nil))
	root.Put(t, "acme/app", "next", root.Simple(t, "acme/app", "main", nil))
	root.Put(t, "acme/app", "last", root.Simple(t, "acme/app", "main", nil))
	_, deletion, _ := strings.Cut(o.ok("", "tag", "delete", "acme/app:pr-*", "--yes"), "purser tag undo acme/app ")
	deletion = strings.TrimSpace(deletion)
	for _, args := range [][]string{{"audit", "list", "acme"}, {"audit", "list"}, {"audit", "list", "acme/app", "--kind", "delete_tag"}} {
		if kinds := column(t, o.ok("", append(args, "--run", begin(deletion))...), "KIND"); len(kinds) != 2 || kinds[0] != "delete_tag" {
			t.Errorf("purser %q lists %q of the deletion", args, kinds)
		}
	}
	o.fails("none is called so", 2, "", "audit", "list", "acme", "--run", "0000")
	o.fails("at least 4 digits", 2, "", "audit", "list", "acme", "--policy", "000")
	if text := o.ok("", "tag", "undo", "acme/app", begin(deletion)); text != "Restored 2 tags of acme/app.\n" {
		t.Errorf("undone: %s", text)
	}

	o.ok("", "policy", "create", "acme", "--num-tags", "100", "--yes")
	policy := first("UUID", "policy", "list", "acme")
	o.ok("", "policy", "delete", "acme", begin(policy), "--yes")
	if kinds := column(t, o.ok("", "audit", "list", "acme", "--policy", begin(policy)), "KIND"); len(kinds) != 2 {
		t.Errorf("the entries of a deleted policy are %q", kinds)
	}

	for _, title := range []string{"ci", "twice", "twice"} {
		o.ok("", "token", "create", title)
	}
	o.fails("several are called twice", 2, "", "token", "revoke", "twice", "--yes")
	if text := o.ok("", "token", "revoke", "ci", "--yes"); !strings.HasPrefix(text, "Revoked token ") {
		t.Errorf("%s", text)
	}
	uuid := ""
	for i, title := range column(t, o.ok("", "token", "list"), "TITLE") {
		if title == "ci" {
			t.Error("the token is still there")
		}
		if title == "twice" {
			uuid = column(t, o.ok("", "token", "list"), "UUID")[i]
		}
	}
	if text := o.ok("", "token", "revoke", begin(uuid), "--yes"); text != "Revoked token "+uuid+".\n" {
		t.Errorf("%s", text)
	}
	o.fails("none is called so", 2, "", "session", "end", "abcd")

	// Whoever may not list what there is names it whole.
	o.r.AddAccount(t, "ann", false)
	o.ok("", "grant", "set", "acme", "maintainer", "--user", "ann")
	o.ok(servertest.PasswordOf("ann")+"\n", "login", "--username", "ann", "--password-stdin", "--replace")
	o.fails("at least 4 digits", 2, "", "prune", "show", "zzzz")
	o.fails("Write the whole UUID", 2, "", "prune", "show", begin(run))
	o.ok("", "prune", "show", run)
}
