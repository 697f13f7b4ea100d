package autoprune_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/forecast"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/policy"
	"github.com/purser-registry/purser/internal/protection"
)

// used is a registry whose tags were used at given times.
type used struct {
	*registry
	pulls judge.PullRecord
	start time.Time
	ages  map[string]time.Duration // how long before `start` a tag was last used
	asked func(tag *judge.Tag)     // called when a last use was asked for
}

func newUsed(t *testing.T) *used {
	u := &used{start: time.Now().Add(-time.Minute), pulls: judge.PullRecord{Since: time.Now().Add(-1000 * day)}, ages: map[string]time.Duration{}}
	u.registry = setup(t, func(o *autoprune.Options) {
		o.Pulls = func(context.Context) (judge.PullRecord, error) { return u.pulls, nil }
		o.Used = func(_ context.Context, _ int64, tags []*judge.Tag) error {
			for _, tag := range tags {
				if age, ok := u.ages[tag.Name]; ok {
					tag.Pulled = u.start.Add(-age)
				}
				if u.asked != nil {
					u.asked(tag)
				}
			}
			return nil
		}
	})
	return u
}

// image pushes a tag, ten days ago, whose manifest of 2 bytes has a layer of its own and one that
// all have, and which was last used `age` before the test's start.
func (u *used) image(target catalog.Repository, name string, size int64, age time.Duration) {
	u.Tag(target, name, name, 10*day)
	u.Layer(target, name, "layer of "+name, size)
	u.Layer(target, name, "base", 1000)
	u.ages[name] = age
}

// TestMaxBytes: of a repository's images, the least recently used go until the rest fits. A layer
// that images share counts once, signatures and images of an index count with them. What is held,
// kept, protected or restored stays, and takes nothing from others.
func TestMaxBytes(t *testing.T) {
	t.Parallel()
	u := newUsed(t)
	target := u.Repository("app/a")
	for i := range 8 {
		u.image(target, fmt.Sprint("v", i), 100, time.Duration(i)*time.Hour)
	}
	u.Tag(target, "moved", "v0", 9*day)
	u.Index(target, "v1", "part")
	u.Layer(target, "part", "layer of part", 50)
	u.Manifest(target, "report", "v2")
	u.Layer(target, "report", "layer of report", 20)
	u.Tag(target, strings.Replace(autoprunetest.DigestOf("v6").String(), ":", "-", 1)+".sig", "signature of v6", time.Hour)
	u.Layer(target, "signature of v6", "layer of v6's signature", 7)

	for size, want := range map[int64]string{
		1000 + 8*100 + 77 + 11*2:     "moved v0 v1 v2 v3 v4 v5 v6 v7",
		1000 + 8*100 + 77 + 11*2 - 1: "v0 v1 v2 v3 v4 v5 v6",
		1000 + 7*100 + 77 + 10*2 - 1: "v0 v1 v2 v3 v4 v5",
		1000 + 3*100 + 70 + 5*2:      "v0 v1 v2",
		1000 + 3*100 + 70 + 5*2 - 1:  "v0 v1",
		1000 + 2*100 + 50 + 3*2:      "v0 v1",
		1000 + 2*100 + 50 + 3*2 - 1:  "v0",
		1000 + 101:                   "",
	} {
		p := autoprunetest.Parsed(t, fmt.Sprintf(`{"method": "max_bytes", "maxBytes": "%d"}`, size))
		preview, err := u.pruner.Preview(t.Context(), policies.Target{Namespace: "app"}, autoprune.PreviewOptions{Policy: &p})
		u.Must(err)
		var stay []string
		for _, one := range preview.Staying {
			if !strings.HasSuffix(one.Tag, ".sig") {
				stay = append(stay, one.Tag)
			}
		}
		if got := strings.Join(stay, " "); got != want {
			t.Errorf("with %d bytes, %s stay, want %s", size, got, want)
		}
		u.sameForecast(p, preview)
	}

	u.Hold("app", "v7")
	u.Must(u.Protect(protection.Scope{Namespace: "app"}, "^v6$"))
	u.policy(policies.Target{Namespace: "app"}, `{"method": "max_bytes", "maxBytes": "1310", "keep": [{"tagPattern": "^v5$"}], "neverBelow": 1}`)
	u.run()
	sig := strings.Replace(autoprunetest.DigestOf("v6").String(), ":", "-", 1) + ".sig"
	if got := u.Tags(target); !slices.Equal(got, []string{"moved", sig, "v0", "v1", "v5", "v6", "v7"}) {
		t.Fatalf("after the run there are %v", got)
	}
	want := `beyond_bytes last used at .*, not among the most recently used tags that fit into 1310`
	if got := autoprunetest.Values[string](u.Registry, "SELECT concat_ws(' ', detail->>'code', detail->>'reason') FROM auditlog WHERE kind = 'autoprune_tag_delete' ORDER BY tag"); len(got) != 3 ||
		!regexp.MustCompile(want).MatchString(got[0]) {
		t.Errorf("the audit log has %q, want %s", got, want)
	}
	runs, _, err := u.pruner.Runs(t.Context(), "app", "", 10)
	u.Must(err)
	_, err = u.pruner.Undo(t.Context(), runs[0].ID, "", time.Minute)
	u.Must(err)
	u.ages["v4"] = 0 // now it is the most recently used, and yet takes no place
	u.run()
	if got := u.Tags(target); len(got) != 10 {
		t.Errorf("after the undo and another run there are %v", got)
	}
}

