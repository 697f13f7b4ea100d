package autoprune_test

import (
	"testing"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/db"
)

// TestPlansWithStaleStatistics prunes 3,000 tags of one manifest and 500 signatures with
// their 500 images, while PostgreSQL's statistics are from a time with few or no tags. No
// statement may read all tags or manifests for each tag. The test counts the entries that
// PostgreSQL has read from database indexes.
func TestPlansWithStaleStatistics(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]int{"never analyzed": -1, "analyzed empty": 0, "analyzed with few": 200} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			a := r.Repository("app/a")
			own := r.DB
			filler, err := db.Open(t.Context(), db.Options{DSN: r.DSN, ApplicationName: "pruner", Log: quiet})
			r.Must(err)
			t.Cleanup(filler.Close)
			r.DB = filler // its own reads are counted before those of the run
			id := r.Manifest(a, "m", "")
			blob := autoprunetest.DigestOf("c")
			r.Exec("INSERT INTO blobs (digest, size, storage_key) VALUES ($1, 2, 'c')", blob.Bytes())
			if before > 0 {
				r.Exec(`INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, payload, total_size)
					SELECT $1, $2, decode('01' || repeat(md5(i::text), 2), 'hex'), 'm', '{}', 2 FROM generate_series(1, $3::int) AS i`, a.NamespaceID, a.ID, before)
				r.Exec(`INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id)
					SELECT $1, $2, 'u' || row_number() OVER (), id FROM manifests WHERE media_type = 'm'`, a.NamespaceID, a.ID)
			}
			if before >= 0 {
				r.Exec("ANALYZE tags, manifests, manifest_references")
			}
			for part := range 3 {
				r.Exec(`INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id, created_at)
					SELECT $1, $2, 't' || i, $3, now() - interval '9 days' FROM generate_series($4::int, $4 + 999) AS i`, a.NamespaceID, a.ID, id, part*1000)
			}
			for part := range 10 {
				r.Exec(`INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, subject_digest, payload, total_size)
					SELECT $1, $2, decode('01' || repeat(md5('s' || i), 2), 'hex'), 's',
						CASE WHEN i % 2 = 0 THEN decode('01' || repeat(md5('s' || (i - 1)), 2), 'hex') END, '{}', 2
					FROM generate_series(1 + $3::int, $3 + 100) AS i`, a.NamespaceID, a.ID, part*100)
			}
			r.Exec(`INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id, created_at)
				SELECT $1, $2, CASE WHEN subject_digest IS NULL THEN 'i' || id ELSE 'sha256-' || encode(substr(subject_digest, 2), 'hex') || '.sig' END,
					id, now() - interval '9 days' FROM manifests WHERE media_type = 's'`, a.NamespaceID, a.ID)
			r.DB = own
			r.policy(policies.Target{Namespace: "app"}, `{"method": "creation_date", "olderThan": "2d"}`)
			r.policy(policies.Target{Namespace: "app"}, `{"method": "number_of_tags", "numTags": 1, "labels": {"a": "*"}}`)
			r.Exec("UPDATE manifests SET configuration_blob_digest = $1 WHERE media_type = 's'", blob.Bytes())
			r.Exec(`UPDATE manifests SET payload = convert_to('{"manifests": []}', 'UTF8') WHERE id = $1`, id)
			read := r.indexReads()
			_, r.pruner = r.replica(func(o *autoprune.Options) { o.Store = configurations{"c": []byte("{}")} })
			r.run()
			if n, want := len(r.Tags(a)), max(before, 0); n != want {
				t.Errorf("%d tags are left, want %d", n, want)
			}
			for _, failure := range autoprunetest.Values[string](r.Registry, "SELECT error FROM autopruneruns_repositories WHERE error IS NOT NULL") {
				t.Error(failure)
			}
			// The run reads 4,000 tags three or four times, deletes them, and looks for
			// other references to their manifests. A plan that reads all tags for each tag
			// would read 4,000 times as many entries.
			if read = r.indexReads() - read; read > 400_000 {
				t.Errorf("indexes gave %d entries for 4,000 tags", read)
			}
		})
	}
}

// indexReads ends the database sessions of pruners, so that PostgreSQL adds up their
// statistics. It returns how many entries all ended sessions have read from the database
// indexes of tags and manifests.
func (r *registry) indexReads() int64 {
	r.T.Helper()
	const pruners = "FROM pg_stat_activity WHERE application_name = 'pruner' AND datname = current_database()"
	for autoprunetest.Value[int](r.Registry, "SELECT count(pg_terminate_backend(pid)) "+pruners) > 0 { //nolint:revive // until they have ended
	}
	return autoprunetest.Value[int64](r.Registry, "SELECT COALESCE(sum(idx_tup_read), 0)::bigint FROM pg_stat_user_indexes WHERE relname LIKE 'tags%' OR relname LIKE 'manifest%'")
}
