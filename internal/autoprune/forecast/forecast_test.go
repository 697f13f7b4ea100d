package forecast_test

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/forecast"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
	"github.com/purser-registry/purser/internal/protection"
)

// listed is a tag as the plain calculations of these tests see it.
type listed struct {
	name   string
	pushed time.Time
	blobs  map[string]int64
}

// listed reads the tags of a repository, newest first.
func (p *play) listed(path string) (list []listed) {
	p.T.Helper()
	rows, err := p.DB.Pool.Query(p.T.Context(), `
		SELECT t.name, COALESCE(t.updated_at, t.created_at), encode(l.digest, 'hex'), l.size
		FROM tags t JOIN repositories r ON r.id = t.repository_id JOIN layers l ON l.manifest_id = t.manifest_id
		WHERE r.path = $1 ORDER BY 2 DESC, 1 DESC`, path)
	p.Must(err)
	defer rows.Close()
	for rows.Next() {
		var name, blob string
		var pushed time.Time
		var size int64
		p.Must(rows.Scan(&name, &pushed, &blob, &size))
		if len(list) == 0 || list[len(list)-1].name != name {
			list = append(list, listed{name, pushed, map[string]int64{}})
		}
		list[len(list)-1].blobs[blob] = size
	}
	p.Must(rows.Err())
	return list
}

// stored adds up the blobs of tags, each once.
func stored(list []listed) (sum int64) {
	all := map[string]int64{}
	for _, t := range list {
		maps.Copy(all, t.blobs)
	}
	for _, size := range all {
		sum += size
	}
	return sum
}

// TestForecastSettings compares what is stored at each setting, and what would be free since
// each day, with plain calculations over lists of tags.
func TestForecastSettings(t *testing.T) {
	t.Parallel()
	p := newPlay(t, 11)
	for i := range 60 {
		tag := fmt.Sprintf("%s%d", []string{"v", "pr-"}[i%2], i)
		p.push("off/r", tag, fmt.Sprint("m", p.rand.IntN(40)))
		p.Exec("UPDATE tags SET created_at = created_at - $1::interval WHERE name = $2", time.Duration(60-i)*day-time.Hour, tag)
		p.Exec("UPDATE auditlog SET time = time - $1::interval WHERE tag = $2", time.Duration(60-i)*day-time.Hour, tag)
	}
	list := p.listed("off/r")
	ages := map[string]int{"7d": 7, "2w": 14, "40d": 40, "1y": 365}
	tried, err := policy.Parse([]byte(`{"method": "creation_date", "olderThan": "30d", "tagPattern": "^pr-"}`))
	p.Must(err)
	_, f := p.forecast("off", forecast.Options{Policy: &tried, Days: 20, Settings: []string{"40d", "1y", "2w", "7d", "14d"}})
	if *f.Bytes != stored(list) || f.Tags != 60 || len(f.Settings) != len(ages) {
		t.Fatalf("%+v; the tags need %d bytes", f, stored(list))
	}
	stays := func(tag listed, days int) bool {
		return !strings.HasPrefix(tag.name, "pr-") || !tag.pushed.Before(f.Now.Add(-time.Duration(days)*day))
	}
	for i, s := range f.Settings {
		left := slices.DeleteFunc(slices.Clone(list), func(tag listed) bool { return !stays(tag, ages[s.Value]) })
		if s.Tags != int64(len(left)) || s.Deleted != int64(len(list)-len(left)) || *s.Bytes != stored(left) {
			t.Errorf("%s: %d tags, %d bytes and not %d, %d", s.Value, s.Tags, *s.Bytes, len(left), stored(left))
		}
		if i > 0 && s.Tags < f.Settings[i-1].Tags {
			t.Errorf("%s keeps fewer tags than %s", s.Value, f.Settings[i-1].Value)
		}
	}
	sum := int64(0)
	for i, d := range f.Days {
		left := slices.DeleteFunc(slices.Clone(list), func(tag listed) bool { return !stays(tag, 30+len(f.Days)-1-i) })
		if sum += *d.Freed; sum != stored(list)-stored(left) {
			t.Errorf("until day %d %d bytes are free and not %d", i, sum, stored(list)-stored(left))
		}
	}
	if sum != *f.Freed || sum == 0 {
		t.Errorf("%d bytes in total are free, and not %d", *f.Freed, sum)
	}

	tried, err = policy.Parse([]byte(`{"method": "number_of_tags", "numTags": 3}`))
	p.Must(err)
	_, f = p.forecast("off", forecast.Options{Policy: &tried, Days: 3, Settings: []string{"100", "10", "1"}})
	for i, n := range []int{1, 10, 60} {
		if s := f.Settings[i]; s.Tags != int64(n) || *s.Bytes != stored(list[:n]) {
			t.Errorf("%s: %d tags, %d bytes and not %d, %d", s.Value, s.Tags, *s.Bytes, n, stored(list[:n]))
		}
	}
}

