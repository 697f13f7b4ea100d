package autoprune_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/autoprune/snapshot"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/protection"
	"github.com/purser-registry/purser/internal/testscale"
)

// TestPreviewEqualsRun: no client changes anything between a preview and a run. The run
// must delete exactly the tags that the preview listed, and garbage collection must then be
// able to free exactly the number of bytes that the preview stated.
func TestPreviewEqualsRun(t *testing.T) {
	t.Parallel()
	deleted, freed, attached := 0, int64(0), 0
	tooLittle := func() bool { return deleted < 20 || freed < 200 || attached < 2 }
	// Much happens with the first of these seeds. Without the tag "all" the others follow only as
	// long as too little has happened.
	seeds := []uint64{10, 12, 18, 8}
	for seed := range uint64(100) {
		if !slices.Contains(seeds, seed) {
			seeds = append(seeds, seed)
		}
	}
	for i, seed := range seeds {
		if i >= testscale.Pick(2, len(seeds)) && !tooLittle() {
			break
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) { // which closes the connections
			r := setup(t, func(o *autoprune.Options) { o.Batch, o.Page = 3, 5 })
			l := &library{registry: r, rnd: rand.New(rand.NewPCG(seed, 1))}
			l.fill()
			if l.rnd.IntN(2) == 0 { // what an undo has restored is exempt
				l.run()
				runs, _, err := r.pruner.Runs(t.Context(), "n", "", 1)
				r.Must(err)
				_, err = r.pruner.Undo(t.Context(), runs[0].ID, "", time.Minute)
				r.Must(err)
				r.policy(policies.Target{Namespace: "n"}, `{"method": "number_of_tags", "numTags": 2, "tagPattern": "a.+|a"}`) // fill makes no such policy
			}
			l.collect()
			before, entries := l.bytes(), autoprunetest.Value[int64](r.Registry, "SELECT COALESCE(max(id), 0) FROM auditlog")
			preview, err := r.pruner.Preview(t.Context(), policies.Target{Namespace: "n"}, autoprune.PreviewOptions{Limit: 10_000})
			r.Must(err)
			r.run()
			var going []string
			for _, tag := range preview.Going {
				going = append(going, fmt.Sprintf("%s:%s %s %s", tag.Repository, tag.Tag, tag.Code, tag.Policy))
				if tag.Code == judge.ImageGoes {
					attached++
				}
			}
			gone := autoprunetest.Values[string](r.Registry, `SELECT repository || ':' || tag || ' ' || (detail ->> 'code') || ' ' || policy FROM auditlog
				WHERE kind = 'autoprune_tag_delete' AND id > $1`, entries)
			slices.Sort(going)
			slices.Sort(gone)
			if !slices.Equal(going, gone) || int(preview.Deleted) != len(gone) {
				t.Errorf("seed %d: were to go (%d):\n%q\ndid go:\n%q", seed, preview.Deleted, going, gone)
			}
			if now := l.bytes(); before-now != *preview.Bytes {
				t.Errorf("seed %d: %d bytes were to be freed, and can be %d", seed, *preview.Bytes, before-now)
			}
			r.consistent()
			deleted, freed = deleted+len(gone), freed+*preview.Bytes
		})
	}
	if tooLittle() {
		t.Errorf("too little happened: %d tags, %d bytes, %d attached tags", deleted, freed, attached)
	}
}

// library fills a namespace at random with shared blobs, indexes, referrers, tags, attached
// tags, policies and protection rules.
type library struct {
	*registry
	rnd *rand.Rand
}

func (l *library) one(list ...string) string { return list[l.rnd.IntN(len(list))] }

func (l *library) fill() {
	targets := []catalog.Repository{l.Repository("n/a"), l.Repository("n/b"), l.Repository("other/c")}
	for _, target := range targets {
		l.stock(target)
	}
	for range 1 + l.rnd.IntN(3) {
		target := policies.Target{Namespace: "n"}
		if l.rnd.IntN(3) == 0 {
			target = policies.Target{Repository: l.one("n/a", "n/b")}
		}
		text := fmt.Sprintf(`{"method": "number_of_tags", "numTags": %d`, 1+l.rnd.IntN(6))
		if l.rnd.IntN(2) == 0 {
			text = fmt.Sprintf(`{"method": "creation_date", "olderThan": "%dd"`, 1+l.rnd.IntN(30))
		}
		text += l.one("", "", `, "tagPattern": "a.*"`, `, "tagPattern": "[ab]1?", "tagPatternMatches": false`) + "}"
		// creating the same policy twice fails, which doesn't matter here
		if _, err := l.pruner.Policies.Create(l.T.Context(), target, autoprunetest.Parsed(l.T, text)); err != nil && !isAnswer(err) {
			l.T.Fatal(err)
		}
	}
	for range l.rnd.IntN(3) {
		l.Must(l.Protect(protection.Scope{Namespace: "n"}, l.one("a[0-3]", "b.*", `.*\.sig`, "c1|c2", "a7")+l.one("", "|x")))
		if l.rnd.IntN(2) == 0 {
			break
		}
	}
}

