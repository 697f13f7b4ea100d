//go:build all

package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/opencontainers/go-digest"
)

// auditObjects checks that every object in the store has an owner row in the database, and
// that every blob has its object. It reads the rows before and after it lists the objects, and
// reports only what both readings show, since workers may delete objects meanwhile.
func (s *soak) auditObjects() {
	before := s.ownerRows()
	objects, err := s.store.objects()
	if err != nil {
		s.t.Fatal(err)
	}
	after := s.ownerRows()
	there := map[string]bool{}
	for _, key := range objects {
		there[key] = true
		if !before.own(key) && !after.own(key) {
			s.violate([]string{key}, "object %s is in the store and nobody owns it", key)
		}
	}
	for key := range before.blobs {
		if after.blobs[key] && !there[key] {
			s.violate([]string{key}, "blob %s has lost its object", key)
		}
	}
	s.t.Logf("%d objects, %d blobs, %d doomed or of uploads", len(objects), len(after.blobs), len(after.bases)+len(after.doomed))
}

// ownerRows are the rows that own objects.
type ownerRows struct {
	blobs, doomed map[string]bool   // storage keys of blobs and of pending deletions
	bases         map[string]string // base keys of uploads, with the part that isn't pending deletion
}

func (r ownerRows) own(key string) bool {
	base, _, _ := strings.Cut(key, "-")
	keep, ofUpload := r.bases[base]
	return r.blobs[key] || r.doomed[key] || ofUpload && key != keep
}

func (s *soak) ownerRows() ownerRows {
	r := ownerRows{map[string]bool{}, map[string]bool{}, map[string]string{}}
	for _, line := range s.list(`
		SELECT 'blob ' || storage_key FROM blobs
		UNION ALL SELECT 'upload ' || storage_key || ' ' FROM uploads
		UNION ALL SELECT CASE WHEN of_upload THEN 'upload ' || storage_key || ' ' || COALESCE(keep, '') ELSE 'doomed ' || storage_key END
			FROM gc_doomed_objects`) {
		kind, key, _ := strings.Cut(line, " ")
		switch kind {
		case "blob":
			r.blobs[key] = true
		case "doomed":
			r.doomed[key] = true
		default:
			base, keep, _ := strings.Cut(key, " ")
			r.bases[base] = keep
		}
	}
	return r
}

// auditRows checks that the database has exactly the tags that it must have, and no garbage,
// that is, no rows to which nothing refers.
func (s *soak) auditRows() {
	for what, query := range map[string]string{
		"manifest that nothing holds": `
			SELECT 'sha256:' || encode(substr(digest, 2), 'hex') FROM manifests m
			WHERE NOT EXISTS (SELECT FROM tags t WHERE t.repository_id = m.repository_id AND t.manifest_id = m.id)
				AND NOT EXISTS (SELECT FROM manifest_references x WHERE x.repository_id = m.repository_id AND x.child_id = m.id)
				AND NOT EXISTS (SELECT FROM manifests x WHERE x.repository_id = m.repository_id AND x.digest = m.subject_digest)`,
		"blob that no manifest has": `
			SELECT 'sha256:' || encode(substr(digest, 2), 'hex') FROM blobs b
			WHERE NOT EXISTS (SELECT FROM layers l WHERE l.digest = b.digest)
				AND NOT EXISTS (SELECT FROM manifests m WHERE m.configuration_blob_digest = b.digest)`,
		"link to a blob that no manifest of the repository has": `
			SELECT path || ' sha256:' || encode(substr(blob_digest, 2), 'hex') FROM repository_blobs b
			JOIN repositories r ON r.id = b.repository_id
			WHERE NOT EXISTS (SELECT FROM layers l WHERE l.repository_id = r.id AND l.digest = b.blob_digest)
				AND NOT EXISTS (SELECT FROM manifests m WHERE m.repository_id = r.id AND m.configuration_blob_digest = b.blob_digest)`,
		"reference without its layer or manifest": `
			SELECT encode(digest, 'hex') FROM gc_blobs_layers g WHERE NOT EXISTS (SELECT FROM layers l WHERE l.id = g.layer_id AND l.digest = g.digest)
			UNION ALL SELECT encode(digest, 'hex') FROM gc_blobs_configurations g
			WHERE NOT EXISTS (SELECT FROM manifests m WHERE m.id = g.manifest_id AND m.configuration_blob_digest = g.digest)`,
		"layer or manifest without its reference": `
			SELECT encode(digest, 'hex') FROM layers l WHERE NOT EXISTS (SELECT FROM gc_blobs_layers g WHERE g.layer_id = l.id)
			UNION ALL SELECT encode(digest, 'hex') FROM manifests m WHERE configuration_blob_digest IS NOT NULL
				AND NOT EXISTS (SELECT FROM gc_blobs_configurations g WHERE g.manifest_id = m.id)`,
	} {
		for _, row := range s.list(query) {
			s.violate(strings.Fields(row), "there is a %s: %s", what, row)
		}
	}
	s.auditTags()
}