// TestForecastKeepsWhatIndexesNeed: the bytes of a manifest count as long as an index that lists
// it, or the subject that it refers to, is stored.
func TestForecastKeepsWhatIndexesNeed(t *testing.T) {
	t.Parallel()
	r := newPlay(t, 1)
	a := r.Repository("app/a")
	r.Tag(a, "old", "index", 20*day-time.Hour)
	r.Tag(a, "new", "image", time.Hour)
	r.Index(a, "index", "child")
	r.Manifest(a, "signature", "child")
	for name, size := range map[string]int64{"child": 1, "image": 10, "signature": 100} {
		r.Layer(a, name, "blob of "+name, size)
	}
	r.Layer(a, "child", "shared", 1000)
	r.Layer(a, "image", "shared", 1000)
	r.Exec("INSERT INTO auditlog (kind, time) VALUES ('run_check', now() - interval '1 year')")
	policy, err := policy.Parse([]byte(`{"method": "creation_date", "olderThan": "15d"}`))
	r.Must(err)
	f, err := r.forecaster.Forecast(t.Context(), policies.Target{Repository: "app/a"},
		forecast.Options{Policy: &policy, Days: 10, Settings: []string{"15d", "30d"}})
	r.Must(err)
	if *f.Bytes != 1111 || *f.Freed != 101 || *f.Days[5].Freed != 101 || *f.Settings[0].Bytes != 1010 || *f.Settings[1].Bytes != 1111 {
		t.Errorf("%d bytes, %d free, %d on the day, %d and %d at the settings", *f.Bytes, *f.Freed, *f.Days[5].Freed, *f.Settings[0].Bytes, *f.Settings[1].Bytes)
	}
}

// TestForecastOfLastUse: statistics have only the last use of a tag. A forecast says that a tag
// goes on a day only if this last use was before the day; then a run would have deleted it then.
func TestForecastOfLastUse(t *testing.T) {
	t.Parallel()
	const days = 20
	p := newPlay(t, 21)
	for _, path := range playPaths {
		for i := range 12 {
			p.push(path, fmt.Sprint("v", i), fmt.Sprint("m", i))
		}
	}
	p.Exec("UPDATE auditlog SET time = time - interval '30 days'")
	p.Exec("UPDATE tags SET created_at = created_at - interval '30 days'")
	policy := `{"method": "last_pulled", "olderThan": "4d"%s}`
	p.policy(policies.Target{Namespace: "on"}, fmt.Sprintf(policy, ""))
	p.policy(policies.Target{Namespace: "off"}, fmt.Sprintf(policy, `, "mode": "observe"`))
	gone := map[string]int{}
	for i := range days {
		for tag := range 12 { // v0 is never used, v11 almost every day, tags with even numbers only at first
			if name := fmt.Sprint("v", tag); p.rand.IntN(11) < tag && (i < 9 || tag%2 == 1) {
				at := time.Now().Add(-p.moment())
				p.used["off/r:"+name], p.used["on/r:"+name] = at, at
			}
		}
		before := autoprunetest.Value[int64](p.Registry, "SELECT max(id) FROM auditlog")
		p.run()
		for _, tag := range autoprunetest.Values[string](p.Registry, "SELECT tag FROM auditlog WHERE kind = 'autoprune_tag_delete' AND id > $1", before) {
			gone[tag] = i
		}
		if i < days-1 {
			p.night()
		}
	}
	deleted, f := p.forecast("off", forecast.Options{Days: days})
	foretold := map[string]int{}
	for i, list := range deleted {
		for _, tag := range list {
			foretold[strings.TrimPrefix(tag, "off/r:")] = i
		}
	}
	same := 0
	for i := range 12 {
		tag := fmt.Sprint("v", i)
		told, is := foretold[tag]
		real, was := gone[tag]
		switch last := p.used["off/r:"+tag]; {
		case is && f.Days[told].At.Before(last):
			t.Errorf("%s was used at %s, after the forecast deletes it at %s", tag, last, f.Days[told].At)
		case is && (!was || real > told):
			t.Errorf("%s is deleted on day %d in the forecast, and really on day %d", tag, told, real)
		case was && f.Days[real].At.After(last):
			if same++; !is || told != real {
				t.Errorf("%s was deleted on day %d, after its last use, and the forecast says %d", tag, real, told)
			}
		}
	}
	if same < 2 || !slices.ContainsFunc(f.Notes, func(n string) bool { return strings.Contains(n, "last use") }) {
		t.Errorf("%d tags are compared; notes: %q", same, f.Notes)
	}
}

