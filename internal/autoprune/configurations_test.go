package autoprune_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/forecast"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/judge"
)

// countingStore is a store that counts how often each object is opened, and can fail.
type countingStore struct {
	lock    sync.Mutex
	objects map[string]string
	opened  map[string]int
	fail    bool
}

func (s *countingStore) Open(_ context.Context, key string, _, _ int64) (io.ReadCloser, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.opened[key]++
	content, ok := s.objects[key]
	switch {
	case s.fail:
		return nil, errors.New("the store is down")
	case !ok:
		return nil, blob.ErrNotFound
	}
	return io.NopCloser(strings.NewReader(content)), nil
}

func (s *countingStore) total() (n int) {
	s.lock.Lock()
	defer s.lock.Unlock()
	for _, times := range s.opened {
		n += times
	}
	return n
}

// labelled is a registry whose images have configurations.
type labelled struct {
	*registry
	store *countingStore
}

func newLabelled(t *testing.T) *labelled {
	store := &countingStore{objects: map[string]string{}, opened: map[string]int{}}
	return &labelled{registry: setup(t, func(o *autoprune.Options) { o.Page, o.Store = 2, store }), store: store}
}

// configured returns the configuration of the image that a tag names, with this content, which
// the tag's name makes unique.
func configured(tag, content string) string {
	if rest, ok := strings.CutPrefix(content, "{"); ok {
		return fmt.Sprintf(`{"id": %q, %s`, tag, rest)
	}
	return content + tag
}

// image tags an image, 10 days ago, whose configuration has this content.
func (l *labelled) image(t catalog.Repository, tag, content string) {
	l.T.Helper()
	l.Tag(t, tag, tag, 10*day)
	content = configured(tag, content)
	l.store.objects[tag] = content
	digest := autoprunetest.DigestOf(content).Bytes()
	l.Exec("INSERT INTO blobs (digest, size, storage_key) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", digest, len(content), tag)
	l.Exec("UPDATE manifests SET configuration_blob_digest = $1 WHERE id = $2", digest, l.Manifest(t, tag, ""))
}

// multi tags an index, 10 days ago, that lists the manifests of other tags.
func (l *labelled) multi(t catalog.Repository, tag string, of ...string) {
	l.T.Helper()
	l.Tag(t, tag, tag, 10*day)
	var list []map[string]any
	for _, one := range of {
		list = append(list, map[string]any{"mediaType": oracleImageType, "digest": autoprunetest.DigestOf(one).String()})
	}
	payload, err := json.Marshal(map[string]any{"manifests": list})
	l.Must(err)
	l.Exec("UPDATE manifests SET media_type = $1, payload = $2 WHERE id = $3", oracleIndexType, payload, l.Manifest(t, tag, ""))
	l.Index(t, tag, of...)
}

const stageTest = `{"os": "linux", "architecture": "arm64", "config": {"Labels": {"stage": "test", "x": "\u0000"}}}`

// TestRunReadsConfigurations: a run and a preview read the configurations of images once, if a
// policy needs them, and select nothing of which they can't read the configuration.
func TestRunReadsConfigurations(t *testing.T) {
	t.Parallel()
	l := newLabelled(t)
	web := l.Repository("app/web")
	for name, content := range map[string]string{
		"test": stageTest, "prod": `{"config": {"Labels": {"stage": "prod"}}}`, "none": `{"config": null}`, "text": "no JSON", "gone": stageTest,
		"many": `{"config": {"Labels": {"stage": "test", "more": "` + strings.Repeat("x", 65<<10) + `"}}}`,
	} {
		l.image(web, name, content)
	}
	delete(l.store.objects, "gone")
	l.image(web, "large", stageTest)
	l.Exec("UPDATE blobs SET size = 5000000 WHERE storage_key = 'large'")
	l.multi(web, "multi", "test")
	l.multi(web, "mixed", "test", "prod")
	l.multi(web, "doubt", "test", "gone")
	app := policies.Target{Namespace: "app"}
	plain := l.policy(app, `{"method": "creation_date", "olderThan": "1y"}`)
	l.run()
	l.Must(l.pruner.Policies.Delete(t.Context(), app, plain))
	if n := l.store.total(); n != 0 {
		t.Errorf("%d configurations were read for a policy without labels", n)
	}
	l.policy(app, `{"method": "creation_date", "olderThan": "1d", "labels": {"stage": "test"}}`)
	preview, err := l.pruner.Preview(t.Context(), app, autoprune.PreviewOptions{})
	l.Must(err)
	var going []string
	for _, one := range preview.Going {
		going = append(going, one.Tag)
	}
	if !slices.Equal(going, []string{"multi", "test"}) || preview.Reasons[judge.Doubtful] != 4 {
		t.Errorf("a preview: %v go, for the reasons %v", going, preview.Reasons)
	}
	if text := fmt.Sprint(preview.Policies); !strings.Contains(text, "selects none of 4 tags") {
		t.Errorf("the notices: %s", text)
	}
	labels := autoprunetest.Parsed(t, `{"method": "creation_date", "olderThan": "1d", "labels": {"stage": "test"}}`)
	told, err := l.forecasts().Forecast(t.Context(), app, forecast.Options{Policy: &labels, Days: 1})
	if l.Must(err); told.Deleted != 2 {
		t.Errorf("a forecast deletes %d tags: %+v", told.Deleted, told)
	}
	read := l.store.total()
	l.run()
	if got := l.Tags(web); !slices.Equal(got, []string{"doubt", "gone", "large", "many", "mixed", "none", "prod", "text"}) {
		t.Errorf("a run leaves %v", got)
	}
	if n := l.store.total(); read != 6 || n != read {
		t.Errorf("a preview read %d configurations and a run %d", read, n-read)
	}
	l.store.objects["gone"] = configured("gone", stageTest)
	l.Exec("UPDATE configurationattributes SET read_at = now() - interval '2 hours'")
	l.run()
	if got := l.Tags(web); slices.Contains(got, "gone") || slices.Contains(got, "doubt") || l.store.opened["test"] != 1 || l.store.opened["gone"] != 2 {
		t.Errorf("once the store has the configuration, there are %v, and were opened %v", got, l.store.opened)
	}
	l.Exec("UPDATE manifests SET configuration_blob_digest = NULL WHERE configuration_blob_digest = (SELECT digest FROM blobs WHERE storage_key = 'prod')")
	l.Exec("DELETE FROM blobs WHERE storage_key = 'prod'")
	if n := autoprunetest.Value[int](l.Registry, "SELECT count(*) FROM configurationattributes"); n != 6 {
		t.Errorf("%d configurations are known after one of 7 was deleted", n)
	}
}

