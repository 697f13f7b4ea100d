package autoprune_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/protection"
	"github.com/purser-registry/purser/internal/testscale"
)

// oracleDatabaseKinds are the kinds of tags that the scenes of TestOracleInDatabase must have.
var oracleDatabaseKinds = []string{
	"goes: age", "goes: last use", "goes: number", "goes: number of group", "in no group", "goes: number of images", "goes: number of platform", "its platforms aren't known", "goes: bytes", "goes: orphan", "goes: attached", "its last use isn't known",
	"goes by a policy of default", "goes by a policy of namespace", "goes by a policy of repository",
	"kept: newest", "kept: newest of group", "kept: usedWithin", "kept: pattern", "kept: releases", "kept: newest_patches",
	"kept: newest_prereleases", "kept from another policy only", "protected from a policy", "exempt", "exempt attached tag",
	"no statistics", "attached tag of an image that stays", "orphan that stays", "kept: neverBelow", "waits", "would go",
	"asks", "stays within its cap",
	"selects: annotations", "selects: labels", "selects: platforms", "in doubt", "kept: in doubt",
	"untagged stays", "untagged stays in doubt",
}

// oracleDatabase stores scenes in a database, one after the other.
type oracleDatabase struct {
	*registry
	scene  oracleScene
	target catalog.Repository
	ids    []string // of the scene's policies
	configurations
}

// configurations is the store of the registry, with configurations of images by key.
type configurations map[string][]byte

func (c configurations) Open(_ context.Context, key string, off, length int64) (io.ReadCloser, error) {
	content, ok := c[key]
	if !ok || off != 0 || length != -1 {
		return nil, blob.ErrNotFound
	}
	return io.NopCloser(bytes.NewReader(content)), nil
}

// TestOracleInDatabase stores random scenes in a database. A preview must show what the
// oracle says, a run must delete exactly these tags, and an undo must restore them. Then the
// tags are exempt from the policies that deleted them, and preview and run must again do
// what the oracle says.
func TestOracleInDatabase(t *testing.T) {
	t.Parallel()
	d := &oracleDatabase{configurations: configurations{}}
	d.registry = setup(t, func(o *autoprune.Options) { o.Pulls, o.Used, o.Store = d.pulls, d.used, d.configurations })
	seen := map[string]int{}
	byNumber := func() int {
		return seen["goes: number"] + seen["goes: number of group"] + seen["goes: number of images"] + seen["goes: number of platform"]
	}
	draw := func(seed int) oracleScene {
		namespace := fmt.Sprint("scene", seed)
		return rapid.Custom(func(t *rapid.T) oracleScene { return drawOracleScene(t, namespace) }).Example(seed)
	}
	// In few scenes a policy by number deletes a tag. The first of these seeds makes such a one; should
	// it not any more, there are more scenes.
	for i := 0; i < testscale.Pick(6, 400) || byNumber() == 0 && i < 100; i++ {
		seed := (i + 56) % 400
		d.compare(seed, draw(seed), seen)
	}
	// A rare kind may be in none of these scenes. Further ones are compared if they have it.
	for seed := 400; testscale.All && seed < 20_000 && len(lackingKinds(seen, oracleDatabaseKinds)) > 0; seed++ {
		scene, has := draw(seed), map[string]int{}
		scene.count(oracle(scene.oracleInput), has)
		if slices.ContainsFunc(lackingKinds(seen, oracleDatabaseKinds), func(kind string) bool { return has[kind] > 0 }) {
			d.compare(seed, scene, seen)
		}
	}
	if testscale.All { // fewer scenes hardly have all kinds; TestOracle, without a database, does
		requireKinds(t, seen, oracleDatabaseKinds)
	}
	if byNumber() == 0 {
		t.Errorf("no policy by number has deleted a tag: %v", seen)
	}
}

