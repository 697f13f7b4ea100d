package main

import (
	"regexp"
	"strings"
	"testing"
)

// TestTagPatterns: a pattern shows what it selects, and one that selects half of the tags needs their
// number; what is protected stays and is named.
func TestTagPatterns(t *testing.T) {
	t.Parallel()
	s, main, stats := yearOfPulls(t, false)
	for _, tag := range []string{"pr-7-a", "pr-7-b", "pr-70-a", "v1", "v2", "v3"} {
		s.push("acme/app", tag, tag)
	}
	s.refused("no terminal", "tag", "delete", "acme/app:pr-7-*")
	s.refused("add --count 3", "tag", "delete", "acme/app:v*", "--yes")
	s.refused("add --count 3", "tag", "expire", "acme/app:v*", "--in", "2d", "--yes", "--count", "2")
	s.refused("m is minutes", "tag", "expire", "acme/app:v1", "--in", "6m")
	s.refused("no unit", "tag", "expire", "acme/app:v1", "--in", "6")
	if got := s.run("tag", "expire", "acme/app:pr-7-*", "--in", "2d", "--yes"); !strings.Contains(got, "2 tags of acme/app will be deleted") {
		t.Errorf("expire prints %q", got)
	}
	if got := s.run("tag", "show", "acme/app:pr-7-a"); !regexp.MustCompile(`(?m)^expires +\d`).MatchString(got) {
		t.Errorf("show prints %q", got)
	}
	s.run("tag", "expire", "acme/app:pr-7-a", "--never")
	s.run("tag", "immutable", "acme/app:pr-7-b")
	s.refused("1 tag stayed", "tag", "delete", "acme/app:pr-7-*", "--yes")
	if got := strings.Join(first(s.run("tag", "list", "acme/app", "--sort", "name")), " "); got != "pr-7-b pr-70-a v1 v2 v3" {
		t.Errorf("left are %s", got)
	}
	s.run("tag", "immutable", "acme/app:pr-7-b", "--undo")
	s.push("acme/app", "pr-7-a", "pr-7-a")
	deleted := s.run("tag", "delete", "acme/app:pr-7-*", "--yes")
	undo := regexp.MustCompile(`purser (tag undo acme/app [0-9a-f-]{36})\n`).FindStringSubmatch(deleted)
	if len(undo) == 0 || !strings.Contains(deleted, "Deleted 2 tags of acme/app.") {
		t.Fatalf("delete prints %q", deleted)
	}
	s.push("acme/app", "pr-7-a", "pushed since")
	s.refused("acme/app:pr-7-a stays as it is: there is a tag of this name", strings.Fields(undo[1])...)
	if got := strings.Join(first(s.run("tag", "list", "acme/app", "--sort", "name")), " "); got != "pr-7-a pr-7-b pr-70-a v1 v2 v3" {
		t.Errorf("after the undo there are %s", got)
	}
	s.refused("knows no deletion", "tag", "undo", "acme/app", "6a1f0c2e-3b54-4c8e-9d3b-2a1f0e9d8c7b")
	s.refused("DELETION", "tag", "undo", "acme/app", "7")
	deleted = s.run("tag", "delete", "acme/app:pr-7-*", "--yes")
	undo = regexp.MustCompile(`purser (tag undo acme/app [0-9a-f-]{36})\n`).FindStringSubmatch(deleted)
	if len(undo) == 0 {
		t.Fatalf("delete prints %q", deleted)
	}
	if got := s.run(strings.Fields(undo[1])...); got != "Restored 2 tags of acme/app.\n" {
		t.Errorf("undo prints %q", got)
	}
	s.run("tag", "delete", "acme/app:pr-7-*", "--yes")
	if got := s.run("tag", "delete", "acme/app:pr-7-*", "--yes"); !strings.Contains(got, "No tag matches") {
		t.Errorf("a pattern without tags prints %q", got)
	}
	if got := s.run("namespace", "labels", "acme", "--expires-after"); !strings.Contains(got, "counts") || !strings.Contains(got, "is ignored") {
		t.Errorf("labels prints %q", got)
	}

	// exceptions and freeing
	s.run("policy", "create", "acme", "--older-than", "300d")
	if got := s.run("prune", "except", "acme/app"); !strings.Contains(got, "keeps every tag") {
		t.Errorf("except prints %q", got)
	}
	for _, args := range [][]string{{"prune", "exceptions", "acme"}, {"prune", "status", "acme"}, {"prune", "preview", "acme"}} {
		if got := s.run(args...); !strings.Contains(got, "EXCEPTION") {
			t.Errorf("%s prints %q", args, got)
		}
	}
	change(t, main, "UPDATE tags SET created_at = now() - interval '200 days', updated_at = NULL")
	change(t, stats, "DELETE FROM tagpullstatistics")
	s.refused("nothing can be deleted", "prune", "free", "1kB", "acme", "--yes")
	s.run("prune", "except", "acme/app", "--end", "--yes")
	if got := s.run("prune", "free", "1GB", "acme", "--dry-run"); !strings.Contains(got, "4 tags would be deleted") ||
		!strings.Contains(got, "Beware: last use is no proof") || strings.Contains(got, "and not months") {
		t.Errorf("free prints %q", got)
	}
	if got := s.run("prune", "free", "1GB", "--unused-for", "6m", "--yes"); !strings.Contains(got, "1 namespace") ||
		!strings.Contains(got, "Beware: 6m is 6 minutes, and not months: write 180d for those.\n") {
		t.Errorf("free prints %q", got)
	}
	s.run("prune", "run", "acme")
	if got := s.run("tag", "list", "acme/app"); strings.Contains(got, "v1") {
		t.Errorf("left are %s", got)
	}
}
