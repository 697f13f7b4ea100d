package pullstats

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/pullstats/redispulls"
)

func TestIgnorePatterns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, text string
		want          bool
	}{
		{"", "", true}, {"", "x", false}, {"x", "x", true}, {"x", "xx", false}, {"*", "", true}, {"*", "anything", true},
		{"trivy/*", "trivy/0.50", true}, {"trivy/*", "trivy/", true}, {"trivy/*", "Trivy/0.50", false}, {"trivy/*", "not trivy/0.50", false},
		{"*Grype*", "anchore Grype 1", true}, {"*Grype*", "Gripe", false}, {"*/1", "a/1", true}, {"*/1", "a/1/2", false},
		{"a*a", "a", false}, {"a*a", "aa", true}, {"a*b*c", "axbxc", true}, {"a*b*c", "acb", false}, {"a*b*b*c", "abc", false},
		{"a*b*b*c", "abbc", true}, {"**", "x", true}, {"a**b", "ab", true}, {"*ab*ab", "ab", false}, {"*ab*ab", "abab", true},
	} {
		if got := matches(c.pattern, c.text); got != c.want {
			t.Errorf("%q of %q: %v", c.pattern, c.text, got)
		}
	}
}

// A client sends a HEAD by tag and then a GET by digest: this must count as one pull of the
// tag. The client's second GET, GETs of other clients, and GETs of other manifests or in
// other repositories must count for their manifests alone. This holds if pulls are counted
// from the audit log and if Redis counts them.
func TestPullInTwoRequests(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"log", "redis"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := open(t, false, 2)
			var r *redispulls.Client
			if how == "redis" {
				r = startRedis(t).open(t, s.stats)
			}
			rec := s.recorder(t, r)
			rec.Checked(t.Context(), s.client("a", 0, "v1", "x"))
			rec.Pulled(t.Context(), s.client("a", 0, "", "x")) // the pull of v1
			rec.Pulled(t.Context(), s.client("a", 0, "", "x")) // by digest
			rec.Checked(t.Context(), s.client("b", 0, "v2", "x"))
			rec.Pulled(t.Context(), s.client("c", 0, "", "x")) // another client
			rec.Pulled(t.Context(), s.client("b", 0, "", "y")) // another manifest
			rec.Pulled(t.Context(), s.client("b", 1, "", "x")) // another repository
			rec.Checked(t.Context(), s.client("d", 0, "v3", "x"))
			finish(t, rec)
			s.count(t, r)
			got := s.books(t)
			for name, want := range map[string]int64{
				tagName(s, 0, "v1"): 1, tagName(s, 0, "v2"): 0, tagName(s, 0, "v3"): 0,
				manifestName(s, 0, "x"): 3, manifestName(s, 0, "y"): 1, manifestName(s, 1, "x"): 1,
			} {
				if got[name].Count != want {
					t.Errorf("%s: %d pulls, want %d", name, got[name].Count, want)
				}
			}
			// A HEAD must set the tag's last-used time, even if no GET follows.
			if n := number(t, s.stats, "SELECT count(*) FROM tagpullstatistics WHERE last_check_date > now() - interval '1 minute'"); n != 3 {
				t.Errorf("%d tags were asked about, want 3", n)
			}
		})
	}
}

// count flushes Redis, if r isn't nil, and lets a SyncWorker count all pulls in the audit
// log.
func (s *shop) count(t testing.TB, r *redispulls.Client) {
	t.Helper()
	if r != nil {
		must(t, s.flusher(t, r).Flush(t.Context()))
	}
	settle(t, s.worker(t))
}

