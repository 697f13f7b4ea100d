package forecast_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/forecast"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
	"github.com/purser-registry/purser/internal/testscale"
)

// play has two repositories, on/r and off/r, in which clients do the same. It fakes the clock by
// moving the times of all rows into the past.
type play struct {
	*autoprunetest.Registry
	pruner     *autoprune.Pruner
	forecaster *forecast.Forecaster
	rand       *rand.Rand
	used       map[string]time.Time // last uses, by repository and tag
	since      time.Time            // of the statistics
	ids        map[int64]string     // of the repositories
}

const day = autoprunetest.Day

func TestMain(m *testing.M) { dbtest.Main(m) }

var playPaths = []string{"on/r", "off/r"}

func newPlay(t *testing.T, seed uint64) *play {
	t.Helper()
	p := &play{Registry: autoprunetest.New(t), rand: rand.New(rand.NewPCG(seed, 1)), used: map[string]time.Time{}, since: time.Now().Add(-300 * day), ids: map[int64]string{}}
	var err error
	p.pruner, err = autoprune.New(autoprune.Options{
		DB: p.DB, Catalog: p.Catalog, Background: p.Background(), Log: autoprunetest.Quiet, Page: 7,
		Interval: time.Hour, IdleShare: 1, // each namespace is pruned when run says so, and at once
		Pulls: func(context.Context) (judge.PullRecord, error) { return judge.PullRecord{Since: p.since}, nil },
		Used: func(_ context.Context, repository int64, tags []*judge.Tag) error {
			for _, t := range tags {
				t.Pulled = p.used[p.ids[repository]+":"+t.Name]
			}
			return nil
		},
	})
	p.Must(err)
	p.forecaster = forecast.New(p.pruner.Repositories, p.pruner.Policies)
	for _, path := range playPaths {
		p.ids[p.Repository(path).ID] = path
	}
	return p
}

// policy saves a policy.
func (p *play) policy(t policies.Target, text string) {
	p.T.Helper()
	wanted, err := policy.Parse([]byte(text))
	p.Must(err)
	_, err = p.pruner.Policies.Create(p.T.Context(), t, wanted)
	p.Must(err)
}

// run lets the worker prune every namespace once.
func (p *play) run() {
	p.T.Helper()
	p.Exec("UPDATE autoprunetaskstatus SET last_ran_ms = NULL")
	ctx, cancel := context.WithTimeout(p.T.Context(), time.Minute)
	ended := make(chan error, 1)
	go func() { ended <- p.pruner.Run(ctx) }()
	for ctx.Err() == nil && autoprunetest.Value[bool](p.Registry, "SELECT EXISTS (SELECT FROM autoprunetaskstatus WHERE last_ran_ms IS NULL OR run IS NOT NULL)") {
		time.Sleep(time.Millisecond)
	}
	late := ctx.Err()
	cancel()
	p.Must(errors.Join(late, <-ended))
}

