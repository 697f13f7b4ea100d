package pullstats

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/pullstats/redispulls"
)

// fault is what a proxy does with a request.
type fault int

const (
	pass      fault = iota
	cutBefore       // cuts the connection before the request arrives
	cutAfter        // cuts the connection after the request was executed, before the answer
	swallow         // drops the request and keeps the connection
	late            // forwards the request after a while, and then the answer
)

// proxy forwards the requests of clients to a server and can lose requests or answers.
// Clients connect to it, and it connects to the server, by Unix sockets.
type proxy struct {
	listener net.Listener
	server   string

	mu    sync.Mutex
	judge func(request []byte) fault // decides about each piece of data that comes from a client
	hits  int
	delay time.Duration // of the fault late
}

func startProxy(t testing.TB, name, server string) *proxy {
	t.Helper()
	dir, err := os.MkdirTemp("", "proxy-") // t.TempDir may be too long for a socket
	must(t, err)
	p := &proxy{server: server, judge: func([]byte) fault { return pass }}
	p.listener, err = net.Listen("unix", filepath.Join(dir, name))
	must(t, err)
	t.Cleanup(func() {
		p.listener.Close() //nolint:errcheck // the test is over
		os.RemoveAll(dir)  //nolint:errcheck // a leftover temporary directory harms nobody
	})
	go func() {
		for {
			client, err := p.listener.Accept()
			if err != nil {
				return
			}
			go p.serve(client)
		}
	}()
	return p
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close() //nolint:errcheck // it was cut
	server, err := net.Dial("unix", p.server)
	if err != nil {
		return
	}
	defer server.Close() //nolint:errcheck // it was cut
	answers := make(chan []byte)
	cut := make(chan struct{})
	defer close(cut)
	go func() {
		defer close(answers)
		for {
			b := make([]byte, 1<<16)
			n, err := server.Read(b)
			if n == 0 || err != nil {
				return
			}
			select {
			case answers <- b[:n]:
			case <-cut:
				return
			}
		}
	}()
	requests := make(chan []byte)
	go func() {
		defer close(requests)
		for {
			b := make([]byte, 1<<20)
			n, err := client.Read(b)
			if n == 0 || err != nil {
				return
			}
			select {
			case requests <- b[:n]:
			case <-cut:
				return
			}
		}
	}()
	for {
		select {
		case b, ok := <-answers:
			if _, err := client.Write(b); !ok || err != nil {
				return
			}
		case b, ok := <-requests:
			if !ok || !p.pass(b, server, answers) {
				return
			}
		}
	}
}

// pass forwards or loses a request, or its answer, as the function `judge` decides, and
// returns whether the connection stays open.
func (p *proxy) pass(request []byte, server io.Writer, answers <-chan []byte) bool {
	p.mu.Lock()
	f, delay := p.judge(request), p.delay
	if f != pass {
		p.hits++
	}
	p.mu.Unlock()
	switch f {
	case late:
		time.Sleep(delay)
	case cutBefore:
		return false
	case swallow:
		return true
	}
	if _, err := server.Write(request); err != nil {
		return false
	}
	if f == cutAfter {
		<-answers
		return false
	}
	return true
}

// on makes the proxy apply the fault f to the next n requests that contain the string `text`.
func (p *proxy) on(text string, n int, f fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hits = 0
	p.judge = func(request []byte) fault {
		if n > 0 && bytes.Contains(request, []byte(text)) {
			n--
			return f
		}
		return pass
	}
}

// hang lets the requests that contain the string `text` wait until resume is called. The channel
// reached is closed when the first of them comes.
func (p *proxy) hang(text string) (reached <-chan struct{}, resume func()) {
	first, free := make(chan struct{}), make(chan struct{})
	come := sync.OnceFunc(func() { close(first) })
	p.mu.Lock()
	defer p.mu.Unlock()
	p.judge = func(request []byte) fault {
		if bytes.Contains(request, []byte(text)) {
			come()
			<-free
		}
		return pass
	}
	return first, sync.OnceFunc(func() { close(free) })
}

func (p *proxy) times() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hits
}

// behind returns a client that reaches this Redis server through a proxy, and the proxy.
func (s redisServer) behind(t testing.TB, stats *db.DB) (*redispulls.Client, *proxy) {
	t.Helper()
	p := startProxy(t, "s", s.Socket)
	r, err := redispulls.NewClient("unix://"+p.listener.Addr().String(), stats)
	must(t, err)
	t.Cleanup(func() { r.Close() }) //nolint:errcheck // the test is over
	return r, p
}