// stock fills a repository with manifests that share blobs, with indexes and referrers, and
// with tags and attached tags that point to any of these.
func (l *library) stock(target catalog.Repository) {
	const plain = 8
	name := func(i int) string { return fmt.Sprintf("%s m%d", target.Path, i) }
	for i := range plain {
		for layer := range 10 {
			if l.rnd.IntN(4) == 0 {
				l.Layer(target, name(i), fmt.Sprintf("layer%d", layer), int64(1)<<layer)
			}
		}
	}
	all := plain
	for range l.rnd.IntN(4) { // indexes, also of indexes
		for child := range all {
			if l.rnd.IntN(4) == 0 {
				l.Index(target, name(all), name(child))
			}
		}
		l.Manifest(target, name(all), "")
		all++
	}
	for range l.rnd.IntN(4) { // referrers, also of referrers and of missing manifests
		l.Manifest(target, name(all), name(l.rnd.IntN(all+2)))
		l.Layer(target, name(all), fmt.Sprintf("bill%d", all), 1<<20)
		all++
	}
	for range 5 + l.rnd.IntN(20) {
		tag := l.one("a", "b", "c", "zz") + fmt.Sprint(l.rnd.IntN(9))
		if l.rnd.IntN(3) == 0 {
			tag = "sha256-" + autoprunetest.DigestOf(name(l.rnd.IntN(all+2))).Hex() + l.one("", ".sig", ".att", ".sbom")
		}
		l.Exec(`INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id, created_at)
			SELECT $1, $2, $3, id, now() - $5::interval FROM manifests WHERE repository_id = $2 AND digest = $4
			ON CONFLICT DO NOTHING`, target.NamespaceID, target.ID, tag, autoprunetest.DigestOf(name(l.rnd.IntN(all))).Bytes(),
			time.Duration(l.rnd.IntN(30*24*60))*time.Minute)
	}
}

type manifestRow struct {
	ID, Repository  int64
	Digest, Subject []byte
}

// alive returns the ids of the manifests that tags keep from garbage collection. It
// repeatedly adds manifests that are tagged, listed by a kept index, or whose subject is
// kept, until there are no more.
func (l *library) alive() map[int64]bool {
	l.T.Helper()
	alive := make(map[int64]bool)
	for _, id := range autoprunetest.Values[int64](l.Registry, "SELECT manifest_id FROM tags") {
		alive[id] = true
	}
	manifests := rowsOf[manifestRow](l.registry, "SELECT id, repository_id, digest, subject_digest FROM manifests")
	links := rowsOf[snapshot.Link](l.registry, "SELECT parent_id, child_id FROM manifest_references")
	for _, m := range manifests {
		for _, subject := range manifests {
			if m.Subject != nil && m.Repository == subject.Repository && slices.Equal(m.Subject, subject.Digest) {
				links = append(links, snapshot.Link{Keeper: subject.ID, Kept: m.ID})
			}
		}
	}
	for more := true; more; {
		more = false
		for _, link := range links {
			if alive[link.Keeper] && !alive[link.Kept] {
				alive[link.Kept], more = true, true
			}
		}
	}
	return alive
}

// collect deletes the manifests that no tag keeps, as garbage collection would.
func (l *library) collect() {
	l.T.Helper()
	var ids []int64
	for id := range l.alive() {
		ids = append(ids, id)
	}
	for _, sql := range []string{
		"DELETE FROM manifest_references WHERE NOT parent_id = ANY ($1)",
		"DELETE FROM layers WHERE NOT manifest_id = ANY ($1)",
		"DELETE FROM manifests WHERE NOT id = ANY ($1)",
	} {
		l.Exec(sql, ids)
	}
}

// bytes returns the total size of those blobs that are layers of manifests which tags keep
// from garbage collection.
func (l *library) bytes() (sum int64) {
	l.T.Helper()
	alive, held := l.alive(), make(map[string]int64)
	for _, layer := range rowsOf[struct {
		Manifest, Size int64
		Digest         string
	}](l.registry, "SELECT l.manifest_id, b.size, encode(b.digest, 'hex') FROM layers l JOIN blobs b ON b.digest = l.digest") {
		if alive[layer.Manifest] {
			held[layer.Digest] = layer.Size
		}
	}
	for _, size := range held {
		sum += size
	}
	return sum
}

func rowsOf[T any](r *registry, sql string, args ...any) []T {
	r.T.Helper()
	rows, err := r.DB.Pool.Query(r.T.Context(), sql, args...)
	r.Must(err)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	r.Must(err)
	return list
}