// auditTags compares the tags in the database with those that the workers have recorded. It
// leaves out the contested tags and those whose value isn't known.
func (s *soak) auditTags() {
	want, doubtful := map[string]bool{}, map[string]bool{}
	for _, o := range s.owners {
		for _, r := range o.repos {
			for tag, h := range r.tags {
				want[fmt.Sprintf("%s:%s %s", r.name, tag, h.image.Digest)] = true
			}
			for tag := range r.doubtful {
				doubtful[r.name+":"+tag] = true
			}
		}
	}
	for _, tag := range s.list(`
		SELECT path || ':' || name || ' sha256:' || encode(substr(digest, 2), 'hex')
		FROM tags t JOIN repositories r ON r.id = t.repository_id
		JOIN manifests m ON m.repository_id = t.repository_id AND m.id = t.manifest_id
		WHERE path <> $1`, arenaRepo) {
		name, _, _ := strings.Cut(tag, " ")
		if !want[tag] && !doubtful[name] {
			s.violate([]string{strings.ReplaceAll(name, ":", "/manifests/")}, "there is the tag %s, and should not be", tag)
		}
		delete(want, tag)
	}
	for tag := range want {
		name, _, _ := strings.Cut(tag, " ")
		s.violate([]string{strings.ReplaceAll(name, ":", "/manifests/")}, "there should be the tag %s", tag)
	}
}

// auditEmpty checks that, when all tags are deleted and all garbage is collected, the database
// and the store have no content any more, only repositories.
func (s *soak) auditEmpty() {
	for _, table := range []string{"tags", "manifests", "manifest_references", "layers", "blobs", "repository_blobs",
		"gc_blobs_layers", "gc_blobs_configurations", "uploads", "gc_doomed_objects"} {
		for _, n := range s.list("SELECT count(*)::text FROM " + table + " HAVING count(*) > 0") {
			s.violate(nil, "with every tag deleted and everything collected, %s has %s rows", table, n)
		}
	}
	objects, err := s.store.objects()
	if err != nil {
		s.t.Fatal(err)
	}
	if len(objects) > 0 {
		s.violate(objects[:min(len(objects), 3)], "with nothing in the registry, the store has %d objects: %q", len(objects), objects[:min(len(objects), 5)])
	}
	if s.store.unfinished == nil {
		return
	}
	uploads, err := s.store.unfinished()
	if err != nil {
		s.t.Fatal(err)
	}
	if len(uploads) > 0 {
		s.violate(nil, "with nothing in the registry, the store has unfinished multipart uploads: %q", uploads[:min(len(uploads), 5)])
	}
}

// rowsAbout describes, for each of the words that is a digest, the rows in the database that
// have this digest.
func (s *soak) rowsAbout(words []string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var text strings.Builder
	for _, word := range words {
		d, err := digest.Parse(word)
		if err != nil {
			continue
		}
		rows, err := s.db.Query(ctx, `
			WITH d AS (SELECT '\x01'::bytea || decode($1, 'hex') AS digest)
			SELECT 'blob ' || row_to_json(b)::text FROM blobs b JOIN d USING (digest)
			UNION ALL SELECT 'link ' || path || ' ' || b.created_at FROM repository_blobs b JOIN repositories r ON r.id = repository_id
				JOIN d ON d.digest = blob_digest
			UNION ALL SELECT 'review ' || row_to_json(q)::text FROM gc_blob_review_queue q JOIN d USING (digest)
			UNION ALL SELECT 'used by ' || path || ' manifest ' || manifest_id FROM layers l JOIN repositories r ON r.id = repository_id JOIN d USING (digest)
			UNION ALL SELECT 'configures ' || path || ' manifest ' || m.id FROM manifests m JOIN repositories r ON r.id = repository_id
				JOIN d ON configuration_blob_digest = d.digest
			UNION ALL SELECT 'manifest ' || m.id || ' of ' || path || ' since ' || m.created_at FROM manifests m JOIN repositories r ON r.id = repository_id
				JOIN d USING (digest)`, d.Encoded())
		if err == nil {
			var list []string
			if list, err = pgx.CollectRows(rows, pgx.RowTo[string]); err == nil {
				fmt.Fprintf(&text, "rows about %s:\n   %s\n", d, strings.Join(list, "\n   "))
			}
		}
		if err != nil {
			fmt.Fprintf(&text, "rows about %s: %v\n", d, err)
		}
	}
	return text.String()
}
