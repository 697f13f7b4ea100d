package model

import (
	"os"
	"strings"
	"testing"
	"time"
)

var variants = []struct {
	name string
	v    variant
}{{"without delays", noDelays}, {"with delays", delays}}

// TestProtocol explores every scenario, with delays and without. -v tells how
// many states each has; PURSER_TEST_MODEL_LONG=1 adds the long ones.
func TestProtocol(t *testing.T) {
	t.Parallel()
	for _, s := range scenarios {
		if s.long && os.Getenv("PURSER_TEST_MODEL_LONG") == "" {
			continue
		}
		for _, v := range variants {
			t.Run(s.name+", "+v.name, func(t *testing.T) {
				t.Parallel()
				began := time.Now()
				out := s.machine(v.v, none).explore()
				t.Logf("%d states, %d of them at rest, %s", out.states, out.ends, time.Since(began).Round(time.Millisecond))
				switch {
				case out.problem != s.open:
					t.Errorf("found: %q, want %q\n%s", out.problem, s.open, strings.Join(out.trace, "\n"))
				case s.open == "" && out.ends == 0:
					t.Error("it never comes to rest")
				case s.mayDeadlock != (out.circles > 0):
					t.Errorf("clients wait for each other in %d ways; the scenario says %v", out.circles, s.mayDeadlock)
				}
			})
		}
	}
}

// TestMutations shows that the model is fine enough to tell each wrong way from
// the right one: it finds what goes wrong.
func TestMutations(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		mutation mutation
		scenario string
		variant  variant
		want     string // part of the problem
	}{
		{objectFirst, "a blob is asked for, then used", noDelays, "lost its object"},
		{lockAndLook, "an untagged manifest is tagged", noDelays, "a tag points to"},
		{lockAndLook, "a blob is asked for, then used", noDelays, "a manifest refers to"},
		{noSecondLook, "an index is put of an unreferenced manifest", noDelays, "an index refers to"},
		{noSecondLook, "a blob is unlinked while a manifest is put", noDelays, "a manifest refers to"},
		{doNothing, "the last tag is deleted", noDelays, "nothing holds it"},
		{doNothing, "the last index is deleted", noDelays, "nothing holds it"},
		{doNothing, "two push the same new blob", noDelays, "nothing refers to it"},
		{doNothing, "a tag is switched", noDelays, "nothing holds it"},
		{noGreatest, "a blob is asked for while its last manifest goes", delays, "told exists"},
		{noGreatest, "an index and its child are reviewed together", delays, "told exists"},
		{promiseIfQueued, "a blob is asked for while its last manifest goes", delays, "told exists"},
		{promiseIfQueued, "an index and its child are reviewed together", delays, "told exists"},
		{promiseReadFirst, "a blob is asked for, then used", delays, "told that a blob exists"},
		{promiseInOne, "a blob is asked for, then used", delays, "told that a blob exists"},
		{mountNoPromise, "a blob is mounted while it is unlinked and reviewed", delays, "told exists"},
		{mountNoPromise, "two push the same blob", delays, "told exists"},
		{dropUnlocked, "a blob is asked for, then used", noDelays, "nothing refers to it"},
		{goneIsLocked, "a blob is asked for, then used", noDelays, "never comes to rest"},
		{claimUnlocked, "a blob is asked for, then used", delays, "told exists"},
		{claimUnlocked, "a manifest is put again and asked for", delays, "told exists"},
		{pruneReferrer, "a subject goes while a referrer is put", delays, "told exists"},
		{subjectNotLocked, "a subject goes while a referrer is put", noDelays, "nothing holds it"},
		{subjectKeyFree, "a subject arrives", delays, "while its subject lives"},
		{tagNoKeyShare, "an untagged manifest is tagged", noDelays, "isn't there"},
		{noForeignKeys, "an index is put of an unreferenced manifest", noDelays, "lost a child"},
		{noForeignKeys, "a blob is asked for, then used", noDelays, "lost blob a"},
		{putNoLinkLock, "a blob is unlinked while a manifest is put", noDelays, "lost the link"},
		{putNoLinkLock, "a link is removed, asked for and used", noDelays, "lost the link"},
		{linkNoLock, "a link is removed, asked for and used", noDelays, "lost the link"},
		{noUnlink, "a link is mounted, asked for and removed", noDelays, "nothing there uses it"},
		{linkBeforeQueue, "a link is mounted, asked for and removed", noDelays, "clients wait for each other"},
		{keyReused, "a blob is pushed again while it is deleted", noDelays, "overwritten"},
		{doomLater, "the last tag is deleted", noDelays, "0 owners"},
		{forgetFirst, "two sweepers", noDelays, "0 owners"},
		{numberReused, "a late writer of an upload", noDelays, "overwritten"},
		{sweptOnce, "a late writer of an upload", noDelays, "0 owners"},
		{readOnce, "a blob is pushed again while it is deleted", noDelays, "told that a blob doesn't exist"},
		{noRerun, "two push the same blob", noDelays, "serialization failure"},
		{noLockTimeout, "a batch is reviewed while one of it is deleted", noDelays, "neither gives way"},
		{noRepositoryLock, "a repository is deleted while a manifest is put", noDelays, "lost the link"},
		{noPutTrigger, "a manifest is put again and asked for", noDelays, "nothing holds it"},
		{dropLast, "an index and its child are reviewed together", noDelays, "nothing holds it"},
		{dropLast, "a subject and its referrer are reviewed together", noDelays, "nothing holds it"},
		{postponeBlindly, "a batch is reviewed while one of it is deleted", delays, "told exists"},
		{noCircles, "an index refers to its child as its subject", noDelays, "nothing holds it"},
		{circleNotLocked, "one in a circle is tagged", noDelays, "while its subject lives"},
		{circleSeenOnce, "one in a circle is tagged", noDelays, "while its subject lives"},
		{circleSeenOnce, "one in a circle is put into an index", noDelays, "while its subject lives"},
		{circleNotPassed, "one in a circle loses the last tag", noDelays, "nothing holds it"},
	} {
		t.Run(string(tt.mutation)+": "+tt.scenario, func(t *testing.T) {
			t.Parallel()
			out := named(tt.scenario).machine(tt.variant, tt.mutation).explore()
			if !strings.Contains(out.problem, tt.want) {
				t.Fatalf("in %d states this was found: %q, want %q", out.states, out.problem, tt.want)
			}
			t.Logf("%s, after %d steps\n%s", out.problem, len(out.trace), strings.Join(out.trace, "\n"))
		})
	}
}

// TestWhatMayBeLeftOut shows what the protocol does twice: the put of an index
// locks its children, and the foreign key, checked at the commit, does so again.
// Without the lock a client that loses the race hears of it later, and no worse.
func TestWhatMayBeLeftOut(t *testing.T) {
	t.Parallel()
	for _, v := range variants {
		out := named("an index is put of an unreferenced manifest").machine(v.v, childNoKeyShare).explore()
		if out.problem != "" {
			t.Errorf("%s: %s\n%s", v.name, out.problem, strings.Join(out.trace, "\n"))
		}
	}
}
