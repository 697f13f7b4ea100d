package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// places are the directories whose statements need mutations.
var places = []string{"internal/catalog", "internal/catalog/browse", "internal/catalog/trash", "internal/quota", "internal/protection", "internal/hold", "internal/autoprune", "internal/autoprune/policies", "internal/autoprune/snapshot", "internal/gc", "internal/db/routines"}

// locking matches the locks in statements, and the calls that take such a lock; looking matches the
// looks once more before something is written or deleted.
var (
	locking = regexp.MustCompile(`\bFOR (?:(?:NO KEY )?UPDATE|(?:KEY )?SHARE)\b(?: OF \w+)?(?: SKIP LOCKED)?` +
		`|\bpg_(?:try_)?advisory_(?:xact_)?lock(?:_shared)?\(|\bpurser_holds_lock\(\)|(?:\.|= )lockHolds\(|\.lockTask(?:AndPolicies)?\(`)
	looking = regexp.MustCompile(`'tag_protection_version'\) IS DISTINCT FROM|\bpurser_quota_(?:fits|close)\(|\breturn (?:\w+, )?errOutdated\b`)
)

// exception is why statements have no mutation.
type exception struct {
	file   string
	text   string // a part of the file, found once, with the locks and looks; "": those of the whole file
	reason string
}

// Reasons of several exceptions.
const (
	pushes   = "of pushes and uploads, not of quotas, the trash, holds, protection or pruning: TestAttack… and TestRace… have the races"
	puts     = "of pushes against garbage collection: TestRacePutHolds… and TestRaceSubject… of package gc, and tools/model"
	inModel  = "a step of garbage collection: tools/model takes it out of internal/gc/protocol.pml, and must find the protocol wrong"
	reviews  = "of garbage collection beside clients and other reviewers: TestRace… and TestReviewersAndSweeperWorkTogether of package gc"
	callers  = "each caller has a mutation of its own"
	sharedBy = "the transactions of a time slice before and after it have mutations; no test lets the lease end in between"
)

// exceptions are the statements without a mutation.
var exceptions = []exception{
	// catalog
	{"internal/catalog/batch.go", `b.Exec("SELECT purser_holds_lock()")`, callers},
	{"internal/catalog/blobs.go", "", pushes},
	{"internal/catalog/repositories.go", "", "of the recorders of pulls, and of new repositories: TestNewRepositoryInDyingNamespace"},
	{"internal/catalog/delete.go", "'{}'),\n\t\t\t(SELECT value FROM settings WHERE name = 'tag_protection_version') IS DISTINCT FROM $4",
		"a look without a lock, to refuse early: the statement under the locks looks again, and has a mutation"},
	{"internal/catalog/foreign.go", "", "of imports of another registry's storage: no client writes meanwhile"},
	{"internal/catalog/lost.go", "", pushes},
	{"internal/catalog/put_manifest.sql", "count(pg_advisory_xact_lock(1886745443, key))", pushes},
	{"internal/catalog/put_manifest.sql", "AND lost_at IS NULL FOR KEY SHARE) b) locked;", puts},
	{"internal/catalog/put_manifest.sql", "AND blob_digest = want.digest\n\t\tFOR KEY SHARE) l) locked;", puts},
	{"internal/catalog/put_manifest.sql", "AND digest = want.digest\n\t\tFOR KEY SHARE) m) locked;", puts},
	{"internal/catalog/put_manifest.sql", "AND digest = @subject AND purser_accepted()\nFOR KEY SHARE;", puts},
	{"internal/catalog/put_manifest.sql", "AND digest = @digest AND purser_accepted()\n\tFOR KEY SHARE\n", puts},
	{"internal/catalog/put_manifest.sql", "SELECT pg_advisory_xact_lock(1886745444, ", puts},
	{"internal/catalog/put_manifest.sql", "AND manifest_id = loses.id\n\tFOR UPDATE) q;", "only orders locks, against deadlocks"},
	{"internal/catalog/put_manifest.sql", "AND digest = @digest\n\tFOR KEY SHARE) locked;", puts},
	{"internal/catalog/upload_commit.go", "", pushes},
	{"internal/catalog/uploads.go", "", pushes},
	{"internal/catalog/visibility.go", "", "of stars, which decide about nothing"},
	// pruning
	{"internal/autoprune/snapshot/configurations.go", "", "lets the foreign key hold: without it a blob that goes meanwhile is an error, and nothing is stored"},
	{"internal/autoprune/delete.go", "u.stopCapped(full)\n\t\treturn errOutdated", "not a look: the deletion was rolled back at the cap"},
	{"internal/autoprune/delete.go", "if _, err := u.p.lockTaskAndPolicies(ctx, q.Tx, u.task); err != nil {", sharedBy},
	{"internal/autoprune/housekeeping.go", "", "lets the foreign key hold: without it a namespace that goes meanwhile is an error, and the next look makes the tasks"},
	{"internal/autoprune/rests.go", "if err := u.p.lockTask(ctx, tx, u.task); err != nil {", sharedBy},
	{"internal/autoprune/rests.go", "FOR UPDATE OF r`", "who changes the row has locked the namespace's task before"},
	{"internal/autoprune/policies/setting.go", "", "of the start of a process: replaceDefault updates the same row later, and two starts at once end with one of their policies"},
	{"internal/autoprune/tasks.go", "AND lease = $2 FOR NO KEY UPDATE", "the condition on the lease has a mutation; no test lets the lease end between this statement and the commit"},
	{"internal/autoprune/tasks.go", "if _, err := p.lockTaskAndPolicies(ctx, q.Tx, t); err != nil {", sharedBy},
	// garbage collection
	{"internal/gc/failed_reviews.go", "", reviews},
	{"internal/gc/pause.go", "", "of backups: the tests of package backup have a sweeper beside them"},
	{"internal/gc/pending.go", "", "of sweepers and backups: TestSweepersShareTheWork, and the tests of package backup"},
	{"internal/gc/review.go", "= lockHolds(ctx, tx)", callers},
	{"internal/gc/review_blobs.go", "", inModel},
	{"internal/gc/review_links.go", "", reviews},
	{"internal/gc/review_manifests.go", "", inModel},
	{"internal/gc/review_referrers.go", "", inModel},
	// routines
	{"internal/db/routines/gc_tracking.sql", "", "of triggers for garbage collection: TestRace… of package gc and TestAttackLostBlob… have the races"},
	{"internal/db/routines/imports.sql", "", "of imports of another registry's storage: no client writes meanwhile"},
	{"internal/db/routines/loginfailures.sql", "", "of log-ins: TestConcurrentGuesses of package throttle"},
	{"internal/db/routines/quotas.sql", "SELECT s.slot IS NOT NULL AND purser_quota_fits(s, ", "a look without a lock: the statement that adds looks again, and has a mutation"},
}

