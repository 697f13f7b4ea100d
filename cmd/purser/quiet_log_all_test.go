//go:build all

package main

import (
	"strings"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/builtinpg"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// TestBuiltInPostgresIsQuiet is like TestOrdinaryDayIsQuiet, with the built-in PostgreSQL,
// whose log must have no errors either.
func TestBuiltInPostgresIsQuiet(t *testing.T) {
	t.Parallel()
	dbtest.EmptyDSN(t) // skips where there is no PostgreSQL
	cfg := servetest.Config(t)
	s, log := startRecorded(t, cfg)
	ordinaryDay(t, s)
	if _, err := builtinpg.RunningDSN(backend.PostgresDir(cfg), backend.DatabaseName); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(); err != nil {
		t.Errorf("stopping: %v", err)
	}
	for _, line := range log.Complaints(t) {
		// Work in the background gives way to a client that has a lock for longer than 200 ms. On a
		// slow machine that happens, and PostgreSQL logs it.
		if strings.Contains(line, "canceling statement due to lock timeout") {
			t.Log(line)
			continue
		}
		t.Errorf("the log has %s", line)
	}
	if log.Count("database system is shut down") != 1 {
		t.Error("the log of PostgreSQL isn't read")
	}
}