// index returns an image index without manifests, which needs no blobs.
func index(name string) catalog.NewManifest {
	payload := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[],"annotations":{"name":%q}}`, name)
	m, err := oci.ParseManifest("application/vnd.oci.image.index.v1+json", payload)
	if err != nil {
		panic(err)
	}
	return catalog.NewManifest{Payload: payload, Manifest: m, Digest: oci.Compute(oci.SHA256, payload)}
}

// push pushes a manifest by tag. Its layers are the blob "all", and one of its own.
func (p *play) push(path, tag, manifest string) {
	m := index(manifest)
	m.Repository, m.Tags = path, []string{tag}
	p.Must(p.Catalog.PutManifest(p.T.Context(), m))
	for name, size := range map[string]int64{"all": 1000, manifest: int64(len(manifest)) * 7} {
		p.Exec("INSERT INTO blobs (digest, size, storage_key) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", autoprunetest.DigestOf(name).Bytes(), size, name)
		p.Exec(`INSERT INTO layers (top_level_namespace_id, repository_id, manifest_id, digest, size, media_type)
			SELECT m.top_level_namespace_id, m.repository_id, m.id, $3, $4, 'application/vnd.oci.image.layer.v1.tar'
			FROM manifests m JOIN repositories r ON r.id = m.repository_id WHERE r.path = $1 AND m.digest = $2 ON CONFLICT DO NOTHING`,
			path, m.Digest.Bytes(), autoprunetest.DigestOf(name).Bytes(), size)
	}
}

// client performs a random action in both repositories, and moves it `ago` into the past.
func (p *play) client(ago time.Duration) {
	tag := fmt.Sprintf("%s%d", []string{"v", "pr-", "keep-"}[p.rand.IntN(3)], p.rand.IntN(9))
	manifest := fmt.Sprint("m", p.rand.IntN(14))
	n := p.rand.IntN(100)
	if p.rand.IntN(4) == 0 {
		tag = strings.ReplaceAll(index(manifest).Digest.String(), ":", "-") + ".sig"
		manifest = fmt.Sprint("signature", p.rand.IntN(5))
	}
	if n >= 60 && n < 70 && slices.Contains(autoprunetest.Values[string](p.Registry, `SELECT t.name FROM tags t JOIN manifests m ON m.id = t.manifest_id
		WHERE m.digest = $1`, index(manifest).Digest.Bytes()), tag) {
		n = 0 // pointing a tag to the manifest that it has already isn't in the audit log
	}
	for _, path := range playPaths {
		var err error
		switch {
		case n < 60:
			p.push(path, tag, manifest)
		case n < 70:
			err = p.Catalog.PointTag(p.T.Context(), path, tag, index(manifest).Digest)
		case n < 80:
			err = p.Catalog.RestoreTag(p.T.Context(), path, tag, index(manifest).Digest)
		case n < 95:
			err = p.Catalog.DeleteTag(p.T.Context(), path, tag)
		default:
			p.used[path+":"+tag] = time.Now().Add(-ago)
		}
		if code := oci.CodeOf(err); err != nil && code != oci.ManifestUnknown {
			p.Must(err)
		}
	}
	p.Exec("UPDATE auditlog SET time = time - $1::interval WHERE time > now() - interval '1 minute'", ago)
	p.Exec(`UPDATE tags SET created_at = CASE WHEN created_at > now() - interval '1 minute' THEN created_at - $1::interval ELSE created_at END,
		updated_at = CASE WHEN updated_at > now() - interval '1 minute' THEN updated_at - $1::interval ELSE updated_at END
		WHERE GREATEST(created_at, updated_at) > now() - interval '1 minute'`, ago)
	p.Exec("UPDATE manifests SET created_at = created_at - $1::interval WHERE created_at > now() - interval '1 minute'", ago)
}

// night moves everything a day into the past, but for some seconds: so a run took place a little
// later than the forecast will assume. Otherwise the first run's deletions would be before the
// first day of the forecast.
func (p *play) night() {
	const day = day - 10*time.Second
	p.since = p.since.Add(-day)
	for k, at := range p.used {
		p.used[k] = at.Add(-day)
	}
	p.Exec(`UPDATE auditlog SET time = time - $1::interval, detail = CASE WHEN kind = 'autoprune_tag_delete' THEN
		detail || jsonb_strip_nulls(jsonb_build_object('created_at', (detail->>'created_at')::timestamptz - $1::interval,
			'updated_at', (detail->>'updated_at')::timestamptz - $1::interval)) ELSE detail END`, day)
	p.Exec("UPDATE tags SET created_at = created_at - $1::interval, updated_at = updated_at - $1::interval", day)
	p.Exec("UPDATE manifests SET created_at = created_at - $1::interval", day)
}

// moment is a time of the day that ends now, at least ten minutes from its beginning and end.
func (p *play) moment() time.Duration {
	return 10*time.Minute + time.Duration(p.rand.IntN(23*60+40))*time.Minute
}

// days lets days pass, with a run at the end of each, and returns the tags that each run deleted.
func (p *play) days(n, actions int) (observed [][]string) {
	for i := range n {
		var times []time.Duration
		for range actions {
			times = append(times, p.moment())
		}
		slices.Sort(times)
		slices.Reverse(times)
		for _, ago := range times {
			p.client(ago)
		}
		before := autoprunetest.Value[int64](p.Registry, "SELECT COALESCE(max(id), 0) FROM auditlog")
		p.run()
		observed = append(observed, autoprunetest.Values[string](p.Registry,
			"SELECT repository || ':' || tag FROM auditlog WHERE kind = 'autoprune_tag_delete' AND id > $1 ORDER BY tag", before))
		if i < n-1 {
			p.night()
		}
	}
	return observed
}

// past fills the repositories with what clients did before the first day.
func (p *play) past() {
	for ago := testscale.Pick(25*day, 60*day); ago > day; ago -= p.moment() * 2 {
		p.client(ago)
	}
}

// forecast returns the tags that a forecast of a namespace deletes on each day.
func (p *play) forecast(namespace string, o forecast.Options) (deleted [][]string, f *forecast.Forecast) {
	p.T.Helper()
	deleted = make([][]string, o.Days)
	f, err := p.forecaster.Forecast(p.T.Context(), policies.Target{Namespace: namespace}, o.Told(func(day int, repository, tag string) {
		deleted[day] = append(deleted[day], repository+":"+tag)
	}))
	p.Must(err)
	if !f.Complete || len(f.Days) != o.Days {
		p.T.Fatalf("the forecast has %d days: %+v", len(f.Days), f)
	}
	for i, list := range deleted {
		if slices.Sort(list); f.Days[i].Deleted != int64(len(list)) {
			p.T.Fatalf("day %d: %+v, and not %d tags", i, f.Days[i], len(list))
		}
	}
	return deleted, f
}

// TestForecastIsWhatHappens: the same random days pass in two repositories, one with policies and
// one with the same policies in the mode observe. A forecast at the end must say of each day what
// the runs in the first repository have deleted on that day, in both repositories.
func TestForecastIsWhatHappens(t *testing.T) {
	t.Parallel()
	for seed, texts := range [][]string{
		{`{"method": "creation_date", "olderThan": "5d"%s}`},
		{`{"method": "number_of_tags", "numTags": 4%s}`},
		{`{"method": "creation_date", "olderThan": "3d", "tagPattern": "^pr-"%s}`, `{"method": "number_of_tags", "numTags": 5, "keep": [{"tagPattern": "^keep-1"}]%s}`},
		{`{"method": "creation_date", "olderThan": "2d", "removeOrphans": true, "neverBelow": 3%s}`},
		{`{"method": "number_of_tags", "numTags": 6, "keep": [{"newest": 1, "groupBy": "^([a-z]+)"}]%s}`, `{"method": "creation_date", "olderThan": "12d", "largerThan": "90"%s}`},
		{`{"method": "number_of_tags", "numTags": 2, "annotations": {"name": "m1*"}%s}`, `{"method": "creation_date", "olderThan": "9d", "annotations": {"name": "*"}, "keep": [{"newest": 2}]%s}`},
	} {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			days := testscale.Pick(8, 14)
			p := newPlay(t, uint64(seed))
			p.past()
			for _, text := range texts {
				p.policy(policies.Target{Namespace: "on"}, fmt.Sprintf(text, ""))
				p.policy(policies.Target{Namespace: "off"}, fmt.Sprintf(text, `, "mode": "observe"`))
			}
			observed := p.days(days, 5)
			total := 0
			for i := range observed {
				total += len(observed[i])
			}
			if total < 10 {
				t.Fatalf("only %d tags were deleted", total)
			}
			for _, namespace := range []string{"off", "on"} {
				deleted, f := p.forecast(namespace, forecast.Options{Days: days})
				for i := range deleted {
					want := strings.ReplaceAll(fmt.Sprint(observed[i]), "on/r:", namespace+"/r:")
					if got := fmt.Sprint(deleted[i]); got != want {
						t.Errorf("%s: on day %d the forecast deletes\n%s\nand the run has deleted\n%s", namespace, i, got, want)
					}
				}
				if f.Deleted != int64(total) {
					t.Errorf("%s: %d tags in total, not %d", namespace, f.Deleted, total)
				}
			}
		})
	}
}
