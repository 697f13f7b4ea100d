package serve

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// Requests wait for a start of seconds, and no longer. When something is known to be away, they don't
// wait at all.
func TestEntrance(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		newDoor := func() *entrance {
			return &entrance{socks: &sockets{}, srv: &http.Server{}, opened: make(chan struct{}), late: make(chan struct{}), until: time.Now().Add(startPatience), begun: true}
		}
		ask := func(e *entrance) (status int, took time.Duration) {
			began, rec := time.Now(), httptest.NewRecorder()
			e.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v2/", nil))
			return rec.Code, time.Since(began)
		}
		expect := func(what string, e *entrance, status int, took time.Duration) {
			t.Helper()
			if s, d := ask(e); s != status || d != took {
				t.Errorf("%s: %d after %v, want %d after %v", what, s, d, status, took)
			}
		}
		registry := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })

		quick := newDoor()
		time.AfterFunc(2*time.Second, func() { quick.open(registry) })
		expect("a quick start", quick, http.StatusTeapot, 2*time.Second)
		expect("when it has started", quick, http.StatusTeapot, 0)

		slow := newDoor()
		time.Sleep(time.Second)
		expect("a slow start", slow, http.StatusServiceUnavailable, startPatience-time.Second)
		expect("later", slow, http.StatusServiceUnavailable, 0)
		slow.open(registry)
		expect("at last", slow, http.StatusTeapot, 0)

		away := newDoor()
		time.AfterFunc(time.Second, away.refuse)
		expect("the database is away", away, http.StatusServiceUnavailable, time.Second)
		expect("it still is", away, http.StatusServiceUnavailable, 0)
		if n := away.refused.Load(); n != 2 {
			t.Errorf("%d refused requests are counted, want 2", n)
		}
		away.refuse()
		away.open(registry)
		expect("it is there", away, http.StatusTeapot, 0)
	})
}
