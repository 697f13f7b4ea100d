package pullstats

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// lastUsed makes a recorder of last-used times that the test drives.
func (s *shop) lastUsed(t testing.TB, every time.Duration) *LastUsedRecorder {
	t.Helper()
	m, err := NewLastUsedRecorder(LastUsedOptions{Databases: s.databases(), Every: every, Log: quiet})
	must(t, err)
	return m
}

// hasSaved says whether the recorder has saved once.
func hasSaved(m *LastUsedRecorder) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.began.IsZero()
}

// TestLastUsedMakesRoom: one client asks for as many tags of a repository as memory has places. Uses
// of another repository must then still be recorded, statistics must stay complete, and mostly the
// client's own names must leave memory.
func TestLastUsedMakesRoom(t *testing.T) {
	t.Parallel()
	s := open(t, false, 2)
	must(t, s.worker(t).Sync(t.Context())) // makes the state's row
	m := s.lastUsed(t, 0)
	save := func() {
		t.Helper()
		_, err := m.save(t.Context())
		must(t, err)
	}
	since := func() int64 {
		t.Helper()
		return number(t, s.stats, "SELECT extract(epoch FROM recorded_since) * 1000000 FROM pullstatisticsprocessingstate")
	}
	before, at := since(), time.Now()
	m.tagUsed(s.repositories[1], "v1", at)
	for i := range maxLastUsed - 1 {
		m.tagUsed(s.repositories[0], fmt.Sprint("t", i), at)
	}
	save()
	m.used(s.repositories[1], "v2", digest("x"), at)
	if !m.unsaved() {
		t.Error("the new uses aren't in memory")
	}
	save()
	for table, want := range map[string]int64{"tagpullstatistics": 2, "manifestpullstatistics": 1} {
		if n := number(t, s.stats, "SELECT count(*) FROM "+table+" WHERE repository_id = $1", s.repositories[1]); n != want {
			t.Errorf("%s has %d uses of the other repository, want %d", table, n, want)
		}
	}
	if now := since(); now != before {
		t.Errorf("statistics are complete since %d, %d before", now, before)
	}
	if m.names[usedName{s.repositories[1], false, "v1"}] == nil {
		t.Error("a name of the other repository has left memory")
	}
	if n := len(m.names); n > maxLastUsed/2 {
		t.Errorf("%d names are still in memory", n)
	}
	// A name that has left memory is written once more.
	m.tagUsed(s.repositories[0], "t1", at.Add(time.Second))
	save()
	if n := number(t, s.stats, "SELECT count(*) FROM tagpullstatistics WHERE repository_id = $1 AND tag_name = 't1' AND last_check_date = $2",
		s.repositories[0], at.Add(time.Second).Truncate(time.Microsecond)); n != 1 {
		t.Error("the next use isn't written at once")
	}
}

// TestLastUsedKeepsWhatIsOwed: memory has as many names as it may, and the database has taken none of
// their times. A further use must be told to be missing, and none of the others may be forgotten.
func TestLastUsedKeepsWhatIsOwed(t *testing.T) {
	t.Parallel()
	s := open(t, false, 2)
	m := s.lastUsed(t, 0)
	at := time.Now()
	for i := range maxLastUsed {
		m.tagUsed(s.repositories[0], fmt.Sprint("t", i), at)
	}
	for range 2 {
		m.tagUsed(s.repositories[1], "v1", at)
	}
	if len(m.names) != maxLastUsed || m.dropped != 2 {
		t.Errorf("%d names in memory and %d uses dropped, want %d and 2", len(m.names), m.dropped, maxLastUsed)
	}
}

// TestLastUsedIsWrittenInTime: many names are used within a moment. The recorder must write them at
// once, not at the end of its interval, so that memory doesn't fill.
func TestLastUsedIsWrittenInTime(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	m := s.lastUsed(t, time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	within := time.Now().Add(25 * time.Second)
	wait := func(what string, ok func() bool) {
		t.Helper()
		for !ok() {
			if time.Now().After(within) {
				t.Fatalf("never: %s", what)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	wait("the recorder sleeps", func() bool { return hasSaved(m) })
	for i := range lastUsedHurry {
		m.tagUsed(s.repositories[0], fmt.Sprint("t", i), time.Now())
	}
	wait("all names are written", func() bool {
		return number(t, s.stats, "SELECT count(*) FROM tagpullstatistics") == lastUsedHurry
	})
	cancel()
	must(t, <-done)
}
