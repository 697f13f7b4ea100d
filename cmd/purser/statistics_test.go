package main

import (
	"strings"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// The registry starts although the statistics' database can't be reached. /readyz then
// shows the failure but answers 200. As soon as the database can be reached, the registry
// applies its migrations.
func TestStatisticsAreAwayAtTheStart(t *testing.T) {
	t.Parallel()
	stats := dbtest.EmptyDSN(t)
	proxy := dbtest.NewProxy(t, stats)
	proxy.Refuse(true)
	s := start(t, servetest.Config(t, "PURSER_DATABASE_MAIN="+dbtest.EmptyDSN(t), "PURSER_DATABASE_STATS="+proxy.DSN))
	code, body := get(t, s.Debug+"/readyz")
	if code != 200 || !strings.Contains(body, "statistics: ") || strings.Contains(body, "statistics: ok") {
		t.Errorf("without statistics: %d %s", code, body)
	}
	if code, body := get(t, s.Registry+"/v2/_catalog"); code != 200 {
		t.Errorf("without statistics, /v2/_catalog: %d %s", code, body)
	}
	proxy.Refuse(false)
	servetest.WaitFor(t, "the statistics are ready", func() bool {
		_, body := get(t, s.Debug+"/readyz")
		return strings.Contains(body, "statistics: ok")
	})
	var there bool
	err := dbtest.Open(t, stats).Pool.QueryRow(t.Context(), "SELECT to_regclass('tagpullstatistics') IS NOT NULL").Scan(&there)
	if err != nil || !there {
		t.Errorf("the tables of the statistics are there: %v (%v)", there, err)
	}
	if err := s.Stop(); err != nil {
		t.Errorf("stopping: %v", err)
	}
}
