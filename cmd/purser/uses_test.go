package main

import (
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
	"github.com/purser-registry/purser/internal/pullstats/redistest"
)

// Clients use tags by GET and HEAD, by tag and by digest, on two replicas, and immediately after
// that a last_pulled policy comes into force. The tags that were used must stay, and the others
// must go, whether pulls are counted from the audit log or in Redis.
func TestUsesOfTheLastSecond(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"log", "redis", "redis, and not logged"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			main := dbtest.EmptyDSN(t)
			settings := []string{"PURSER_DATABASE_MAIN=" + main, "PURSER_AUTOPRUNE_INTERVAL=1s", "PURSER_STORAGE_FILESYSTEM_PATH=" + t.TempDir()}
			if how != "log" {
				settings = append(settings, "PURSER_REDIS_URL="+redistest.Start(t).URL(), "FEATURE_REDIS_PULL_TRACKING=true")
			}
			if how == "redis, and not logged" {
				settings = append(settings, "PURSER_AUDIT_PULLS=false")
			}
			replicas := []*servetest.Server{start(t, servetest.Config(t, settings...)), start(t, servetest.Config(t, settings...))}
			d := dbtest.Open(t, main)
			digests := map[string]oci.Digest{}
			for i := range 12 {
				tag := fmt.Sprint("v", i)
				digests[tag] = putIndex(t, replicas[0], "acme/app", tag, tag)
			}
			servetest.WaitFor(t, "the statistics begin", func() bool {
				var n int
				return d.Pool.QueryRow(t.Context(), "SELECT count(*) FROM pullstatisticsprocessingstate").Scan(&n) == nil && n == 1
			})
			for _, sql := range []string{
				"UPDATE tags SET created_at = now() - interval '100 days', updated_at = NULL",
				"UPDATE pullstatisticsprocessingstate SET recorded_since = now() - interval '60 days', checks_since = now() - interval '60 days'",
			} {
				if _, err := d.Pool.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			policy, err := policy.Parse([]byte(`{"method": "last_pulled", "olderThan": "30d"}`))
			if err != nil {
				t.Fatal(err)
			}
			pruner := judge(t, d, d)
			want := []string{"v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7"}
			for i, tag := range want {
				method, ref := []string{"GET", "HEAD"}[i%2], tag
				if i/2%2 == 1 {
					ref = digests[tag].String()
				}
				req, err := http.NewRequestWithContext(t.Context(), method, replicas[i/4].Registry+"/v2/acme/app/manifests/"+ref, http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := http.DefaultClient.Do(req)
				if err != nil || resp.StatusCode != 200 {
					t.Fatalf("using %s: %v, %v", tag, resp, err)
				}
				resp.Body.Close() //nolint:errcheck // nobody reads it
			}
			if _, err := pruner.Policies.Create(t.Context(), policies.Target{Namespace: "acme"}, policy); err != nil {
				t.Fatal(err)
			}
			var got []string
			servetest.WaitFor(t, "tags are deleted", func() bool {
				rows, err := d.Pool.Query(t.Context(), "SELECT array_agg(name ORDER BY name) FROM tags")
				if err != nil {
					t.Fatal(err)
				}
				defer rows.Close()
				return rows.Next() && rows.Scan(&got) == nil && !slices.Contains(got, "v9")
			})
			if !slices.Equal(got, want) {
				t.Errorf("there are %v, want %v", got, want)
			}
		})
	}
}