// sameForecast fails unless a forecast of one day says the same as a preview.
func (u *used) sameForecast(p policy.Policy, preview *autoprune.Preview) {
	u.T.Helper()
	f, err := u.forecasts().Forecast(u.T.Context(), policies.Target{Namespace: "app"},
		forecast.Options{Policy: &p, Days: 1, Settings: []string{p.Value().(string), "1GiB"}})
	u.Must(err)
	if f.Deleted != preview.Deleted || *f.Freed != *preview.Bytes || f.Settings[0].Deleted != preview.Deleted || f.Settings[1].Deleted != 0 {
		u.T.Errorf("a forecast of %v says %+v, and a preview %d tags of %d bytes", p, f, preview.Deleted, *preview.Bytes)
	}
}

// TestMaxBytesLooksAgain: a client pulls one of the tags that go after the tags were judged, and
// before they are deleted. That tag must stay.
func TestMaxBytesLooksAgain(t *testing.T) {
	t.Parallel()
	u := newUsed(t)
	target := u.Repository("app/a")
	for i := range 5 {
		u.image(target, fmt.Sprint("v", i), 100, time.Duration(i)*time.Hour)
	}
	times := 0
	u.asked = func(tag *judge.Tag) {
		if tag.Name == "v3" {
			if times++; times == 2 {
				tag.Pulled = time.Now()
			}
		}
	}
	u.policy(policies.Target{Namespace: "app"}, `{"method": "max_bytes", "maxBytes": "1250"}`)
	u.run()
	if got := u.Tags(target); !slices.Equal(got, []string{"v0", "v1", "v3"}) {
		t.Errorf("after the run there are %v", got)
	}
}

// TestMaxBytesWithoutStatistics: if pull statistics are missing or late, max_bytes policies delete
// nothing. If they began after tags were pushed that weren't used since, these tags aren't counted.
func TestMaxBytesWithoutStatistics(t *testing.T) {
	t.Parallel()
	u := newUsed(t)
	target := u.Repository("app/a")
	for i := range 5 {
		u.image(target, fmt.Sprint("v", i), 100, time.Duration(i)*time.Hour)
	}
	delete(u.ages, "v3")
	delete(u.ages, "v4") // not known to be used since the push, ten days ago
	for _, one := range []struct {
		pulls judge.PullRecord
		bytes int
		goes  int64
		says  string
	}{
		{judge.PullRecord{}, 1, 0, "there are no pull statistics yet"},
		{judge.PullRecord{Since: time.Unix(0, 0), Behind: 2 * time.Hour}, 1, 0, "2h0m0s behind"},
		{judge.PullRecord{Since: time.Unix(0, 0), Unknown: "Redis is gone"}, 1, 0, "Redis is gone"},
		{judge.PullRecord{Since: time.Now().Add(-20 * day)}, 1350, 2, ""},
		{judge.PullRecord{Since: time.Now().Add(-9 * day)}, 1350, 0, "it doesn't count 2 tags"},
		{judge.PullRecord{Since: time.Now().Add(-9 * day)}, 1300, 3, "it doesn't count 2 tags"},
	} {
		u.pulls = one.pulls
		p := autoprunetest.Parsed(t, fmt.Sprintf(`{"method": "max_bytes", "maxBytes": "%d"}`, one.bytes))
		preview, err := u.pruner.Preview(t.Context(), policies.Target{Namespace: "app"}, autoprune.PreviewOptions{Policy: &p})
		u.Must(err)
		if preview.Deleted != one.goes || !strings.Contains(preview.Policies[0].Notice, one.says) {
			t.Errorf("with %+v, %d tags go: %s", one.pulls, preview.Deleted, preview.Policies[0].Notice)
		}
	}
	u.pulls = judge.PullRecord{Since: time.Now().Add(-20 * day)}
	u.asked = func(tag *judge.Tag) { // as if the last use of these couldn't be read
		if tag.Name < "v3" {
			tag.Pulled, tag.UseUnknown = time.Now(), true
		}
	}
	p := autoprunetest.Parsed(t, `{"method": "max_bytes", "maxBytes": "1250"}`)
	preview, err := u.pruner.Preview(t.Context(), policies.Target{Namespace: "app"}, autoprune.PreviewOptions{Policy: &p})
	u.Must(err)
	if preview.Deleted != 0 || preview.Reasons[judge.WithinBytes] != 5 {
		t.Errorf("of tags whose last use can't be read, %d go: %v", preview.Deleted, preview.Reasons)
	}
}