// One process answers a client's HEAD by tag and another one answers its GET by digest. With
// a common Redis, the HEAD and the GET must count as one pull of the tag.
func TestPullInTwoProcesses(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	r := startRedis(t).open(t, s.stats)
	one, two, three := s.recorder(t, r), s.recorder(t, r), s.recorder(t, r)
	one.Checked(t.Context(), s.client("a", 0, "v1", "x"))
	finish(t, one)
	two.Pulled(t.Context(), s.client("a", 0, "", "x"))
	finish(t, two)
	three.Pulled(t.Context(), s.client("a", 0, "", "x")) // the HEAD is used up
	// The third process answers a client's HEAD and the GET that belongs to it. The fourth
	// process then answers another GET, which must not be joined with the same HEAD.
	three.Checked(t.Context(), s.client("b", 0, "v2", "x"))
	three.Pulled(t.Context(), s.client("b", 0, "", "x"))
	finish(t, three)
	four := s.recorder(t, r)
	four.Pulled(t.Context(), s.client("b", 0, "", "x"))
	finish(t, four)
	s.count(t, r)
	got := s.books(t)
	if v1, v2, m := got[tagName(s, 0, "v1")].Count, got[tagName(s, 0, "v2")].Count, got[manifestName(s, 0, "x")].Count; v1 != 1 || v2 != 1 || m != 4 {
		t.Errorf("v1 %d, v2 %d, manifest %d; want 1, 1, 4", v1, v2, m)
	}
}

// A process logs pulls and doesn't count them. If it drops pulls, because the log's buffer is full, or
// stops without having written them, the statistics must count as complete only from then on.
func TestLoggedPullsAreLost(t *testing.T) {
	t.Parallel()
	each(t, 1, func(t *testing.T, s *shop) {
		must(t, s.worker(t).Sync(t.Context()))
		logging := func() *Recorder {
			exec(t, s.stats, "UPDATE pullstatisticsprocessingstate SET recorded_since = now() - interval '60 days'")
			log := audit.NewRecorder(audit.RecorderOptions{DB: s.log, Buffer: 1, Patience: time.Millisecond, Alive: alive, Log: quiet})
			return NewRecorder(RecorderOptions{Log: log, Stats: s.stats, Logger: quiet})
		}
		moved := func() bool { return time.Since(s.since(t)) < time.Hour }
		fill := func(rec *Recorder) {
			for _, client := range []string{"a", "b", "c"} {
				rec.Pulled(t.Context(), s.client(client, 0, "v1", "x"))
			}
			if rec.opt.Log.Dropped() == 0 {
				t.Fatal("no pull is dropped")
			}
		}

		rec := logging()
		stop := running(t, rec)
		fill(rec)
		until(t, "the mark", moved)
		stop()

		rec = logging()
		fill(rec)
		must(t, rec.Leave(t.Context(), false))
		if !moved() {
			t.Error("a process that had dropped pulls stopped, and statistics count as complete")
		}

		rec = logging()
		rec.Pulled(t.Context(), s.client("a", 0, "v1", "x"))
		must(t, rec.opt.Log.Close(t.Context()))
		must(t, rec.Leave(t.Context(), false))
		if moved() {
			t.Error("a process stopped that had written all pulls, and statistics count as incomplete")
		}
		must(t, rec.Leave(t.Context(), true))
		if !moved() {
			t.Error("a process stopped without having written all pulls, and statistics count as complete")
		}
	})
}

