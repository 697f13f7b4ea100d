package client

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/server/servertest"
)

var gap = regexp.MustCompile(` {2,}`)

// column returns the cells of a printed table below a heading.
func column(t *testing.T, text, heading string) (cells []string) {
	t.Helper()
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	at := strings.Index(lines[0], heading)
	if at < 0 {
		t.Fatalf("no column %s in\n%s", heading, text)
	}
	for _, line := range lines[1:] {
		if line == "" {
			break // what follows a table
		}
		if at < len(line) {
			cells = append(cells, gap.Split(line[at:], 2)[0])
		}
	}
	return cells
}

// listed is a command that lists names under a heading, and the commands that take such a name, for
// which {} stands.
type listed struct {
	list    []string
	heading string
	take    [][]string
}

// accepts fails the test if a command refuses a name as another one lists it.
func (o *office) accepts(list []listed) {
	o.t.Helper()
	for _, c := range list {
		text := o.ok("", c.list...)
		cells := column(o.t, text, c.heading)
		if len(cells) == 0 {
			o.t.Errorf("purser %q lists nothing:\n%s", c.list, text)
		}
		for _, cell := range cells {
			for _, take := range c.take {
				args := make([]string, len(take))
				for i, a := range take {
					args[i] = strings.ReplaceAll(a, "{}", cell)
				}
				if code, _, stderr := o.purser("", args...); code != 0 {
					o.t.Errorf("purser %q prints %q under %s, and purser %q refuses it: %s", c.list, cell, c.heading, args, stderr)
				}
			}
		}
	}
}

// TestPrintedNamesAreAccepted: whatever name or identifier a command lists in a table, the commands that
// take such a name accept it as it is printed.
func TestPrintedNamesAreAccepted(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.login("root")
	root := o.r.With(servertest.As("root"))
	root.Put(t, "acme/app", "v1", root.Simple(t, "acme/app", 1, nil))
	root.Put(t, "acme/deep/web", "V1.0_rc", root.Simple(t, "acme/deep/web", 1, nil))
	secret := "correct-horse-battery\n"
	for _, args := range [][]string{
		{"user", "create", "alice", "--password-stdin"}, {"robot", "create", "acme+ci", "--role", "writer"},
		{"team", "create", "acme", "developers", "--role", "reader"}, {"team", "add", "acme", "developers", "alice", "acme+ci"},
		{"grant", "set", "acme", "reader", "--user", "alice"}, {"grant", "set", "acme/app", "writer", "--robot", "ci"},
		{"grant", "set", "acme/app", "reader", "--team", "developers"}, {"token", "create", "laptop"},
		{"protection", "add", "acme/app", "^v1$"}, {"quota", "set", "acme", "--tags", "10"},
	} {
		stdin := ""
		if slices.Contains(args, "--password-stdin") {
			stdin = secret
		}
		o.ok(stdin, args...)
	}
	o.accepts([]listed{
		{[]string{"namespace", "list"}, "NAMESPACE", [][]string{{"namespace", "show", "{}"}, {"repo", "list", "{}"}, {"robot", "list", "{}"}, {"team", "list", "{}"}, {"grant", "list", "{}"},
			{"protection", "list", "{}"}, {"quota", "show", "{}"}, {"trash", "list", "{}"}, {"audit", "list", "{}"}}},
		{[]string{"repo", "list"}, "REPOSITORY", [][]string{{"repo", "show", "{}"}, {"tag", "list", "{}"}, {"grant", "list", "{}"}, {"protection", "list", "{}"}, {"audit", "list", "{}"}}},
		{[]string{"tag", "list", "acme/deep/web"}, "TAG", [][]string{{"tag", "show", "acme/deep/web:{}"}}},
		{[]string{"tag", "list", "acme/app"}, "DIGEST", [][]string{{"tag", "move", "acme/app:moved", "{}"}}},
		{[]string{"robot", "list", "acme"}, "ROBOT", [][]string{{"robot", "show", "{}"}, {"grant", "set", "acme/app", "reader", "--robot", "{}"}, {"grant", "set", "acme/app", "reader", "--user", "{}"}, {"robot", "limit", "{}", "--actions", "pull"}}},
		{[]string{"team", "list", "acme"}, "TEAM", [][]string{{"team", "members", "acme", "{}"}, {"grant", "set", "acme/app", "reader", "--team", "{}"}}},
		{[]string{"team", "members", "acme", "developers"}, "NAME", [][]string{{"team", "remove", "acme", "developers", "{}"}, {"team", "add", "acme", "developers", "{}"}}},
		{[]string{"user", "list"}, "NAME", [][]string{{"user", "show", "{}"}, {"grant", "set", "acme/app", "reader", "--user", "{}"}}},
		{[]string{"token", "list"}, "UUID", nil},
		{[]string{"protection", "list", "acme/app"}, "UUID", [][]string{{"protection", "remove", "acme/app", "{}", "--yes"}}},
		{[]string{"quota", "list"}, "NAMESPACE", [][]string{{"quota", "show", "{}"}}},
	})
	o.ok("", "tag", "delete", "acme/app:v1", "--yes")
	entries := o.ok("", "audit", "list", "acme/app", "--kind", "delete_tag")
	deleted := regexp.MustCompile(`sha256:[0-9a-f…]+`).FindString(entries)
	if text := o.ok("", "tag", "restore", "acme/app:v1", deleted); len(deleted) > 40 || !strings.Contains(text, " points to "+deleted) || !strings.HasSuffix(text, " again.\n") {
		t.Errorf("the audit log shows %s: %s", deleted, text)
	}
	for args, want := range map[string]string{
		"tag restore acme/app:v1 sha256:00000000": "no manifest of acme/app", "tag move acme/app:v1 sha256:00000000": "give the whole digest",
		"tag move acme/app:v1 sha256:": "DIGEST", "tag move acme/app:v1 latest": "DIGEST",
	} {
		o.fails(want, 2, "", strings.Fields(args)...)
	}
	grants := o.ok("", "grant", "list", "acme/app")
	kinds, names := column(t, grants, "KIND"), column(t, grants, "NAME")
	for i, kind := range kinds {
		o.ok("", "grant", "remove", "acme/app", "--"+kind, names[i])
	}
	for _, id := range column(t, o.ok("", "token", "list"), "UUID") {
		if code, _, stderr := o.purser("", "token", "revoke", id, "--yes"); code != 0 && !strings.Contains(stderr, "log in") { // the last is this log-in's
			t.Errorf("token revoke %s: %s", id, stderr)
		}
	}
}

