package client

import (
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
	"github.com/purser-registry/purser/internal/server/servertest"
	"github.com/purser-registry/purser/internal/webhook"
)

// furnished returns a registry with a trash, webhooks and statistics of pulls, and the repositories
// acme/r1 to acme/r5, which nobody has pulled, as its administrator sees it.
func furnished(t *testing.T) (o *office, root *servertest.Registry) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	o = newOffice(t, func(o *servertest.Options, d *db.DB) {
		o.TrashKeep = time.Hour
		var err error
		o.Management.Webhooks, err = webhook.New(webhook.Options{DB: d, AllowPrivateHooks: true, Log: o.Log})
		must(err)
		o.Management.Pulls, err = pullstats.NewReader(pullstats.Options{DB: d})
		must(err)
		o.Management.PullStats, err = pullstats.NewSyncWorker(pullstats.SyncOptions{
			Databases: statsdb.Databases{Log: d, Stats: d, Alive: catalog.LivingNamespaces}, Logger: slog.New(slog.DiscardHandler)})
		must(err)
	})
	o.login("root")
	root = o.r.With(servertest.As("root"))
	for i := range 5 {
		repository := fmt.Sprint("acme/r", i+1)
		root.Put(t, repository, "v1", root.Simple(t, repository, i, nil))
	}
	return o, root
}

// TestPrintedNamesOfMore: what the lists of the trash, of holds, webhooks, their notices, policies and
// runs print is accepted as it is printed.
func TestPrintedNamesOfMore(t *testing.T) {
	t.Parallel()
	o, root := furnished(t)
	held := root.Put(t, "acme/app", "v1", root.Simple(t, "acme/app", 99, nil)) // no other repository has it
	root.Manage(t, http.MethodPut, "/holds/prod", fmt.Sprintf(`{"digests": [%q]}`, held)).WantStatus(t, 200)
	root.Manage(t, http.MethodPut, "/holds/staging?namespace=acme", fmt.Sprintf(`{"digests": [%q]}`, held)).WantStatus(t, 200)
	o.ok("", "repo", "delete", "acme/r1", "--yes")
	o.ok("", "repo", "delete", "acme/r2", "--yes")
	o.ok("", "policy", "create", "acme", "--num-tags", "100", "--yes")
	o.ok("", "policy", "create", "acme/app", "--num-tags", "100", "--yes")
	o.ok("", "webhook", "create", "acme", "--url", "http://127.0.0.1:9/hook", "--events", "push")
	hook := column(t, o.ok("", "webhook", "list", "acme"), "UUID")[0]
	o.ok("", "webhook", "test", "acme", hook)
	root.Exec(t, `INSERT INTO autopruneruns (id, namespace_id, namespace, state, started_at, ended_at)
		SELECT gen_random_uuid(), id, name, 'success', now(), now() FROM top_level_namespaces WHERE name = 'acme'`)
	o.accepts([]listed{
		{[]string{"trash", "list"}, "ID", [][]string{{"trash", "show", "{}"}}},
		{[]string{"trash", "list", "acme"}, "NAME", [][]string{{"trash", "show", "{}"}, {"trash", "restore", "{}"}}},
		{[]string{"hold", "list"}, "REPORTER", [][]string{{"hold", "show", "{}"}, {"hold", "delete", "{}", "--yes"}}},
		{[]string{"hold", "list", "--namespace", "acme"}, "REPORTER", [][]string{{"hold", "show", "{}", "--namespace", "acme"}, {"hold", "delete", "{}", "--namespace", "acme", "--yes"}}},
		{[]string{"webhook", "deliveries", "acme", hook}, "DELIVERY", [][]string{{"webhook", "show", "acme", hook, "{}"}}},
		{[]string{"webhook", "list", "acme"}, "UUID", [][]string{{"webhook", "show", "acme", "{}"}, {"webhook", "update", "acme", "{}", "--title", "x"},
			{"webhook", "test", "acme", "{}"}, {"webhook", "deliveries", "acme", "{}"}, {"webhook", "delete", "acme", "{}"}}},
		{[]string{"policy", "list", "acme"}, "UUID", [][]string{{"policy", "show", "acme", "{}"}, {"policy", "delete", "acme", "{}", "--yes"}}},
		{[]string{"policy", "list", "acme/app"}, "UUID", [][]string{{"policy", "show", "acme/app", "{}"}, {"policy", "delete", "acme/app", "{}", "--yes"}}},
		{[]string{"prune", "runs"}, "RUN", [][]string{{"prune", "show", "{}"}}},
		{[]string{"prune", "runs", "acme"}, "NAMESPACE", [][]string{{"prune", "runs", "{}"}}},
	})
}

// TestTrashCommands: a deleted repository and a deleted namespace are shown, restored and purged by the
// names that they had.
func TestTrashCommands(t *testing.T) {
	t.Parallel()
	o, root := furnished(t)
	root.Put(t, "old/app", "v1", root.Simple(t, "old/app", 1, nil))
	prints := func(want string, args ...string) {
		t.Helper()
		if text := o.ok("", args...); !strings.Contains(text, want) {
			t.Errorf("purser %q prints\n%s\nwant %q", args, text, want)
		}
	}
	o.ok("", "repo", "delete", "acme/r1", "--yes")
	o.ok("", "namespace", "delete", "old", "--yes")
	if names := column(t, o.ok("", "trash", "list"), "NAME"); len(names) != 2 || !slices.Contains(names, "acme/r1") || !slices.Contains(names, "old") {
		t.Errorf("the trash has %q", names)
	}
	prints("acme/r1", "trash", "show", "acme/r1")
	o.fails("nothing in the trash was called acme/r9", 3, "", "trash", "show", "acme/r9")
	prints("Restored acme/r1.\n", "trash", "restore", "acme/r1")
	prints("v1", "tag", "list", "acme/r1")
	o.fails("nothing in the trash was called acme/r1", 3, "", "trash", "restore", "acme/r1")
	prints("Restored new.\n", "trash", "restore", "old", "--as", "new")
	prints("v1", "tag", "list", "new/app")

	o.ok("", "repo", "delete", "acme/r2", "--yes")
	o.fails("Delete the repository acme/r2 (repository-", 3, "", "trash", "purge", "acme/r2")
	prints("Purged acme/r2.\n", "trash", "purge", "acme/r2", "--yes")
	prints("The trash is empty.", "trash", "list")
}

// TestUnpulledLimit: a list of repositories that weren't pulled has as many as --limit says, though the
// registry's pages have more.
func TestUnpulledLimit(t *testing.T) {
	t.Parallel()
	o, root := furnished(t)
	root.Manage(t, http.MethodPost, "/pull_statistics/flush", "").WantStatus(t, 200)
	for args, want := range map[string]int{"": 5, "--limit 3": 3, "--limit 5": 5, "--limit 0": 5, "acme --limit 1": 1} {
		text := o.ok("", append([]string{"pulls", "unpulled"}, strings.Fields(args)...)...)
		if n := strings.Count(text, "acme/r"); n != want || strings.Contains(text, "and more") != (want < 5) {
			t.Errorf("pulls unpulled %s prints %d repositories, want %d:\n%s", args, n, want, text)
		}
	}
}