// pick and Redis must choose the same HEAD for a GET by digest.
func TestPick(t *testing.T) {
	t.Parallel()
	r := startRedis(t).open(t, open(t, false, 0).stats)
	at := func(seconds float64) time.Time { return noon.Add(time.Duration(seconds * float64(time.Second))) }
	type h struct {
		tag  string
		at   float64
		port int
	}
	type g struct {
		at   float64
		port int
		want string
	}
	for name, test := range map[string]struct {
		heads []h
		gets  []g
	}{
		"none":                      {nil, []g{{1, 0, ""}}},
		"before":                    {[]h{{"v1", 0, 0}}, []g{{1, 0, "v1"}, {2, 0, ""}}},
		"after":                     {[]h{{"v1", 1, 0}}, []g{{0.999999, 0, ""}, {1, 0, "v1"}}},
		"too long ago":              {[]h{{"v1", 0, 0}}, []g{{30.000001, 0, ""}}},
		"just in time":              {[]h{{"v1", 0, 0}}, []g{{30, 0, "v1"}}},
		"the newest":                {[]h{{"v1", 0, 0}, {"v2", 1, 0}}, []g{{2, 0, "v2"}, {3, 0, "v1"}, {4, 0, ""}}},
		"the newest before it":      {[]h{{"v1", 0, 0}, {"v2", 2, 0}}, []g{{1, 0, "v1"}, {1, 0, ""}, {3, 0, "v2"}}},
		"of its connection":         {[]h{{"v1", 0, 4000}, {"v2", 1, 5000}}, []g{{2, 4000, "v1"}, {3, 5000, "v2"}}},
		"the newest of another one": {[]h{{"v1", 0, 4000}, {"v2", 1, 5000}}, []g{{2, 6000, "v2"}, {3, 0, "v1"}}},
	} {
		var heads []*head
		var inRedis []redispulls.Request
		for i, h := range test.heads {
			heads = append(heads, &head{id: int64(i), tag: h.tag, at: at(h.at), port: h.port})
			inRedis = append(inRedis, redispulls.Request{Name: fmt.Sprint("head", i), Entry: audit.Entry{Actor: name, Time: at(h.at), Port: h.port, Tag: h.tag}})
		}
		for _, a := range r.StoreHeads(t.Context(), inRedis, DefaultJoin) {
			must(t, a.Err)
		}
		for i, g := range test.gets {
			tag := ""
			if h := pick(heads, at(g.at), g.port, DefaultJoin); h != nil {
				h.used, tag = true, h.tag
			}
			if tag != g.want {
				t.Errorf("%s: the GET at %v has %q, want %q", name, g.at, tag, g.want)
			}
			for range 2 { // a request whose answer was lost is repeated
				get := redispulls.Request{Name: fmt.Sprint("get", i), Entry: audit.Entry{Actor: name, Time: at(g.at), Port: g.port}}
				a := r.TakeHeads(t.Context(), []redispulls.Request{get}, DefaultJoin)[0]
				must(t, a.Err)
				if a.Tag != g.want {
					t.Errorf("%s: in Redis the GET at %v has %q, want %q", name, g.at, a.Tag, g.want)
				}
			}
		}
	}
}

// The pulls of a scanner (by User-Agent) and of a mirror (by account) must be logged but not
// counted, and their HEADs must set no last-used times.
func TestIgnored(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	rec := s.recorder(t, nil, func(o *RecorderOptions) {
		o.Ignore = Ignore{UserAgents: []string{"trivy/*"}, Accounts: []string{"mirror"}}
	})
	scanner, mirror, user := s.client("a", 0, "v1", "x"), s.client("b", 0, "v1", "x"), s.client("c", 0, "v1", "x")
	scanner.UserAgent, mirror.Actor = "trivy/0.50", "mirror"
	for _, e := range []audit.Entry{scanner, mirror, user} {
		rec.Pulled(t.Context(), e)
	}
	rec.Checked(t.Context(), scanner)
	rec.Checked(t.Context(), mirror)
	finish(t, rec)
	settle(t, s.worker(t))
	if none, counted := s.logged(t, audit.CountedByNone), s.logged(t, audit.CountedByAudit); none != 2 || counted != 1 {
		t.Errorf("%d pulls are logged as not to be counted and %d as to be, want 2 and 1", none, counted)
	}
	if got := s.books(t)[tagName(s, 0, "v1")].Count; got != 1 {
		t.Errorf("%d pulls, want 1", got)
	}
	if n := number(t, s.stats, "SELECT count(last_check_date) FROM tagpullstatistics"); n != 0 {
		t.Error("a scanner's HEAD is a use")
	}
}

// A client pulls while counting is switched off. The pull must be logged, and be counted
// once when counting is switched on.
func TestCountedLater(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	rec := s.recorder(t, nil, func(o *RecorderOptions) { o.Count = false })
	rec.Pulled(t.Context(), s.client("a", 0, "v1", "x"))
	rec.Checked(t.Context(), s.client("a", 0, "v1", "x"))
	finish(t, rec)
	if n := number(t, s.log, "SELECT count(*) FROM auditlog WHERE counted_by IS NULL"); n != 1 {
		t.Errorf("%d pulls are nobody's yet, want 1", n)
	}
	r := startRedis(t).open(t, s.stats)
	rec = s.recorder(t, r)
	rec.Pulled(t.Context(), s.client("a", 0, "v1", "x"))
	finish(t, rec)
	s.count(t, r)
	if got := s.books(t)[tagName(s, 0, "v1")].Count; got != 2 {
		t.Errorf("%d pulls, want 2", got)
	}
}