// compare stores a scene, and compares runs and their undo with the oracle. It counts the kinds of tags.
func (d *oracleDatabase) compare(seed int, scene oracleScene, seen map[string]int) {
	d.T.Helper()
	d.store(scene)
	before := d.rows()
	fates := oracle(d.scene.oracleInput)
	d.scene.count(fates, seen)
	would := d.scene.oracleInput
	would.would = true
	d.scene.countWould(fates, oracle(would), seen)
	run := d.prune(fates)
	d.explain(seed, fates)
	if run != "" {
		undone, err := d.pruner.Undo(d.T.Context(), run, "", time.Minute)
		d.Must(err)
		if gone := goers(fates); undone.Restored != int64(len(gone)) {
			d.T.Fatalf("seed %d: an undo restored %d tags; the run deleted %d", seed, undone.Restored, len(gone))
		}
	}
	if after := d.rows(); !slices.Equal(before, after) {
		d.T.Fatalf("seed %d: before the run there were the tags\n%v\nand there are after its undo\n%v", seed, before, after)
	}
	d.exempt(fates)
	fates = oracle(d.scene.oracleInput)
	d.scene.count(fates, seen)
	d.prune(fates)
	d.explain(seed, fates)
	d.untagged(seed, seen)
	d.clear()
}

// explain ends a test that has failed, and says with which scene.
func (d *oracleDatabase) explain(seed int, fates map[string]oracleFate) {
	d.T.Helper()
	if !d.T.Failed() {
		return
	}
	for _, one := range d.scene.tags {
		d.T.Logf("%s of %.14s, pushed %s ago: %+v", one.name, one.manifest, d.scene.now.Sub(one.pushed), fates[one.name])
	}
	d.T.Fatalf("seed %d: policies %v, defaults refused: %v, protections %q, statistics %v",
		seed, d.scene.policies, d.scene.refuseDefaults, d.scene.protections, d.scene.statistics)
}

// pulls returns the scene's statistics.
func (d *oracleDatabase) pulls(context.Context) (judge.PullRecord, error) {
	s := d.scene.statistics
	return judge.PullRecord{Since: s.since, Behind: d.scene.now.Sub(s.until)}, nil
}

// used sets the scene's times of last use.
func (d *oracleDatabase) used(_ context.Context, repository int64, tags []*judge.Tag) error {
	for _, tag := range tags {
		for i, one := range d.scene.tags {
			if repository == d.target.ID && one.name == tag.Name {
				*[]*time.Time{&tag.Pulled, &tag.ManifestPulled, &tag.Checked}[i%3] = one.used
			}
		}
	}
	return nil
}

