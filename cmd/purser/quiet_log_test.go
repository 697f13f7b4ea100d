package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/cmd/purser/internal/serve"
	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// startRecorded starts a server and returns it with its log, which includes debug messages
// and the messages of the built-in PostgreSQL.
func startRecorded(t *testing.T, cfg *config.Config) (*servetest.Server, *servetest.Log) {
	t.Helper()
	buf := new(servetest.Log)
	log := slog.New(slog.NewJSONHandler(buf, &slog.HandlerOptions{Level: slog.LevelDebug}))
	return servetest.Start(t, func(ctx context.Context, out io.Writer) error { return serve.Run(ctx, cfg, out, log, nil) }), buf
}

// rollbacks returns how many transactions of a database were rolled back. It waits until
// the server's database sessions have ended, because PostgreSQL adds a session's numbers
// only then.
func rollbacks(t *testing.T, dsn string) (n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context()) //nolint:errcheck // nothing is lost
	servetest.WaitFor(t, "the server's sessions are over", func() bool {
		var sessions int
		err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()`).Scan(&sessions)
		return err == nil && sessions == 0
	})
	err = conn.QueryRow(t.Context(), "SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()").Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// ordinaryDay sends all kinds of requests that clients send in normal operation, and checks
// the answers.
func ordinaryDay(t *testing.T, s *servetest.Server) {
	t.Helper()
	url := s.Registry + "/v2/library/app/"
	expect := func(what string, got, want int) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %d, want %d", what, got, want)
		}
	}
	do := func(want int, method, path, body string, headers ...string) {
		t.Helper()
		code, text := askAs(t, method, url+path, body, headers...)
		if code != want {
			t.Errorf("%s %s: %d %s, want %d", method, path, code, text, want)
		}
	}
	manifest := func(config oci.Digest, note string) string {
		return fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"application/vnd.oci.image.config.v1+json",`+
			`"digest":%q,"size":5},"layers":[],"annotations":{"note":%q}}`, oci.MediaTypeImageManifest, config, note)
	}
	layer, known := pushImage(t, s, "v1", "known")
	for range 20 {
		pushImage(t, s, "v1", "known")
	}
	do(201, "PUT", "manifests/"+known.String(), strings.Replace(manifest(layer, ""), `,"annotations":{"note":""}`, "", 1))
	missing := oci.Compute(oci.SHA256, []byte("missing"))
	for range 5 {
		do(400, "PUT", "manifests/v2", manifest(missing, "a blob is missing"))
		do(400, "PUT", "manifests/v2", fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"manifests":[{"mediaType":%q,"digest":%q,"size":5}]}`,
			oci.MediaTypeImageIndex, oci.MediaTypeImageManifest, missing))
		do(202, "POST", "blobs/uploads/?mount="+missing.String()+"&from=library/other", "")
		do(202, "POST", "blobs/uploads/?mount="+missing.String()+"&from=library/app", "")
		do(412, "PUT", "manifests/v1", manifest(layer, "condition"), "If-Match", `"`+missing.String()+`"`)
		do(412, "PUT", "manifests/v1", manifest(layer, "condition"), "If-None-Match", "*")
		do(412, "PUT", "manifests/v3", manifest(layer, "condition"), "If-Match", "*")
		do(412, "PUT", "manifests/"+known.String(), strings.Replace(manifest(layer, ""), `,"annotations":{"note":""}`, "", 1), "If-None-Match", "*")
		do(412, "DELETE", "manifests/v1", "", "If-Match", `"`+missing.String()+`"`)
		do(404, "DELETE", "manifests/v9", "")
		do(404, "DELETE", "manifests/"+missing.String(), "")
		do(404, "DELETE", "blobs/"+missing.String(), "")
		do(409, "DELETE", "blobs/"+layer.String(), "")
		do(404, "GET", "blobs/"+missing.String(), "")
		do(404, "GET", "manifests/v9", "")
		do(404, "PATCH", "blobs/uploads/00000000-0000-4000-8000-000000000000", "x")
		do(404, "DELETE", "blobs/uploads/00000000-0000-4000-8000-000000000000", "")
	}
	// This adds a protection rule that protects the tag v1. The server doesn't have the
	// rule in its cache when the first of the following requests arrives.
	code, text := askAs(t, "POST", s.Registry+"/api/v1/repository/library/app/tagprotection/", `{"pattern":"^v1$"}`, "Content-Type", "application/json")
	expect("a rule: "+text, code, 201)
	for range 3 {
		do(409, "PUT", "manifests/v1", manifest(layer, "protected"))
		do(409, "DELETE", "manifests/v1", "")
		do(409, "DELETE", "manifests/"+known.String(), "")
	}
	raceForTags(t, url, func(client, tag int) string { return manifest(layer, fmt.Sprintf("client %d, tag %d", client, tag)) })
	do(201, "PUT", "manifests/gone", manifest(layer, "to be deleted"))
	gone := oci.Compute(oci.SHA256, []byte(manifest(layer, "to be deleted")))
	do(202, "DELETE", "manifests/"+gone.String(), "")
	do(404, "DELETE", "manifests/"+gone.String(), "")
	code, text = askAs(t, "DELETE", s.Registry+"/api/v1/repository/library/app", "")
	expect("the repository goes: "+text, code, 204)
	do(404, "DELETE", "manifests/v1", "")
	pushImage(t, s, "v1", "known") // into a repository that is made anew
}

// raceForTags lets several clients concurrently push different manifests under the same new
// tags.
func raceForTags(t *testing.T, url string, manifest func(client, tag int) string) {
	t.Helper()
	const clients, tags = 4, 25
	var group sync.WaitGroup
	for client := range clients {
		group.Go(func() {
			for tag := range tags {
				code, text := askAs(t, "PUT", fmt.Sprintf("%smanifests/race%d", url, tag), manifest(client, tag))
				if code != 201 {
					t.Errorf("a push that races others for its tag: %d %s", code, text)
				}
			}
		})
	}
	group.Wait()
}

// TestOrdinaryDayIsQuiet sends the requests of ordinaryDay to a server on a separate
// PostgreSQL. Neither they nor the shutdown may cause rollbacks in the database or warnings
// in Purser's log.
func TestOrdinaryDayIsQuiet(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t) // of a server that exists before and after the test
	before := rollbacks(t, dsn)
	s, log := startRecorded(t, servetest.Config(t, "PURSER_DATABASE_MAIN="+dsn))
	ordinaryDay(t, s)
	if err := s.Stop(); err != nil {
		t.Errorf("stopping: %v", err)
	}
	for _, line := range log.Complaints(t) {
		t.Errorf("the log has %s", line)
	}
	if n := rollbacks(t, dsn) - before; n != 0 {
		t.Errorf("%d transactions were rolled back, want none", n)
	}
}