// far opens the database d through a proxy.
func far(t testing.TB, d *db.DB) (*db.DB, *proxy) {
	t.Helper()
	cfg := d.Pool.Config().ConnConfig
	name := fmt.Sprintf(".s.PGSQL.%d", cfg.Port)
	p := startProxy(t, name, filepath.Join(cfg.Host, name))
	dsn := fmt.Sprintf("host=%s port=%d dbname=%s user=%s password='%s' sslmode=disable",
		filepath.Dir(p.listener.Addr().String()), cfg.Port, cfg.Database, cfg.User, cfg.Password)
	opened, err := db.Open(t.Context(), db.Options{DSN: dsn, Log: quiet})
	must(t, err)
	t.Cleanup(opened.Close)
	return opened, p
}

// During a flush, a request to Redis gets no answer, so the worker doesn't know whether it
// was executed. The flush must fail, and after the next flush each pull must be counted
// once.
func TestRedisFlushUnanswered(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	for _, f := range []fault{cutBefore, cutAfter} {
		for name, text := range map[string]string{"read": "hmget", "settle": uncountedPrefix, "epoch": "evalsha"} {
			t.Run(fmt.Sprintf("%s/%d", name, f), func(t *testing.T) {
				s := open(t, false, 1)
				c := server.client(t)
				must(t, c.FlushAll(t.Context()).Err())
				r, p := server.behind(t, s.stats)
				rec := s.recorder(t, r, unlogged)
				w := s.flusher(t, r)
				list := []audit.Entry{s.pull(0, "v0", "a", noon.Add(-time.Second))}
				recorded(t, rec, list...)
				must(t, w.Flush(t.Context())) // loads the scripts
				more := []audit.Entry{s.pull(0, "v1", "a", noon), s.pull(0, "v2", "b", noon.Add(time.Second)), s.pull(0, "v2", "b", noon.Add(2*time.Second))}
				recorded(t, rec, more...)
				list = append(list, more...)
				p.on(text, 1, f)
				if err := w.Flush(t.Context()); err == nil || p.times() != 1 {
					t.Errorf("a flush with %d calls unanswered: %v", p.times(), err)
				}
				if text := number(t, s.stats, "SELECT count(*) FROM redisprocessingstate WHERE processing_status = 'ERROR' AND error_message <> ''"); text != 1 {
					t.Error("the failure isn't recorded")
				}
				more = []audit.Entry{s.pull(0, "v2", "c", noon.Add(time.Minute))}
				recorded(t, rec, more...)
				list = append(list, more...)
				must(t, w.Flush(t.Context()))
				compare(t, s.books(t), truth(list))
				s.drained(t, c)
			})
		}
	}
}

// Redis doesn't answer the script that counts a pull. The pull must be counted by Redis at
// most once, must not be counted from the audit log, and must set last-used times.
func TestRedisRecordUnanswered(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	for f, counted := range map[fault]int64{cutBefore: 0, cutAfter: 1, swallow: 0} {
		s := open(t, false, 1)
		must(t, server.client(t).FlushAll(t.Context()).Err())
		r, p := server.behind(t, s.stats)
		m := NewMetrics(prometheus.NewRegistry())
		rec := s.recorder(t, r, func(o *RecorderOptions) { o.Metrics = m })
		recorded(t, rec, s.pull(0, "v0", "z", time.Now())) // loads the scripts
		p.on("evalsha", 1, f)
		begun := time.Now().Truncate(time.Microsecond)
		kept, err := rec.queue.record(t.Context(), waiting([]audit.Entry{s.pull(0, "v1", "a", time.Now())}))
		if err == nil || len(kept) > 0 || p.times() != 1 {
			t.Errorf("fault %d: kept %d, %v", f, len(kept), err)
		}
		if n := testutil.ToFloat64(m.events.WithLabelValues(eventUnanswered)); n != 1 {
			t.Errorf("fault %d: the metric of unanswered pulls is %v, want 1", f, n)
		}
		finish(t, rec)
		if n := s.logged(t, audit.CountedByRedis); n != 2 {
			t.Errorf("fault %d: %d pulls are logged as counted by Redis, want 2", f, n)
		}
		must(t, s.flusher(t, r).Flush(t.Context()))
		settle(t, s.worker(t))
		if n := s.books(t)[tagName(s, 0, "v1")].Count; n != counted {
			t.Errorf("fault %d: it is counted %d times, want %d", f, n, counted)
		}
		uses, err := s.worker(t, func(o *SyncOptions) { o.Redis = r }).Uses(t.Context(), s.repositories[0], []string{"v1"}, []string{digest("a").String()})
		must(t, err)
		if at := uses.Tags["v1"]; at.Before(begun) {
			t.Errorf("fault %d: the tag was used at %v, want since %v", f, at, begun)
		}
		if at := uses.Manifests[digest("a").String()]; at.Before(begun) {
			t.Errorf("fault %d: the manifest was used at %v, want since %v", f, at, begun)
		}
	}
}