// TestForecastBounds checks the errors, and what a forecast is when it can't be complete.
func TestForecastBounds(t *testing.T) {
	p := newPlay(t, 31)
	target := policies.Target{Namespace: "off"}
	policy, err := policy.Parse([]byte(`{"method": "creation_date", "olderThan": "30d"}`))
	p.Must(err)
	for _, settings := range [][]string{{"0d"}, {"5"}, {""}, slices.Repeat([]string{"3d"}, 17)} {
		_, err := p.forecaster.Forecast(t.Context(), target, forecast.Options{Policy: &policy, Settings: settings})
		if answer, ok := errors.AsType[*oci.Error](err); !ok || answer.HTTPStatus() != http.StatusBadRequest {
			t.Errorf("settings %q: %v", settings, err)
		}
	}
	for name, refused := range map[string]func() error{
		"settings without a policy": func() error {
			_, err := p.forecaster.Forecast(t.Context(), target, forecast.Options{Settings: []string{"5d"}})
			return err
		},
		"no target": func() error {
			_, err := p.forecaster.Forecast(t.Context(), policies.Target{}, forecast.Options{})
			return err
		},
		"unknown target": func() error {
			_, err := p.forecaster.Forecast(t.Context(), policies.Target{Repository: "off/none"}, forecast.Options{})
			return err
		},
	} {
		if refused() == nil {
			t.Errorf("%s: no error", name)
		}
	}

	// Without an audit log, only the present can be judged.
	f, err := p.forecaster.Forecast(t.Context(), target, forecast.Options{Policy: &policy})
	p.Must(err)
	if len(f.Days) != 1 || !f.Complete || len(f.Notes) != 1 || *f.Bytes != 0 {
		t.Errorf("without an audit log: %+v", f)
	}
	for i := range 5 {
		p.push("off/r", fmt.Sprint("v", i), fmt.Sprint("m", i))
	}
	p.Exec("UPDATE auditlog SET time = time - interval '10 days 1 hour'")
	for days, want := range map[int]int{0: 11, 5: 5, 1000: 11} {
		f, err := p.forecaster.Forecast(t.Context(), target, forecast.Options{Policy: &policy, Days: days})
		p.Must(err)
		if len(f.Days) != want || !f.Days[want-1].At.Equal(f.Now) || !f.Days[0].At.Equal(f.Since) {
			t.Errorf("%d days: %+v", days, f)
		}
	}
	f, err = p.forecaster.Forecast(t.Context(), target, forecast.Options{Policy: &policy, Within: time.Nanosecond})
	p.Must(err)
	if f.Complete || f.Bytes != nil && *f.Bytes != 0 {
		t.Errorf("without time: %+v", f)
	}
	restore := forecast.SetMax(4, 100)
	f, err = p.forecaster.Forecast(t.Context(), target, forecast.Options{Policy: &policy, Days: 20})
	p.Must(err)
	if f.Complete || f.Tags != 0 || !slices.ContainsFunc(f.Notes, func(n string) bool { return strings.Contains(n, "off/r") }) {
		t.Errorf("a large repository: %+v", f)
	}
	restore()
	restore = forecast.SetMax(100, 4)
	defer restore()
	f, err = p.forecaster.Forecast(t.Context(), target, forecast.Options{Policy: &policy})
	p.Must(err)
	if f.Complete || f.Tags != 5 || f.Bytes != nil {
		t.Errorf("many manifests: %+v", f)
	}
}