// TestStoreFails: a run goes on when the store fails, reads few configurations then, and
// deletes what other policies select.
func TestStoreFails(t *testing.T) {
	t.Parallel()
	l := newLabelled(t)
	web := l.Repository("app/web")
	for i := range 40 {
		l.image(web, fmt.Sprint("v", i), stageTest)
	}
	l.store.fail = true
	l.policy(policies.Target{Namespace: "app"}, `{"method": "creation_date", "olderThan": "1d", "labels": {"stage": "test"}}`)
	l.policy(policies.Target{Namespace: "app"}, `{"method": "creation_date", "olderThan": "1d", "tagPattern": "^v1$"}`)
	l.run()
	if got := l.Tags(web); len(got) != 39 || l.store.total() > 10 {
		t.Errorf("%d tags are left, and %d configurations were opened", len(got), l.store.total())
	}
	l.store.fail = false
	l.run()
	failed := autoprunetest.Value[int](l.Registry, "SELECT count(*) FROM configurationattributes WHERE problem <> ''")
	if got := l.Tags(web); failed > 10 || len(got) > failed {
		t.Errorf("%d tags are left, of which %d couldn't be read", len(got), failed)
	}
	l.Exec("UPDATE configurationattributes SET read_at = now() - interval '2 hours'")
	l.run()
	if got := l.Tags(web); len(got) != 0 {
		t.Errorf("%v are left", got)
	}
}

// TestLockedBlob: while another transaction has locked the blob of a configuration, as garbage
// collection does, a run goes on without the configuration.
func TestLockedBlob(t *testing.T) {
	t.Parallel()
	l := newLabelled(t)
	web := l.Repository("app/web")
	l.image(web, "v1", stageTest)
	l.policy(policies.Target{Namespace: "app"}, `{"method": "creation_date", "olderThan": "1d", "platforms": ["linux/arm64"]}`)
	tx, err := l.DB.Pool.Begin(t.Context())
	l.Must(err)
	_, err = tx.Exec(t.Context(), "SELECT FROM blobs FOR UPDATE")
	l.Must(err)
	l.run()
	if got := l.Tags(web); len(got) != 1 {
		t.Errorf("%v are left, while the configuration is locked", got)
	}
	l.Must(tx.Rollback(t.Context()))
	l.run()
	if got := l.Tags(web); len(got) != 0 {
		t.Errorf("%v are left", got)
	}
	runs, _, err := l.pruner.Runs(t.Context(), "app", "", 10)
	l.Must(err)
	for _, r := range runs {
		if r.State != "success" {
			t.Errorf("a run: %+v", r)
		}
	}
}

// TestManyImagesOfAnIndex: an index that lists more than 100 manifests is in doubt unless it
// names the platforms itself.
func TestManyImagesOfAnIndex(t *testing.T) {
	t.Parallel()
	l := newLabelled(t)
	web := l.Repository("app/web")
	l.image(web, "image", stageTest)
	l.multi(web, "index", "image")
	listed := bytes.Repeat(fmt.Appendf(nil, `{"mediaType": %q, "digest": %q, "platform": {"os": "linux", "architecture": "arm64"}},`,
		oracleImageType, autoprunetest.DigestOf("image")), 101)
	l.Exec("UPDATE manifests SET payload = $1 WHERE id = $2", slices.Concat([]byte(`{"manifests": [`), listed[:len(listed)-1], []byte("]}")),
		l.Manifest(web, "index", ""))
	l.policy(policies.Target{Namespace: "app"}, `{"method": "creation_date", "olderThan": "1d", "labels": {"stage": "test"}}`)
	l.run()
	if got := l.Tags(web); !slices.Equal(got, []string{"index"}) {
		t.Errorf("a policy with labels leaves %v", got)
	}
	l.policy(policies.Target{Namespace: "app"}, `{"method": "creation_date", "olderThan": "1d", "platforms": ["linux/*"]}`)
	l.run()
	if got := l.Tags(web); len(got) != 0 {
		t.Errorf("a policy with platforms leaves %v", got)
	}
}

