package autoprune_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/forecast"
	"github.com/purser-registry/purser/internal/autoprune/policies"
)

// TestTwoAtOnceSayTheSame: previews and forecasts must say the same, whether two repositories are looked at
// at once or one after the other.
func TestTwoAtOnceSayTheSame(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *autoprune.Options) { o.Page = 5 })
	l := &library{registry: r, rnd: rand.New(rand.NewPCG(10, 1))}
	l.fill()
	for i := range 4 {
		l.stock(r.Repository(fmt.Sprintf("n/more%d", i)))
	}
	r.policy(policies.Target{Namespace: "n"}, `{"method": "number_of_tags", "numTags": 1, "mode": "observe"}`)
	r.policy(policies.Target{Repository: "n/more1"}, `{"method": "creation_date", "olderThan": "1d", "keepUntagged": "30d"}`)
	say := func() (texts []string) {
		t.Helper()
		for _, limit := range []int{1, 7, 10_000} {
			p, err := r.pruner.Preview(t.Context(), policies.Target{Namespace: "n"}, autoprune.PreviewOptions{Limit: limit})
			r.Must(err)
			p.Now = time.Time{}
			text, err := json.Marshal(p)
			r.Must(err)
			texts = append(texts, string(text))
		}
		f, err := r.forecasts().Forecast(t.Context(), policies.Target{Namespace: "n"}, forecast.Options{Days: 3})
		r.Must(err)
		f.Now, f.Since = time.Time{}, time.Time{}
		for i := range f.Days {
			f.Days[i].At = time.Time{}
		}
		text, err := json.Marshal(f)
		r.Must(err)
		return append(texts, string(text))
	}
	two := say()
	giveBack, err := r.pruner.Repositories.TakePlace(t.Context())
	r.Must(err)
	one := say()
	giveBack()
	for i := range two {
		if one[i] != two[i] {
			t.Errorf("one after the other:\n%s\ntwo at once:\n%s", one[i], two[i])
		}
	}
}