// TestPrintedPullsSince: the lists of what was pulled most and of what wasn't say since when pulls are
// known, if that is less than the days that one has asked for.
func TestPrintedPullsSince(t *testing.T) {
	t.Parallel()
	o, root := furnished(t)
	root.Manage(t, http.MethodPost, "/pull_statistics/flush", "").WantStatus(t, 200)
	for ago, want := range map[string]string{"5 days": "Pulls from before ", "50 days": ""} {
		if _, err := root.DB.Pool.Exec(t.Context(),
			"UPDATE pullstatisticsprocessingstate SET history_since = now() - interval '60 days', recorded_since = now() - $1::text::interval", ago); err != nil {
			t.Fatal(err)
		}
		var day string
		if err := root.DB.Pool.QueryRow(t.Context(),
			"SELECT to_char(GREATEST(recorded_since, now() - interval '29 days') AT TIME ZONE 'UTC', 'YYYY-MM-DD') FROM pullstatisticsprocessingstate").Scan(&day); err != nil {
			t.Fatal(err)
		}
		if text := o.ok("", "pulls", "unpulled"); !strings.Contains(text, "\nNobody pulled from these since "+day+", in UTC.") {
			t.Errorf("pulls are known for %s: %s", ago, text)
		}
		for _, args := range [][]string{{"pulls", "top"}, {"pulls", "top", "acme/r1"}} {
			if text := o.ok("", args...); strings.Contains(text, "may be missing") != (want != "") || !strings.Contains(text, want) {
				t.Errorf("pulls are known for %s, and purser %q prints %s", ago, args, text)
			}
		}
	}
}
