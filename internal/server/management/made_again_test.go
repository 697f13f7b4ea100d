package management_test

import (
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/server/servertest"
	"github.com/purser-registry/purser/internal/webhook"
)

// changing matches what differs between answers about two things that are alike: times, ids, cursors
// and identifiers of requests.
var changing = regexp.MustCompile(`\d{4}-\d\d-\d\dT[^"]*|[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} [^"]*` +
	`|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|"(id|[a-z]+_id|next_page|age_seconds)":("[^"]*"|\d+)`)

// sameForAll asks all operations that read and whose path has the variable `name` for two values of it,
// and fails where the answers differ: where the first value, which something deleted had before, shows
// more than a new one. It returns how many answers there were.
func (r *registry) sameForAll(t *testing.T, name string, again, fresh string, values map[string]string) (n int) {
	t.Helper()
	operations, _ := operationsOf(t, r)
	for _, o := range operations {
		path := strings.TrimPrefix(o.path, "/api/v1")
		asked := strings.Contains(path, "{"+name+"}")
		for variable, value := range values {
			path = strings.ReplaceAll(path, "{"+variable+"}", url.PathEscape(value))
		}
		for _, parameter := range o.parameters {
			if parameter == map[string]string{"orgname": "namespace"}[name] {
				path, asked = path+"?"+parameter+"={"+name+"}", true
			}
		}
		if o.method != "GET" || !asked {
			continue
		}
		answers := [2]string{}
		for i, value := range []string{again, fresh} {
			a := r.Manage(t, "GET", strings.ReplaceAll(path, "{"+name+"}", value), "")
			text := string(a.Content)
			for k, part := range strings.Split(fresh, "/") {
				text = strings.ReplaceAll(text, part, strings.Split(again, "/")[k])
			}
			answers[i] = a.Status + " " + changing.ReplaceAllString(text, "…")
			if strings.Contains(path, "{"+name+"}") {
				n++
			}
		}
		if answers[0] != answers[1] {
			t.Errorf("%s %s: made again\n%s\nnew\n%s", o.id, path, answers[0], answers[1])
		}
	}
	return n
}

// TestMadeAgain: a repository with everything that belongs to one is deleted, and then its namespace, and
// somebody else makes them again under their names. No operation shows them more than of a name that was
// never used.
func TestMadeAgain(t *testing.T) {
	t.Parallel()
	root, values := filled(t)
	root.AddAccount(t, "stranger", false)
	stranger := root.as("stranger")
	for variable, value := range map[string]string{"tag": "v1", "image": strings.TrimPrefix(values["digest"], "sha256:"), "member": "alice", "membername": "alice", "username": "carol"} {
		values[variable] = value
	}
	purge := func() {
		t.Helper()
		root.Exec(t, "UPDATE repositories SET purge_after = now() WHERE deleted_at IS NOT NULL")
		root.Exec(t, "UPDATE top_level_namespaces SET purge_after = now() WHERE deleted_at IS NOT NULL")
		if _, err := root.Trash.PurgeExpired(t.Context()); err != nil {
			t.Fatal(err)
		}
	}

	root.Manage(t, "DELETE", "/repository/acme/app?override_holds=true", "").WantStatus(t, 204)
	for _, path := range []string{"acme/app", "acme/fresh"} {
		root.Manage(t, "POST", "/repository", `{"repository":"`+path+`"}`).WantStatus(t, 201)
		root.Grant(t, path, "stranger", auth.Administrator)
	}
	delete(values, "repository")
	for _, purged := range []bool{false, true} {
		if purged {
			purge()
		}
		if n := stranger.sameForAll(t, "repository", "acme/app", "acme/fresh", values); n < 40 {
			t.Errorf("only %d answers about repositories", n)
		}
	}

	values["repository"] = "acme/app"
	root.Manage(t, "DELETE", "/organization/acme?override_holds=true", "").WantStatus(t, 204)
	for _, name := range []string{"acme", "fresh"} {
		root.Manage(t, "POST", "/organization/", `{"name":"`+name+`"}`).WantStatus(t, 201)
		root.Grant(t, name, "stranger", auth.Administrator)
		stranger.Manage(t, "POST", "/repository", `{"repository":"`+name+`/app"}`).WantStatus(t, 201)
	}
	delete(values, "orgname")
	for _, purged := range []bool{false, true} {
		if purged {
			purge()
		}
		if n := stranger.sameForAll(t, "orgname", "acme", "fresh", values); n < 40 {
			t.Errorf("only %d answers about namespaces", n)
		}
		delete(values, "repository")
		stranger.sameForAll(t, "repository", "acme/app", "fresh/app", values)
	}
}

// TestCallbacksOfADeletedAccount: the callbacks that a deleted account waits for don't count for the next of
// its name.
func TestCallbacksOfADeletedAccount(t *testing.T) {
	t.Parallel()
	r := onDatabase(t, func(o *servertest.Options, d *db.DB) {
		var err error
		o.Access = &auth.Options{}
		if o.Management.Webhooks, err = webhook.New(webhook.Options{DB: d, Log: o.Log}); err != nil {
			t.Fatal(err)
		}
	})
	r.AddAccount(t, "root", true)
	root := r.as("root")
	root.Manage(t, "POST", "/organization", `{"name":"acme"}`).WantStatus(t, 201)
	ask := func() answer {
		return r.as("ann").Manage(t, "POST", "/organization/acme/exportlogs", `{"callback_url":"https://hooks.example.com/done"}`)
	}
	for range 2 {
		r.AddAccount(t, "ann", false)
		r.Grant(t, "acme", "ann", auth.Administrator)
		for range 50 {
			ask().WantStatus(t, 200)
		}
		ask().WantStatus(t, 429)
		root.Manage(t, "DELETE", "/superuser/users/ann", "").WantStatus(t, 204)
	}
}
