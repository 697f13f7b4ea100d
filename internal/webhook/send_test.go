package webhook

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	target := receive(t, nil)
	for _, status := range []int{301, 302, 303, 307, 308} {
		rec := receive(t, func(w http.ResponseWriter, r *http.Request, _ int) {
			http.Redirect(w, r, target.URL+"/internal", status)
		})
		s := newSender(t, Options{DB: d, URL: rec.URL})
		id := queue(t, s, d, Event{})
		once(t, s)
		if r := read(t, d, id); r.Delivered || !strings.Contains(r.LastError, "redirects aren't followed") || !strings.Contains(r.LastError, fmt.Sprint(status)) {
			t.Errorf("%d: got %+v", status, r)
		}
	}
	if n := len(target.requests()); n != 0 {
		t.Errorf("the target was asked %d times", n)
	}
}

// TestSlowReceiver: a receiver sends no answer, or doesn't end its answer. The attempt must
// end nevertheless, and its outcome must be recorded.
func TestSlowReceiver(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name      string
		answer    func(w http.ResponseWriter, r *http.Request)
		delivered bool
		want      string
		timeout   time.Duration
		most      time.Duration
	}{
		{"no answer", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, false, "it took longer than 1s", time.Second, 10 * time.Second},
		{"half an answer", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(500)
			fmt.Fprint(w, "half")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, false, "500 Internal Server Error: half", time.Second, 10 * time.Second},
		{"accepted, and half an answer", func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, true, "", time.Second, 10 * time.Second},
		{"endless", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(500)
			for _, err := fmt.Fprint(w, strings.Repeat("x", 1<<16)); err == nil; {
				_, err = fmt.Fprint(w, strings.Repeat("x", 1<<16))
			}
		}, false, "500 Internal Server Error: xxx", 10 * time.Second, 5 * time.Second}, // the answer isn't read to its end
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := dbtest.New(t)
			rec := receive(t, func(w http.ResponseWriter, r *http.Request, _ int) { test.answer(w, r) })
			s := newSender(t, Options{DB: d, URL: rec.URL, Timeout: test.timeout})
			id := queue(t, s, d, Event{})
			lease := uuid.New()
			list, err := s.claim(t.Context(), lease)
			must(t, err)
			begin := time.Now()
			_, err = s.deliver(t.Context(), lease, &s.target, list[0])
			must(t, err)
			if took := time.Since(begin); took > test.most {
				t.Errorf("it took %v", took)
			}
			if r := read(t, d, id); r.Delivered != test.delivered || !strings.Contains(r.LastError, test.want) || len(r.LastError) > maxError {
				t.Errorf("got %+v, want %q", r, test.want)
			}
		})
	}
}

// TestCertificatesAreVerified: the receiver's certificate isn't valid for the host of the
// URL. The sender must not send the notice to this receiver.
func TestCertificatesAreVerified(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	asked := make(chan struct{}, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- struct{}{} }))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	server.StartTLS()
	t.Cleanup(server.Close)
	s := newSender(t, Options{DB: d, URL: server.URL})
	id := queue(t, s, d, Event{})
	once(t, s)
	if r := read(t, d, id); r.Delivered || !strings.Contains(r.LastError, "certificate") || len(asked) != 0 {
		t.Errorf("got %+v; asked %d times", r, len(asked))
	}
}

// TestSecretsAreNotTold: a receiver repeats the webhook's URL in its answer. Neither the
// notice's row in the database nor the process's log may contain the secret, or a part of
// the URL that may be secret.
func TestSecretsAreNotTold(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	echo := receive(t, func(w http.ResponseWriter, r *http.Request, n int) {
		switch n {
		case 1:
			w.WriteHeader(500)
			fmt.Fprintf(w, "Cannot %s %s; path=%s token=%s", r.Method, r.RequestURI, r.URL.Path, r.URL.Query().Get("token"))
		case 2: // the answer isn't HTTP
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			fmt.Fprintf(conn, "%s\r\n\r\n", r.RequestURI)
			conn.Close()
		default:
			w.WriteHeader(410)
		}
	})
	gone := httptest.NewServer(nil)
	gone.Close() // no server listens at this address any more
	var log lockedBuffer
	for _, base := range []string{echo.URL, gone.URL, "http://no-such-host.invalid"} {
		s := newSender(t, Options{DB: d, URL: base + "/services/pathhunter2/x?token=query%20hunter2&flaghunter2", Secret: "keyhunter2" + strings.Repeat("k", 30),
			RetryMin: 1, RetryMax: 1, MaxAttempts: 3, Timeout: 3 * time.Second, Log: slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
		queue(t, s, d, Event{Type: "a"})
		for range 3 {
			once(t, s)
			var errors string
			must(t, d.Pool.QueryRow(t.Context(), "SELECT string_agg(last_error, E'\n') FROM webhooknotices").Scan(&errors))
			if strings.Contains(errors, "hunter2") || strings.Contains(errors, "Post") {
				t.Errorf("%s: last_error has it: %s", base, errors)
			}
		}
	}
	if n := count(t, d, "given_up_at IS NOT NULL AND last_error <> ''"); n != 3 {
		t.Errorf("%d were given up, want 3", n)
	}
	if strings.Contains(log.String(), "hunter2") || strings.Contains(log.String(), "token=") {
		t.Errorf("the log has it:\n%s", log.String())
	}
	if !strings.Contains(log.String(), strings.TrimPrefix(echo.URL, "http://")) {
		t.Errorf("the log doesn't name the host:\n%s", log.String())
	}
}
