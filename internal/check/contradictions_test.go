package check_test

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/check"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// manyRows is how many manifests TestContradictionsReadEachManifestOnce stores: so many that
// it notices if the statement of one batch reads all of them.
const manyRows = 3000

// described returns a descriptor. Its size needn't be right.
func described(mediaType string, d oci.Digest, size int64) map[string]any {
	return map[string]any{"mediaType": mediaType, "digest": d.String(), "size": size}
}

func encoded(t *testing.T, mediaType string, fields map[string]any) []byte {
	t.Helper()
	fields["schemaVersion"], fields["mediaType"] = 2, mediaType
	payload, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return payload
}

// contradictions returns all contradictions as text, sorted, and the numbers of compared and
// of unreadable manifests.
func (b bundle) contradictions(t *testing.T) (found []string, compared, unreadable int64) {
	t.Helper()
	for page, err := range check.Contradictions(t.Context(), b.Catalog) {
		if err != nil {
			t.Fatal(err)
		}
		compared, unreadable = compared+page.Compared, unreadable+page.Unreadable
		for _, f := range page.Found {
			found = append(found, fmt.Sprintf("%s@%s %s %s declared %d stored %d others %d",
				f.Repository, f.Manifest, f.Descriptor, f.Digest, f.Declared, f.Stored, f.Others))
		}
	}
	slices.Sort(found)
	return found, compared, unreadable
}

// Manifests of several repositories declare wrong sizes in every kind of descriptor. A check
// must find them all, and must not compare content that isn't stored.
func TestContradictions(t *testing.T) { catalogtest.AtBoth(t, testContradictions) }

func testContradictions(t *testing.T, dsn string) {
	const layerType, configType, imageType, huge = "application/vnd.oci.image.layer.v1.tar", "application/vnd.oci.image.config.v1+json",
		oci.MediaTypeImageManifest, int64(math.MaxInt64)
	b := replica(t, dsn)
	if found, compared, _ := b.contradictions(t); len(found) > 0 || compared > 0 {
		t.Fatalf("an empty registry has %q of %d", found, compared)
	}
	config, layer := oci.Compute(oci.SHA256, []byte("{}")), oci.Compute(oci.SHA256, []byte("layer"))
	absent := oci.Compute(oci.SHA256, []byte("absent"))
	foreign := described("application/vnd.oci.image.layer.nondistributable.v1.tar", absent, huge)
	foreign["urls"] = []string{"https://example.com/x"}
	image := func(configSize int64, more map[string]any, layers ...any) []byte {
		fields := map[string]any{"config": described(configType, config, configSize), "layers": append([]any{}, layers...)}
		for name, v := range more {
			fields[name] = v
		}
		return encoded(t, imageType, fields)
	}
	subject := func(d oci.Digest, size int64) map[string]any {
		return map[string]any{"subject": described(imageType, d, size)}
	}
	index := func(more map[string]any, children ...any) []byte {
		fields := map[string]any{"manifests": children}
		for name, v := range more {
			fields[name] = v
		}
		return encoded(t, oci.MediaTypeImageIndex, fields)
	}
	right := described(layerType, layer, 5)
	var want []string
	put := func(repo string, payload []byte, wrong string) oci.Digest {
		t.Helper()
		d := b.Put(t, repo, payload)
		if wrong != "" {
			want = append(want, fmt.Sprintf("%s@%s %s", repo, d, wrong))
		}
		return d
	}
	repos := []string{"one/a", "one/b", "two/a", "three/a", "four/a", "five/a", "six/a"}
	for _, repo := range repos {
		b.Push(t, repo, "{}")
		b.Push(t, repo, "layer")
		payload := image(2, nil, right)
		child, size := put(repo, payload, ""), int64(len(payload))
		put(repo, image(2, subject(absent, huge), right, foreign), "")
		put(repo, image(7, nil, right), fmt.Sprintf("config %s declared 7 stored 2 others 0", config))
		put(repo, image(7, nil, foreign, described(layerType, layer, huge)), fmt.Sprintf("config %s declared 7 stored 2 others 1", config))
		put(repo, image(2, nil, foreign, described(layerType, layer, 0)), fmt.Sprintf("layers[1] %s declared 0 stored 5 others 0", layer))
		put(repo, image(2, subject(child, 0), described(layerType, layer, huge)),
			fmt.Sprintf("layers[0] %s declared %d stored 5 others 1", layer, huge))
		put(repo, image(2, subject(child, huge), right), fmt.Sprintf("subject %s declared %d stored %d others 0", child, huge, size))
		payload = image(2, subject(child, size), right)
		about, aboutSize := put(repo, payload, ""), int64(len(payload))
		put(repo, index(nil, described(imageType, child, size)), "")
		put(repo, index(nil, described(imageType, about, aboutSize), described(imageType, child, size+1)),
			fmt.Sprintf("manifests[1] %s declared %d stored %d others 0", child, size+1, size))
		put(repo, index(nil, described(layerType, layer, 6)), fmt.Sprintf("manifests[0] %s declared 6 stored 5 others 0", layer)) // as BuildKit's cache
		put(repo, index(subject(child, 1), described(imageType, child, size)), fmt.Sprintf("subject %s declared 1 stored %d others 0", child, size))
	}
	check := func(unreadable int64) {
		t.Helper()
		slices.Sort(want)
		found, compared, passed := b.contradictions(t)
		if all := int64(b.Count(t, "SELECT count(*) FROM manifests")); !slices.Equal(found, want) || compared != all || passed != unreadable {
			t.Errorf("of %d of %d manifests, %d unreadable:\n%s\nwant:\n%s", compared, all, passed, strings.Join(found, "\n"), strings.Join(want, "\n"))
		}
	}
	check(0)
	// Manifests that can't be parsed must be skipped, and contradictions in later manifests must
	// still be found.
	b.Exec(t, `UPDATE manifests SET payload = '{"schemaVersion": 1}' WHERE media_type = $1 AND subject_digest IS NOT NULL`, oci.MediaTypeImageIndex)
	want = slices.DeleteFunc(want, func(w string) bool { return strings.Contains(w, "subject") && strings.Contains(w, "declared 1 ") })
	check(int64(len(repos)))
	// A repository is deleted, and the rows of its manifests stay for a while. Their
	// contradictions must not be reported.
	b.Exec(t, "DELETE FROM repositories WHERE path = 'two/a'")
	want = slices.DeleteFunc(want, func(w string) bool { return strings.HasPrefix(w, "two/a@") })
	check(int64(len(repos)))
}