// TestForecastRespectsHoldsAndProtection: what is protected or held now stays on all days.
func TestForecastRespectsHoldsAndProtection(t *testing.T) {
	t.Parallel()
	r := newPlay(t, 1)
	a := r.Repository("app/a")
	for i, name := range []string{"held", "protected", "free"} {
		r.Tag(a, name, fmt.Sprint("m", i), 20*day)
	}
	r.Exec("INSERT INTO auditlog (kind, time) VALUES ('run_check', now() - interval '1 year')")
	r.Hold("app", "m0")
	r.Must(r.Protect(protection.Scope{Namespace: "app"}, "^protected$"))
	policy, err := policy.Parse([]byte(`{"method": "creation_date", "olderThan": "10d"}`))
	r.Must(err)
	var deleted []string
	_, err = r.forecaster.Forecast(t.Context(), policies.Target{Namespace: "app"}, forecast.Options{Policy: &policy, Settings: []string{"1d"}}.
		Told(func(_ int, _, tag string) { deleted = append(deleted, tag) }))
	r.Must(err)
	if fmt.Sprint(deleted) != "[free]" {
		t.Errorf("the forecast deletes %q", deleted)
	}
}

// TestForecastOfBytesInTwoRepositories compares the bytes of a forecast by max_bytes, which the forecast adds
// up itself, and which the database adds up if there are too many blobs, with plain sums. The
// repositories share blobs.
func TestForecastOfBytesInTwoRepositories(t *testing.T) {
	p := newPlay(t, 12)
	paths := []string{"off/r", "off/s"}
	p.ids[p.Repository("off/s").ID] = "off/s"
	for i := range 40 {
		path, tag := paths[i%2], fmt.Sprint("v", i)
		p.push(path, tag, fmt.Sprint("m", p.rand.IntN(30)))
		p.Exec("UPDATE tags SET created_at = created_at - $1::interval WHERE name = $2", time.Duration(40-i)*day-time.Hour, tag)
		p.Exec("UPDATE auditlog SET time = time - $1::interval WHERE tag = $2", time.Duration(40-i)*day-time.Hour, tag)
	}
	p.since = time.Now().Add(-time.Hour * 24 * 365)
	lists := [][]listed{p.listed(paths[0]), p.listed(paths[1])}
	// left returns the tags that fit into a size in each repository; an index itself has some bytes, too.
	left := func(limit int64) (all []listed) {
		for i, list := range lists {
			n := 0
			for n < len(list) && stored(list[:n+1])+p.payloads(paths[i], list[:n+1]) <= limit {
				n++
			}
			all = append(all, list[:n]...)
		}
		return all
	}
	const limit = 3000
	policy, err := policy.Parse([]byte(`{"method": "max_bytes", "maxBytes": "3000"}`))
	p.Must(err)
	for _, inMemory := range []int{1_000_000, 0} {
		restore := forecast.SetMaxBlobs(inMemory)
		_, f := p.forecast("off", forecast.Options{Policy: &policy, Days: 20, Settings: []string{"2kB", "1GB"}})
		restore()
		all := slices.Concat(lists...)
		if *f.Bytes != stored(all) || *f.Freed != stored(all)-stored(left(limit)) || *f.Freed == 0 {
			t.Errorf("%d bytes, %d free, and not %d, %d", *f.Bytes, *f.Freed, stored(all), stored(all)-stored(left(limit)))
		}
		if s := f.Settings; *s[0].Bytes != stored(left(2000)) || *s[1].Bytes != stored(all) {
			t.Errorf("%d and %d bytes at the settings, and not %d, %d", *s[0].Bytes, *s[1].Bytes, stored(left(2000)), stored(all))
		}
	}
}

// payloads adds up the manifests of tags, each once.
func (p *play) payloads(path string, list []listed) int64 {
	names := make([]string, len(list))
	for i := range list {
		names[i] = list[i].name
	}
	return autoprunetest.Value[int64](p.Registry, `SELECT COALESCE(sum(octet_length(payload)), 0) FROM manifests m WHERE id IN (
		SELECT t.manifest_id FROM tags t JOIN repositories r ON r.id = t.repository_id WHERE r.path = $1 AND t.name = ANY ($2))`, path, names)
}