// TestSelectorsTakeAway: a policy with selectors deletes no tag that the same policy without
// them wouldn't delete.
func TestSelectorsTakeAway(t *testing.T) {
	t.Parallel()
	seen := 0
	property := func(t *rapid.T) {
		s := drawOracleScene(t, "app")
		s.policies = s.policies[:1]
		if s.asks()[0] || strings.Contains(s.policies[0].text, "maxDeleted") {
			return
		}
		with := s.judged(t)
		seen += len(with)
		members := map[string]json.RawMessage{}
		if err := json.Unmarshal([]byte(s.policies[0].text), &members); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"repositories", "mediaTypes", "artifactTypes", "largerThan", "smallerThan", "annotations", "labels", "platforms"} {
			delete(members, name)
		}
		text, err := json.Marshal(members)
		if err != nil {
			t.Fatal(err)
		}
		plain := s
		plain.policies = []oraclePolicy{{scope: s.policies[0].scope, text: string(text)}}
		without := plain.judged(t)
		for name := range with {
			if without[name] == nil {
				t.Fatalf("%s: tag %s goes, but not without selectors", s.policies[0].text, name)
			}
		}
	}
	for range 20 { // 30 examples may lack the kind
		if rapid.Check(t, property); seen > 0 {
			return
		}
	}
	t.Error("no tag goes in any scene")
}

// TestDoubtTakesAway: no tag goes if configurations haven't been read that would stay if they
// had.
func TestDoubtTakesAway(t *testing.T) {
	t.Parallel()
	fewer := 0
	property := func(t *rapid.T) {
		s := drawOracleScene(t, "app")
		s.policies = slices.DeleteFunc(s.policies, func(p oraclePolicy) bool { return strings.Contains(p.text, "maxDeleted") })
		if len(s.policies) == 0 {
			return
		}
		before := s.judged(t)
		for i := 1; i <= oracleManifests; i++ {
			m := s.manifests[oracleDigest(i)]
			if m.configuration != nil && often(t, 2) {
				unread := *m.configuration
				unread.unread = true
				m.configuration = &unread
				s.manifests[oracleDigest(i)] = m
			}
		}
		after := s.judged(t)
		fewer += len(before) - len(after)
		for name := range after {
			if before[name] == nil {
				t.Fatalf("tag %s goes if configurations haven't been read", name)
			}
		}
	}
	for range 20 { // 30 examples may lack the kind
		if rapid.Check(t, property); fewer > 0 {
			return
		}
	}
	t.Error("no scene has a tag that stays because of a doubt")
}

// TestReadTogether: two processes and a preview read the configurations of a repository at the
// same time, while blobs are deleted.
func TestReadTogether(t *testing.T) {
	t.Parallel()
	l := newLabelled(t)
	web := l.Repository("app/web")
	for i := range 120 {
		l.image(web, fmt.Sprint("v", i), stageTest)
	}
	app := policies.Target{Namespace: "app"}
	l.policy(app, `{"method": "creation_date", "olderThan": "1d", "labels": {"stage": "test"}, "platforms": ["linux/arm64"]}`)
	_, other := l.replica(func(o *autoprune.Options) { o.Page, o.Store = 3, l.store })
	failed := make(chan error, 3)
	for _, work := range []func() error{
		func() error { _, err := l.pruner.Preview(t.Context(), app, autoprune.PreviewOptions{}); return err },
		func() error { _, err := other.Preview(t.Context(), app, autoprune.PreviewOptions{}); return err },
		func() error {
			for i := range 120 {
				if _, err := l.DB.Pool.Exec(t.Context(), `
					WITH gone AS (UPDATE manifests SET configuration_blob_digest = NULL WHERE configuration_blob_digest = $1 AND $2)
					SELECT 1`, autoprunetest.DigestOf(configured(fmt.Sprint("v", i), stageTest)).Bytes(), i%3 == 0); err != nil {
					return err
				}
				if _, err := l.DB.Pool.Exec(t.Context(), "DELETE FROM blobs WHERE digest = $1 AND $2", autoprunetest.DigestOf(configured(fmt.Sprint("v", i), stageTest)).Bytes(), i%3 == 0); err != nil {
					return err
				}
			}
			return nil
		},
	} {
		go func() { failed <- work() }()
	}
	for range 3 {
		l.Must(<-failed)
	}
	l.run()
	if got := l.Tags(web); len(got) != 40 {
		t.Errorf("%d tags are left, want the 40 whose configurations were deleted", len(got))
	}
	if n := autoprunetest.Value[int](l.Registry, "SELECT count(*) FROM configurationattributes"); n != 80 {
		t.Errorf("%d configurations are known, want 80", n)
	}
}