// A LastUsedRecorder must write the last-used times of a tag at intervals, never replace a
// stored time by an earlier one, and write none for a deleted repository. If its memory has
// no room for another tag, statistics must become incomplete.
func TestLastUsed(t *testing.T) {
	t.Parallel()
	s := open(t, false, 2)
	must(t, s.worker(t).Sync(t.Context())) // makes the state's row
	m, err := NewLastUsedRecorder(LastUsedOptions{Databases: s.databases(), Log: quiet})
	must(t, err)
	save := func() {
		t.Helper()
		_, err := m.save(t.Context())
		must(t, err)
	}
	at := time.Now().Truncate(time.Microsecond)
	checked := func(of string) (out time.Time) {
		t.Helper()
		var p *time.Time
		must(t, s.stats.Pool.QueryRow(t.Context(), "SELECT max(last_check_date) FROM "+of+"pullstatistics").Scan(&p))
		if p != nil {
			out = *p
		}
		return out
	}
	m.tagUsed(s.repositories[0], "v1", at)
	m.used(s.repositories[0], "", digest("x"), at.Add(time.Second))
	save()
	if !checked("tag").Equal(at) || !checked("manifest").Equal(at.Add(time.Second)) {
		t.Errorf("%v and %v, want %v and a second later", checked("tag"), checked("manifest"), at)
	}
	m.tagUsed(s.repositories[0], "v1", at.Add(time.Minute))
	save()
	if !checked("tag").Equal(at) {
		t.Error("a mark is written more often than it should")
	}
	m.tagUsed(s.repositories[0], "v1", at.Add(lastUsedRefresh))
	m.names[usedName{s.repositories[0], false, "v1"}].saved = at.Add(-lastUsedRefresh)
	save()
	if !checked("tag").Equal(at.Add(lastUsedRefresh)) {
		t.Errorf("%v, want the later one", checked("tag"))
	}
	again, err := NewLastUsedRecorder(LastUsedOptions{Databases: s.databases(), Log: quiet})
	must(t, err)
	again.tagUsed(s.repositories[0], "v1", at)
	must(t, again.Close(t.Context()))
	if !checked("tag").Equal(at.Add(lastUsedRefresh)) {
		t.Error("an older mark overwrites a newer")
	}

	m.tagUsed(1<<40, "v1", at)
	save()
	if n := number(t, s.stats, "SELECT count(*) FROM tagpullstatistics"); n != 1 {
		t.Errorf("%d rows, want 1: a repository is gone", n)
	}
	since := number(t, s.stats, "SELECT extract(epoch FROM recorded_since) * 1000000 FROM pullstatisticsprocessingstate")
	for i := range maxLastUsed + 1 {
		m.tagUsed(s.repositories[1], fmt.Sprint("t", i), at)
	}
	save()
	if number(t, s.stats, "SELECT extract(epoch FROM recorded_since) * 1000000 FROM pullstatisticsprocessingstate") <= since {
		t.Error("a use was forgotten, and statistics are said to be complete")
	}
	m.mu.Lock()
	for _, v := range m.names {
		v.at = v.at.Add(-3 * lastUsedRefresh)
		v.saved = v.at
	}
	m.mu.Unlock()
	save()
	if len(m.names) != 0 {
		t.Errorf("%d last-used times stay in memory", len(m.names))
	}
}

// The audit log's buffer has room for one pull, and a client makes two. The second pull
// isn't counted, but must set the last-used times of its tag and manifest.
func TestMissedPullsAreUses(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	rec := s.recorder(t, nil, func(o *RecorderOptions) {
		o.Log = audit.NewRecorder(audit.RecorderOptions{DB: s.log, Buffer: 1, Log: quiet})
	})
	rec.Pulled(t.Context(), s.client("a", 0, "v1", "x"))
	rec.Pulled(t.Context(), s.client("a", 0, "v2", "y"))
	finish(t, rec)
	w := s.worker(t)
	settle(t, w)
	uses, err := w.Uses(t.Context(), s.repositories[0], []string{"v1", "v2", "v3"}, []string{digest("x").String(), digest("y").String()})
	must(t, err)
	if len(uses.Tags) != 2 || len(uses.Manifests) != 2 || time.Since(uses.Tags["v2"]).Abs() > time.Minute {
		t.Errorf("%+v", uses)
	}
	if got := s.books(t); got[tagName(s, 0, "v1")].Count != 1 || got[tagName(s, 0, "v2")].Count != 0 {
		t.Errorf("%+v", got)
	}
}