// Redis doesn't answer the search for the HEAD of a pull by digest. The recorder must repeat
// the search, and then count the pull for the HEAD's tag too.
func TestRedisHeadUnanswered(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	for _, f := range []fault{cutBefore, cutAfter, swallow} {
		s := open(t, false, 1)
		must(t, server.client(t).FlushAll(t.Context()).Err())
		r, p := server.behind(t, s.stats)
		rec := s.recorder(t, r, unlogged)
		recorded(t, rec, s.pull(0, "v1", "a", noon)) // loads the scripts
		e := s.client("someone", 0, "v2", "a")
		e.Time = noon
		rec.queue.heads.add(t.Context(), e, false)
		must(t, rec.queue.heads.send(t.Context(), time.Now()))
		e.Time, e.Tag = noon.Add(time.Second), ""
		p.on("evalsha", 1, f)
		kept, err := rec.queue.record(t.Context(), []*event{{Entry: e, name: "this", n: 1}})
		if err == nil || len(kept) != 1 {
			t.Fatalf("%d pulls are kept, want 1: %v", len(kept), err)
		}
		p.on("", 0, pass)
		if kept, err = rec.queue.record(t.Context(), kept); err != nil || len(kept) > 0 {
			t.Fatalf("then %d are kept: %v", len(kept), err)
		}
		must(t, s.flusher(t, r).Flush(t.Context()))
		if got := s.books(t); got[manifestName(s, 0, "a")].Count != 2 || got[tagName(s, 0, "v2")].Count != 1 {
			t.Errorf("fault %d: %+v, want 2 pulls of the manifest and 1 of v2", f, got)
		}
	}
}

// A HEAD becomes too old while Redis takes its time to store it. It counts as sent once: a HEAD that
// comes later is known to wait, and is sent.
func TestHeadForgottenWhileSent(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	s := open(t, false, 1)
	r, p := server.behind(t, s.stats)
	rec := s.recorder(t, r, unlogged)
	recorded(t, rec, s.pull(0, "v1", "a", noon)) // loads the scripts
	h := rec.queue.heads
	e := s.client("someone", 0, "v2", "a")
	e.Time = noon
	h.add(t.Context(), e, false)
	must(t, h.send(t.Context(), time.Now())) // loads this script too
	h.again()
	reached, resume := p.hang("evalsha")
	defer resume()
	sent := make(chan error, 1)
	go func() { sent <- h.send(t.Context(), time.Now()) }()
	<-reached
	h.mu.Lock()
	h.recent[0].since = time.Now().Add(-rec.opt.Join - headsKept - time.Second)
	h.mu.Unlock()
	if n := h.unsent(); n != 0 {
		t.Errorf("%d HEADs wait after the only one was forgotten", n)
	}
	resume()
	must(t, <-sent)
	if n := h.unsent(); n != 0 {
		t.Errorf("%d HEADs wait, want none", n)
	}
	if e.Time = noon.Add(time.Second); !h.add(t.Context(), e, false) {
		t.Error("the next HEAD isn't the first that waits")
	}
}

// A Redis key that should have a client's HEADs has the wrong type. This client's pull by
// digest must count for the manifest alone; the pull of another client must count for its
// tag.
func TestRedisHeadUnfit(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	s := open(t, false, 1)
	r := server.open(t, s.stats)
	c := server.client(t)
	rec := s.recorder(t, r, unlogged)
	var list []*event
	for i, name := range []string{"a", "b"} {
		e := s.client(fmt.Sprint("client", i), 0, "v1", name)
		e.Time = noon
		if i > 0 {
			rec.queue.heads.add(t.Context(), e, false)
		}
		e.Tag = ""
		list = append(list, &event{Entry: e, name: name, n: 1})
	}
	client := list[0].Client()
	must(t, c.Set(t.Context(), "pull_events:head:"+hex.EncodeToString(client[:]), "no hash", 0).Err())
	must(t, rec.queue.heads.send(t.Context(), time.Now()))
	kept, err := rec.queue.record(t.Context(), list)
	if err != nil || len(kept) > 0 {
		t.Fatalf("%d pulls are kept: %v", len(kept), err)
	}
	must(t, s.flusher(t, r).Flush(t.Context()))
	compare(t, s.books(t), truth([]audit.Entry{s.pull(0, "", "a", noon), s.pull(0, "v1", "b", noon)}))
}