// TestEachLockHasAMutation: each statement that locks, or looks once more before it writes, has a
// mutation that takes the lock or look out, or is an exception with a reason.
func TestEachLockHasAMutation(t *testing.T) {
	t.Chdir("../..")
	used := make(map[exception]bool)
	for _, dir := range places {
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no files: %v", dir, err)
		}
		for _, file := range files {
			if ext := filepath.Ext(file); ext != ".sql" && ext != ".go" || strings.HasSuffix(file, "_test.go") {
				continue
			}
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, at := range occurrences(string(content)) {
				if e, found := exceptionOf(t, file, string(content), at); found {
					used[e] = true
				} else if !mutated(file, string(content), at) {
					t.Errorf("%s:%d: %q has no mutation in mutations.go, and isn't an exception", file,
						1+strings.Count(string(content[:at[0]]), "\n"), content[at[0]:at[1]])
				}
			}
		}
	}
	for _, e := range exceptions {
		if !used[e] || e.reason == "" {
			t.Errorf("the exception of %s in %q is of nothing, or has no reason", e.file, e.text)
		}
	}
}

// occurrences returns where a file locks or looks, but for what its comments say.
func occurrences(content string) (list [][]int) {
	for _, at := range slices.Concat(locking.FindAllStringIndex(content, -1), looking.FindAllStringIndex(content, -1)) {
		line := strings.TrimSpace(content[1+strings.LastIndexByte(content[:at[0]], '\n') : at[0]])
		if !strings.HasPrefix(line, "//") && !strings.HasPrefix(line, "--") {
			list = append(list, at)
		}
	}
	return list
}

// within says whether `text` is in the content once, and has the place `at` in it.
func within(content, text string, at []int) (once, has bool) {
	begin := strings.Index(content, text)
	return begin >= 0 && strings.Count(content, text) == 1, begin >= 0 && begin <= at[0] && at[1] <= begin+len(text)
}

func exceptionOf(t *testing.T, file, content string, at []int) (exception, bool) {
	t.Helper()
	for _, e := range exceptions {
		if e.file != file {
			continue
		}
		if e.text == "" {
			return e, true
		}
		once, has := within(content, e.text, at)
		if !once {
			t.Fatalf("%s doesn't have the text of an exception once: %q", file, e.text)
		}
		if has {
			return e, true
		}
	}
	return exception{}, false
}

// mutated says whether a mutation takes the place `at` out of the file.
func mutated(file, content string, at []int) bool {
	lock := content[at[0]:at[1]]
	return slices.ContainsFunc(mutations, func(m mutation) bool {
		if m.file != file {
			return false
		}
		_, has := within(content, m.old, at)
		return has && strings.Count(m.new, lock) < strings.Count(m.old, lock)
	})
}