// Five manifests have 3 MiB of payload each, and 1,200 further ones have little. The batches
// must be bounded by bytes and by number, and together contain every manifest once.
func TestContradictionsInPages(t *testing.T) {
	t.Parallel()
	b := replica(t, dbtest.DSN(t))
	b.Push(t, "acme/app", "{}")
	config := oci.Compute(oci.SHA256, []byte("{}"))
	for i := range 5 { // 3 MiB each: two to a page
		b.Put(t, "acme/app", encoded(t, oci.MediaTypeImageManifest, map[string]any{
			"config": described("text/plain", config, 3), "layers": []any{},
			"annotations": map[string]string{"n": fmt.Sprint(i), "long": strings.Repeat("x", 3<<20)}}))
	}
	b.Exec(t, `INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, payload, total_size)
		SELECT top_level_namespace_id, id, '\x01'::bytea || sha256(i::text::bytea), 'text/plain', '{}', 1
		FROM repositories, generate_series(1, 1200) i`)
	var pages, found []int64
	for page, err := range check.Contradictions(t.Context(), b.Catalog) {
		if err != nil {
			t.Fatal(err)
		}
		pages, found = append(pages, page.Compared), append(found, int64(len(page.Found)))
	}
	if !slices.Equal(pages, []int64{2, 2, 500, 500, 201}) || !slices.Equal(found, []int64{2, 2, 1, 0, 0}) {
		t.Errorf("pages of %d manifests, with %d contradictions", pages, found)
	}
}

// The planner's statistics are missing, outdated or right. In each case the batches must not
// read more of a table than the batches' own manifests and their references.
func TestContradictionsReadEachManifestOnce(t *testing.T) {
	t.Parallel()
	for name, analyzed := range map[string]int{"never analyzed": -1, "analyzed empty": 0, "analyzed small": 20, "analyzed whole": manyRows} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := dbtest.DSN(t)
			conn, err := pgx.Connect(t.Context(), dsn)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(t.Context()) //nolint:errcheck // the database goes anyway
			exec := func(sql string, args ...any) {
				t.Helper()
				if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
					t.Fatal(err)
				}
			}
			payload := encoded(t, oci.MediaTypeImageManifest, map[string]any{
				"config": described("text/plain", oci.Compute(oci.SHA256, []byte("{}")), 3), "layers": []any{}})
			fill := func(from, to int) {
				exec(`INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, payload, total_size)
					SELECT r.top_level_namespace_id, r.id, '\x01'::bytea || sha256(i::text::bytea), $3, $4, 1
					FROM repositories r, generate_series($1::int, $2) i WHERE r.path = 'acme/app'`, from, to, oci.MediaTypeImageManifest, payload)
			}
			exec("INSERT INTO top_level_namespaces (name) VALUES ('acme')")
			exec("INSERT INTO repositories (top_level_namespace_id, path) SELECT id, 'acme/app' FROM top_level_namespaces")
			exec(`INSERT INTO blobs (digest, size, storage_key) SELECT '\x01'::bytea || sha256('{}'), 2, 'config'
				UNION ALL SELECT '\x01'::bytea || sha256(i::text::bytea), 2, 'b' || i FROM generate_series(1, $1::int) i`, manyRows)
			if analyzed > 0 {
				fill(1, analyzed)
			}
			if analyzed >= 0 {
				exec("ANALYZE")
			}
			fill(max(analyzed, 0)+1, manyRows)
			exec("SELECT pg_stat_force_next_flush()")
			before := catalogtest.RowsRead(t, conn)
			t.Run("contradictions", func(t *testing.T) { // its pools are closed at its end, which counts what they read
				found, compared, _ := replica(t, dsn).contradictions(t)
				if len(found) != manyRows || compared != manyRows {
					t.Errorf("%d contradictions of %d manifests", len(found), compared)
				}
			})
			catalogtest.Alone(t, conn)
			for table, n := range catalogtest.RowsRead(t, conn) {
				n -= before[table]
				switch {
				case strings.HasPrefix(table, "manifests_") && strings.HasSuffix(table, "_pkey"), strings.HasPrefix(table, "blobs_") && strings.HasSuffix(table, "_pkey"):
					if n > manyRows*11/10 {
						t.Errorf("%d rows were read by %s", n, table)
					}
				case n > 100 && !strings.HasPrefix(table, "repositories"):
					t.Errorf("%d rows were read of %s", n, table)
				}
			}
		})
	}
}