// Redis refuses connections, since its password was changed. For a pull that the recorder
// wants to send then, the client library reports neither a result nor an error. The recorder
// must not treat this pull as counted, and a flush must fail.
func TestRedisRefusesConnections(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	s := open(t, false, 1)
	admin := server.client(t)
	r, err := redispulls.NewClient("unix://:secret@"+server.Socket+"?db=1", s.stats)
	must(t, err)
	t.Cleanup(func() { r.Close() }) //nolint:errcheck // the test is over
	must(t, admin.ConfigSet(t.Context(), "requirepass", "secret").Err())
	must(t, r.Answers(t.Context()))
	rec := s.recorder(t, r, unlogged)
	list := []audit.Entry{s.pull(0, "v1", "a", noon)}
	recorded(t, rec, list...)
	must(t, admin.ConfigSet(t.Context(), "requirepass", "another").Err())
	must(t, admin.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err())
	more := []audit.Entry{s.pull(0, "v1", "a", noon.Add(time.Second))}
	kept, err := rec.queue.record(t.Context(), waiting(more))
	if err == nil || len(kept) != 1 {
		t.Fatalf("%d pulls are kept, want 1: %v", len(kept), err)
	}
	if err := s.flusher(t, r).Flush(t.Context()); err == nil {
		t.Error("a flush of nothing succeeded")
	}
	must(t, admin.ConfigSet(t.Context(), "requirepass", "secret").Err())
	recorded(t, rec, more...)
	must(t, s.flusher(t, r).Flush(t.Context()))
	compare(t, s.books(t), truth(append(list, more...)))
}

// The connection to PostgreSQL breaks during a commit. The flush worker must find out
// whether the commit happened, so that each batch is added once.
func TestRedisCommitUnanswered(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	for _, f := range []fault{cutBefore, cutAfter} {
		s := open(t, false, 1)
		must(t, server.client(t).FlushAll(t.Context()).Err())
		far, p := far(t, s.log)
		r := server.open(t, s.stats)
		list := []audit.Entry{s.pull(0, "v1", "a", noon), s.pull(0, "v2", "b", noon.Add(time.Second))}
		recorded(t, s.recorder(t, r, unlogged), list...)
		w := s.flusher(t, r, func(o *redispulls.FlushOptions) { o.Log, o.Stats = far, far })
		must(t, far.Ping(t.Context()))
		p.on("commit\x00", 1, f)
		must(t, w.Flush(t.Context()))
		if p.times() != 1 {
			t.Errorf("%d commits were unanswered", p.times())
		}
		compare(t, s.books(t), truth(list))
		p.on("commit\x00", 1000, f) // until the flush gives up
		more := []audit.Entry{s.pull(0, "v1", "b", noon.Add(time.Minute))}
		recorded(t, s.recorder(t, r, unlogged), more...)
		if err := w.Flush(t.Context()); err == nil || p.times() < 4 {
			t.Errorf("fault %d at %d commits: %v", f, p.times(), err)
		}
		p.on("", 0, pass)
		must(t, w.Flush(t.Context()))
		compare(t, s.books(t), truth(append(list, more...)))
		s.drained(t, server.client(t))
	}
}

// Audit log and statistics are in two databases. The transaction of the statistics is
// committed, but the log's transaction, which locks the repositories, fails. The flush must
// notice that and count each pull once.
func TestRedisLogLostAtCommit(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	s := open(t, true, 1)
	r := server.open(t, s.stats)
	list := []audit.Entry{s.pull(0, "v1", "a", noon), s.pull(0, "v2", "b", noon.Add(time.Second))}
	recorded(t, s.recorder(t, r, unlogged), list...)
	w := s.flusher(t, r)
	w.crash = at("before commit", func() {
		exec(t, s.log, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
	})
	must(t, w.Flush(t.Context()))
	compare(t, s.books(t), truth(list))
	s.drained(t, server.client(t))
}

// PostgreSQL cuts all connections in the middle of a flush. After another flush each pull
// must be counted once.
func TestRedisFlushDatabaseCut(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	for _, step := range steps {
		s := open(t, false, 1)
		must(t, server.client(t).FlushAll(t.Context()).Err())
		r := server.open(t, s.stats)
		list := []audit.Entry{s.pull(0, "v1", "a", noon), s.pull(0, "v2", "b", noon.Add(time.Second))}
		recorded(t, s.recorder(t, r, unlogged), list...)
		w := s.flusher(t, r)
		w.crash = at(step, func() {
			exec(t, s.log, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
		})
		if err := w.Flush(t.Context()); err != nil && db.Code(err) != "57P01" && !db.Unavailable(err) && !strings.Contains(err.Error(), "conn closed") {
			t.Errorf("%s: %v", step, err)
		}
		if err := w.Flush(t.Context()); err != nil { // the pool may still have a connection that was cut
			must(t, w.Flush(t.Context()))
		}
		compare(t, s.books(t), truth(list))
		s.drained(t, server.client(t))
	}
}