// store stores a scene. It moves the scene's times so that the scene's now is the present,
// and moves pushes and uses half an hour further back: no time may be so close to a policy's
// age that the time which the test takes matters.
func (d *oracleDatabase) store(s oracleScene) {
	d.T.Helper()
	moved := time.Now().UTC().Truncate(time.Microsecond).Sub(s.now)
	back := moved - 30*time.Minute
	s.now, s.statistics.until = s.now.Add(moved), s.statistics.until.Add(moved)
	if !s.statistics.since.IsZero() {
		s.statistics.since = s.statistics.since.Add(back)
	}
	d.scene, d.target, d.ids = s, d.Repository(s.repository), nil
	manifests := map[string]int64{}
	for _, digest := range slices.Sorted(maps.Keys(s.manifests)) {
		m := s.manifests[digest]
		var subject []byte
		if m.subject != "" {
			subject = oracleBytes(m.subject)
		}
		var config []byte
		if m.configuration != nil {
			name := s.configurationName(digest)
			content := m.configuration.content(name)
			config = autoprunetest.DigestOf(string(content)).Bytes()
			d.Exec("INSERT INTO blobs (digest, size, storage_key) VALUES ($1, $2, $3)", config, len(content), name)
			if !m.configuration.unread {
				d.configurations[name] = content
			}
		}
		d.Exec(`INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, artifact_type, subject_digest,
				configuration_blob_digest, payload, total_size)
			VALUES (@namespace, @repository, @digest, @media_type, NULLIF(@artifact_type, ''), @subject, @config, @payload, @size)`, db.Args{
			"namespace": d.target.NamespaceID, "repository": d.target.ID, "digest": oracleBytes(digest), "media_type": m.mediaType,
			"artifact_type": m.artifactType, "subject": subject, "payload": s.payload(digest), "config": config, "size": s.own[digest],
		})
		manifests[digest] = autoprunetest.Value[int64](d.Registry, "SELECT id FROM manifests WHERE repository_id = $1 AND digest = $2", d.target.ID, oracleBytes(digest))
		d.layers(manifests[digest], m)
	}
	for parent, m := range s.manifests {
		for _, child := range m.children {
			d.Exec(`INSERT INTO manifest_references (top_level_namespace_id, repository_id, parent_id, child_id) VALUES ($1, $2, $3, $4)`,
				d.target.NamespaceID, d.target.ID, manifests[parent], manifests[child])
		}
	}
	for i := range s.tags {
		one := &s.tags[i]
		one.pushed, one.exempt = one.pushed.Add(back), nil
		if !one.used.IsZero() {
			one.used = one.used.Add(back)
		}
		d.Exec(`INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id, created_at) VALUES ($1, $2, $3, $4, $5)`,
			d.target.NamespaceID, d.target.ID, one.name, manifests[one.manifest], one.pushed)
	}
	for _, pattern := range s.protections {
		d.Must(d.Protect(protection.Scope{Namespace: s.namespace()}, pattern))
	}
	d.Reporter(d.target.NamespaceID, "prod-eu", time.Hour)
	d.Reporter(nil, "prod-us", time.Hour)
	d.Reporter(d.target.NamespaceID, "quiet", time.Hour)
	d.Exec("UPDATE holdreporters SET reported_at = now() - interval '31min' WHERE name = 'quiet'")
	d.Must(d.pruner.Policies.UseDefaults(d.T.Context(), s.namespace(), !s.refuseDefaults))
	for i := range s.policies {
		if s.policies[i].scope == "setting" {
			s.policies[i].scope = "default"
		}
		s.policies[i].text = oracleResolve(s.policies[i].drawn, s.now)
		d.ids = append(d.ids, d.policy(s.scope(i), s.policies[i].text))
	}
}

// layers stores the layers of a manifest.
func (d *oracleDatabase) layers(id int64, m oracleManifest) {
	d.T.Helper()
	for i := range 10 {
		name := oracleLayerName(i)
		size, has := m.blobs[name]
		if !has {
			continue
		}
		d.Exec("INSERT INTO blobs (digest, size, storage_key) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", autoprunetest.DigestOf(name).Bytes(), size, name)
		// The size in this table is what the manifest says, which may be wrong.
		d.Exec(`INSERT INTO layers (top_level_namespace_id, repository_id, manifest_id, digest, size, media_type)
			VALUES ($1, $2, $3, $4, 1, 'application/vnd.oci.image.layer.v1.tar')`, d.target.NamespaceID, d.target.ID, id, autoprunetest.DigestOf(name).Bytes())
	}
}

func oracleBytes(digest string) []byte {
	d, err := oci.ParseDigest(digest)
	if err != nil {
		panic(err)
	}
	return d.Bytes()
}

func (s oracleScene) namespace() string {
	namespace, _, _ := bytes.Cut([]byte(s.repository), []byte("/"))
	return string(namespace)
}

// scope returns the target of policy i.
func (s oracleScene) scope(i int) policies.Target {
	switch s.policies[i].scope {
	case "repository":
		return policies.Target{Repository: s.repository}
	case "namespace":
		return policies.Target{Namespace: s.namespace()}
	}
	return policies.Target{}
}

// rows are the repository's tags with manifests and push times.
func (d *oracleDatabase) rows() []string {
	d.T.Helper()
	return autoprunetest.Values[string](d.Registry, `SELECT format('%s %s %s %s', name, manifest_id, created_at, updated_at) FROM tags
		WHERE repository_id = $1 ORDER BY name`, d.target.ID)
}