// The audit log's buffer has no room for a client's pull, or for its HEAD by tag.
// Status.Counts must then move to the time of this request, because a pull of the tag may
// be missing in the counts. Status.Since must stay, because the tag's last-used time is
// known.
func TestUncountedPulls(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		lose  func(ctx context.Context, rec *Recorder, e audit.Entry)
		moves bool
	}{
		"none":    {func(context.Context, *Recorder, audit.Entry) {}, false},
		"a pull":  {func(ctx context.Context, rec *Recorder, e audit.Entry) { rec.Pulled(ctx, e) }, true},
		"a HEAD":  {func(ctx context.Context, rec *Recorder, e audit.Entry) { rec.Checked(ctx, e) }, true},
		"ignored": {func(ctx context.Context, rec *Recorder, e audit.Entry) { e.UserAgent = "scanner"; rec.Pulled(ctx, e) }, false},
	} {
		s := open(t, false, 1)
		w := s.worker(t)
		must(t, w.Sync(t.Context()))
		exec(t, s.stats, "UPDATE pullstatisticsprocessingstate SET recorded_since = now() - interval '60 days'")
		rec := s.recorder(t, nil, func(o *RecorderOptions) {
			o.Log = audit.NewRecorder(audit.RecorderOptions{DB: s.log, Buffer: 1, Log: quiet})
			o.Ignore.UserAgents = []string{"scanner"}
		})
		rec.Pulled(t.Context(), s.client("a", 0, "v1", "x"))
		lost := time.Now()
		test.lose(t.Context(), rec, s.client("a", 0, "v2", "y"))
		must(t, rec.opt.Log.Close(t.Context()))
		for range 2 { // the first tick still reports what came, the second that nothing came since
			_, err := rec.presence.tick(t.Context())
			must(t, err)
		}
		if busy := number(t, s.stats, "SELECT count(*) FROM pullrecorders WHERE written_to IS NOT NULL") > 0; busy != test.moves {
			t.Errorf("%s: a kill now loses something: %v", name, busy)
		}
		must(t, rec.opt.LastUsed.Close(t.Context()))
		st, err := w.Status(t.Context())
		must(t, err)
		if moved := !st.Counts.Before(lost); moved != test.moves {
			t.Errorf("%s: every pull is counted since %v, %v after it", name, st.Counts, st.Counts.Sub(lost))
		}
		if time.Since(st.Since) < 24*time.Hour {
			t.Errorf("%s: uses are known since %v only", name, st.Since)
		}
		must(t, rec.Leave(t.Context(), false))
	}
}

// Uses must include pulls that Redis has counted, both before and after they are flushed.
func TestUsesInRedis(t *testing.T) {
	t.Parallel()
	s := open(t, false, 2)
	r := startRedis(t).open(t, s.stats)
	rec := s.recorder(t, r)
	rec.Pulled(t.Context(), s.client("a", 0, "v1", "x"))
	rec.Pulled(t.Context(), s.client("a", 0, "", "y"))
	rec.Pulled(t.Context(), s.client("a", 1, "v9", "z"))
	finish(t, rec)
	w := s.worker(t, func(o *SyncOptions) { o.Redis = r })
	check := func(when string) {
		t.Helper()
		uses, err := w.Uses(t.Context(), s.repositories[0], []string{"v1", "v2", "v9"}, []string{digest("x").String(), digest("y").String(), digest("z").String()})
		must(t, err)
		if len(uses.Tags) != 1 || time.Since(uses.Tags["v1"]).Abs() > time.Minute || len(uses.Manifests) != 2 {
			t.Errorf("%s: %+v", when, uses)
		}
	}
	check("before the flush")
	must(t, s.flusher(t, r).Flush(t.Context()))
	check("after the flush")
}