// goers returns the names of the tags that go, in ascending order.
func goers(fates map[string]oracleFate) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(fates)) {
		if fates[name].goes {
			names = append(names, name)
		}
	}
	return names
}

// prune makes previews, prunes, and compares the results with the fates. It returns the run
// that deleted tags, "" if none did.
func (d *oracleDatabase) prune(fates map[string]oracleFate) (run string) {
	d.T.Helper()
	want, left := goers(fates), []string{}
	in := d.scene.oracleInput
	in.would = true
	would := slices.DeleteFunc(goers(oracle(in)), func(name string) bool { return fates[name].goes })
	for _, name := range d.Tags(d.target) {
		if !fates[name].goes {
			left = append(left, name)
		}
	}
	for _, target := range []policies.Target{{Namespace: d.scene.namespace()}, {Repository: d.scene.repository}} {
		preview, err := d.pruner.Preview(d.T.Context(), target, autoprune.PreviewOptions{Limit: 10_000})
		d.Must(err)
		var got []string
		for _, one := range preview.Going {
			got = append(got, one.Tag)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			d.T.Errorf("a preview of %v deletes\n%q\nand the oracle\n%q", target, got, want)
		}
		got = nil
		for _, one := range preview.Would {
			got = append(got, one.Tag)
		}
		if slices.Sort(got); !slices.Equal(got, would) || preview.WouldDelete != int64(len(would)) {
			d.T.Errorf("a preview of %v would delete\n%q\nand the oracle\n%q", target, got, would)
		}
	}
	known, _, err := d.pruner.Runs(d.T.Context(), d.scene.namespace(), "", 100)
	d.Must(err)
	d.ensure()
	d.run()
	if got := d.Tags(d.target); !slices.Equal(got, left) {
		d.T.Errorf("a run leaves\n%q\nand the oracle\n%q", got, left)
	}
	runs, _, err := d.pruner.Runs(d.T.Context(), d.scene.namespace(), "", 100)
	d.Must(err)
	deleted := int64(0)
	for _, r := range runs {
		if !slices.ContainsFunc(known, func(k autoprune.RunSummary) bool { return k.ID == r.ID }) && r.Deleted > 0 {
			run, deleted = r.ID, deleted+r.Deleted
		}
	}
	if len(runs) > 0 {
		details, err := d.pruner.GetRun(d.T.Context(), runs[0].ID)
		d.Must(err)
		var got []string
		for _, one := range details.Observed {
			got = append(got, one.Tag)
		}
		if slices.Sort(got); !slices.Equal(got, would) || details.Would != int64(len(would)) {
			d.T.Errorf("a run would have deleted\n%q\nand the oracle\n%q", got, would)
		}
		if asks := d.scene.asks(); len(asks) != len(details.Asks) ||
			slices.ContainsFunc(details.Asks, func(a autoprune.RunAsk) bool { return !asks[slices.Index(d.ids, a.Policy)] }) {
			d.T.Errorf("by a run %v ask, and by the oracle %v, of %q", details.Asks, asks, d.ids)
		}
	}
	if deleted != int64(len(want)) {
		d.T.Errorf("runs say that they deleted %d tags, and the oracle deletes %d", deleted, len(want))
	}
	return run
}

// exempt exempts the tags that go from the policies that delete them, as an undo does.
func (d *oracleDatabase) exempt(fates map[string]oracleFate) {
	for i := range d.scene.tags {
		one := &d.scene.tags[i]
		one.exempt = map[int]bool{}
		for _, place := range fates[one.name].policies() {
			one.exempt[place] = fates[one.name].goes
		}
	}
}

// clear deletes the scene's policies, so that they don't apply to the next scene.
func (d *oracleDatabase) clear() {
	d.T.Helper()
	for i, id := range d.ids {
		d.Must(d.pruner.Policies.Delete(d.T.Context(), d.scene.scope(i), id))
	}
	d.Must(d.pruner.Policies.UseDefaults(d.T.Context(), d.scene.namespace(), false))
}
