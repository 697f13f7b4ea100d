package acme_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/acme/acmetest"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

const day = 24 * time.Hour

// valid makes an authority issue certificates that are valid for the given time around now.
func valid(begin, end time.Duration) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.NotBefore, c.NotAfter = time.Now().Add(begin), time.Now().Add(end) }
}

// scripted returns a replica whose authority is `s`.
func scripted(t *testing.T, d *db.DB, s *acmetest.Scripted) *replica {
	t.Helper()
	return listeners(t).serve(t, d, &acmetest.Authority{DirectoryURL: s.DirectoryURL, Roots: s.Roots})
}

// later makes what the database has from ACME older.
func later(t *testing.T, d *db.DB, by time.Duration) {
	t.Helper()
	_, err := d.Pool.Exec(t.Context(), "UPDATE acmecertificates SET updated_at = updated_at - $1::interval", by)
	must(t, err)
}

// expire makes the certificate due for renewal.
func expire(t *testing.T, d *db.DB) {
	t.Helper()
	_, err := d.Pool.Exec(t.Context(), "UPDATE acmecertificates SET updated_at = updated_at - interval '100 days' WHERE name LIKE 'certificate %'")
	must(t, err)
}

// serial returns the serial number of the certificate that a replica serves, 0 for none.
func (r *replica) serial(t *testing.T, s *acmetest.Scripted) int64 {
	t.Helper()
	cert, err := r.served("localhost", s.Trust())
	if err != nil {
		return 0
	}
	return cert.SerialNumber.Int64()
}

// TestUnusableCertificates: the authority issues certificates that can't be used. The valid one
// stays in use, here and in the database, and the authority isn't asked again at once.
func TestUnusableCertificates(t *testing.T) {
	t.Parallel()
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	for _, tt := range []struct {
		name, want string
		change     func(*x509.Certificate)
		key        *ecdsa.PrivateKey
		answer     string // instead of a certificate
	}{
		{name: "expired", want: "clock is wrong", change: valid(-90*day, -time.Minute)},
		{name: "future", want: "clock is wrong", change: valid(time.Hour, 90*day)},
		{name: "name", want: "other.example", change: func(c *x509.Certificate) { c.DNSNames = []string{"other.example"} }},
		{name: "no name", want: "localhost", change: func(c *x509.Certificate) { c.DNSNames = nil }},
		{name: "key", want: "private key does not match", key: other},
		{name: "use", want: "isn't for servers", change: func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }},
		{name: "nothing", want: "certificate chain is empty", answer: "no certificate"},
		{name: "rubbish", want: "malformed", answer: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d, s := dbtest.New(t), acmetest.NewScripted(t)
			s.Issue(valid(-80*day, 10*day), nil)
			r := scripted(t, d, s)
			must(t, r.Batch(t.Context()))
			first := r.serial(t, s)
			expire(t, d)
			later(t, d, time.Hour) // the pause after a certificate that ends soon
			s.Issue(tt.change, tt.key)
			if tt.answer != "" {
				s.Answer(acmetest.Cert, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, tt.answer) }) //nolint:errcheck
			}
			before := s.Requests(acmetest.Finalize)
			for range 5 {
				r.Batch(t.Context()) //nolint:errcheck // whatever it is, it mustn't ask again at once
			}
			if n := s.Requests(acmetest.Finalize) - before; n != 1 {
				t.Errorf("the authority was asked %d times, want once", n)
			}
			if n := r.serial(t, s); first == 0 || n != first {
				t.Errorf("certificate %d is served in place of the valid one, %d", n, first)
			}
			if text := r.log.String(); !strings.Contains(text, tt.want) || !strings.Contains(text, "level=ERROR") || !strings.Contains(text, "again_in=") {
				t.Errorf("the log lacks %q:\n%s", tt.want, text)
			}
			again := scripted(t, d, s) // a restart
			must(t, again.Batch(t.Context()))
			if n := again.serial(t, s); n != first || s.Requests(acmetest.Finalize)-before != 1 {
				t.Errorf("after a restart, certificate %d is served, and the authority was asked %d times", n, s.Requests(acmetest.Finalize)-before)
			}
		})
	}
}

// TestInvalidRow: another replica has stored a certificate that isn't valid now, or the row was
// deleted. The valid one stays in use.
func TestInvalidRow(t *testing.T) {
	t.Parallel()
	d, s := dbtest.New(t), acmetest.NewScripted(t)
	r := scripted(t, d, s)
	must(t, r.Batch(t.Context()))
	first := r.serial(t, s)
	for _, change := range []string{
		"UPDATE acmecertificates SET content = '\\xff00' WHERE name LIKE 'certificate %'", "DELETE FROM acmecertificates WHERE name LIKE 'certificate %'",
	} {
		_, err := d.Pool.Exec(t.Context(), change)
		must(t, err)
		s.Answer(acmetest.NewOrder, func(w http.ResponseWriter, _ *http.Request) { acmetest.Refuse(w, 403, "unauthorized", "no") })
		must(t, r.Batch(t.Context()))
		if n := r.serial(t, s); first == 0 || n != first {
			t.Errorf("after %s, certificate %d is served, want %d", change, n, first)
		}
	}
	s.Answer(acmetest.NewOrder, nil)
	must(t, r.Retry(t.Context()))
	must(t, r.Batch(t.Context()))
	if n := r.serial(t, s); n <= first {
		t.Errorf("certificate %d is served after the next attempt", n)
	}
}

// TestClockAhead: this machine's clock runs ahead. By a hundred days, the certificate has expired
// when it comes; no other one is asked for until the clock is right. By seventy days, it is
// used, and isn't due at once.
func TestClockAhead(t *testing.T) {
	t.Parallel()
	d, s := dbtest.New(t), acmetest.NewScripted(t)
	behind := func(by time.Duration) {
		for _, path := range []string{acmetest.Directory, acmetest.Nonce, acmetest.Account} {
			s.Answer(path, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Date", time.Now().Add(-by).UTC().Format(http.TimeFormat))
				s.Good(w, r)
			})
		}
		s.Issue(valid(-by-time.Hour, 90*day-by), nil)
	}
	behind(100 * day)
	r := scripted(t, d, s)
	for range 6 {
		must(t, r.Batch(t.Context()))
		later(t, d, 25*time.Hour)
	}
	if n := s.Requests(acmetest.Finalize); n != 1 {
		t.Errorf("%d certificates were asked for though the clock is wrong, want 1", n)
	}
	if text := r.log.String(); !strings.Contains(text, "clock differs from the authority's by 2400h0m0s") || !strings.Contains(text, "failures=6") {
		t.Errorf("the log is %s", text)
	}
	behind(0)
	must(t, r.Batch(t.Context()))
	if n := s.Requests(acmetest.Finalize); n != 2 || r.serial(t, s) == 0 || strings.Contains(left(t, d), "failure") {
		t.Errorf("with the right clock, %d certificates were asked for, and %d is served", n, r.serial(t, s))
	}

	d, s = dbtest.New(t), acmetest.NewScripted(t)
	behind(70 * day)
	r = scripted(t, d, s)
	for range 20 {
		must(t, r.Batch(t.Context()))
		later(t, d, time.Hour)
	}
	if n := s.Requests(acmetest.Finalize); n != 1 || r.serial(t, s) == 0 {
		t.Errorf("%d certificates were asked for, want 1, and %d is served", n, r.serial(t, s))
	}
}

// TestPauses: the pauses grow from two minutes to a day and no further, also over restarts and
// whatever the authority says.
func TestPauses(t *testing.T) {
	t.Parallel()
	d, s := dbtest.New(t), acmetest.NewScripted(t)
	s.Answer(acmetest.NewOrder, func(w http.ResponseWriter, _ *http.Request) { acmetest.Refuse(w, 403, "unauthorized", "no") })
	wait := 2 * time.Minute
	for i := range 12 {
		r := scripted(t, d, s) // a restart
		before := s.Requests(acmetest.Directory)
		must(t, r.Batch(t.Context()))
		later(t, d, wait-time.Minute)
		must(t, r.Batch(t.Context()))
		if n := s.Requests(acmetest.Directory) - before; n != 1 || !strings.Contains(r.log.String(), "again_in="+wait.String()) {
			t.Fatalf("after failure %d, %d attempts were made, want one and a pause of %s:\n%s", i+1, n, wait, r.log)
		}
		later(t, d, time.Minute)
		wait = min(2*wait, day)
	}
}

// TestRetryAfter: the authority asks for a pause of 63 years, or what isn't one.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for after, want := range map[string]time.Duration{
		"1986768000": day, "99999999999999999999999": day, "-5": 2 * time.Minute, "x": 2 * time.Minute, "600": 10 * time.Minute,
		time.Now().Add(63 * 365 * day).UTC().Format(http.TimeFormat): day,
	} {
		for _, problem := range []string{"rateLimited", "serverInternal"} {
			if problem == "serverInternal" && want != 10*time.Minute {
				continue // the library repeats such requests for seconds
			}
			d, s := dbtest.New(t), acmetest.NewScripted(t)
			s.Answer(acmetest.NewOrder, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", after)
				acmetest.Refuse(w, map[string]int{"rateLimited": 429, "serverInternal": 503}[problem], problem, "no")
			})
			r := scripted(t, d, s)
			must(t, r.Batch(t.Context()))
			if !strings.Contains(r.log.String(), "again_in="+want.String()) {
				t.Errorf("Retry-After: %s (%s), want a pause of %s:\n%s", after, problem, want, r.log)
			}
			s.Answer(acmetest.NewOrder, nil)
			later(t, d, want)
			must(t, r.Batch(t.Context()))
			if r.serial(t, s) == 0 {
				t.Errorf("Retry-After: %s (%s): no certificate after the pause", after, problem)
			}
		}
	}
}

// TestStoredPause: the database has a pause of years, or what nobody could have written.
func TestStoredPause(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"3 1986768000", "3 9223372036854775807", "-1 -1", "x", ""} {
		d, s := dbtest.New(t), acmetest.NewScripted(t)
		_, err := d.Pool.Exec(t.Context(), "INSERT INTO acmecertificates (name, content) VALUES ($1, $2)", "failure "+s.DirectoryURL+" localhost", []byte(content))
		must(t, err)
		r := scripted(t, d, s)
		must(t, r.Batch(t.Context()))
		if n := s.Requests(acmetest.Directory); n != 0 {
			t.Errorf("%q is taken for no pause", content)
		}
		later(t, d, day)
		must(t, r.Batch(t.Context()))
		if r.serial(t, s) == 0 {
			t.Errorf("%q: no certificate after a day", content)
		}
	}
}

// TestPollForYears: the authority isn't ready, and says to look again in 63 years. Its order is
// looked at again soon.
func TestPollForYears(t *testing.T) {
	t.Parallel()
	d, s := dbtest.New(t), acmetest.NewScripted(t)
	var asked atomic.Int64
	s.Answer(acmetest.Order, func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) > 1 {
			s.Good(w, r)
			return
		}
		w.Header().Set("Retry-After", "1986768000")
		fmt.Fprint(w, `{"status": "processing"}`) //nolint:errcheck
	})
	r := scripted(t, d, s)
	must(t, r.Batch(t.Context()))
	if r.serial(t, s) == 0 {
		t.Errorf("there is no certificate:\n%s", r.log)
	}
}

// TestBoundedAnswers: each of the authority's answers is endless, whether it grants or refuses, or
// never comes to its end. An attempt ends soon, has read little, and counts as failed.
func TestBoundedAnswers(t *testing.T) {
	t.Parallel()
	for _, path := range []string{acmetest.Directory, acmetest.Nonce, acmetest.Account, acmetest.NewOrder, acmetest.Order, acmetest.Authz, acmetest.Finalize, acmetest.Cert} {
		for _, way := range []string{"endless", "refusal", "drip"} {
			t.Run(path[1:]+"/"+way, func(t *testing.T) {
				t.Parallel()
				d, s := dbtest.New(t), acmetest.NewScripted(t)
				var sent atomic.Int64
				s.Answer(path, func(w http.ResponseWriter, r *http.Request) {
					if r.Method == http.MethodHead { // of a nonce: it has no body
						w.Header().Set("Replay-Nonce", strings.Repeat("x", 10<<20))
						return
					}
					w.Header().Set("Location", s.DirectoryURL)
					switch {
					case way == "refusal":
						w.WriteHeader(http.StatusBadRequest)
					case path == acmetest.Account || path == acmetest.NewOrder:
						w.WriteHeader(http.StatusCreated)
					}
					endless(w, r, way, &sent)
				})
				r := scripted(t, d, s)
				r.SetTimeouts(2*time.Second, 3*time.Second)
				must(t, r.Batch(t.Context()))
				if n := sent.Load(); n > 32<<20 {
					t.Errorf("%d MiB were read", n>>20)
				}
				text := r.log.String()
				if len(text) > 5000 || !strings.Contains(text, "again_in=2m0s") {
					t.Errorf("the log has %d bytes: %.500s", len(text), text)
				}
			})
		}
	}
}

// endless writes the body of an answer until the client is gone.
func endless(w http.ResponseWriter, r *http.Request, way string, sent *atomic.Int64) {
	part := []byte(strings.Repeat("7", 64<<10))
	w.Write([]byte(`{"status": "valid", "x": "`)) //nolint:errcheck // the loop ends
	if way == "drip" {
		http.NewResponseController(w).Flush() //nolint:errcheck
		<-r.Context().Done()
		return
	}
	for r.Context().Err() == nil {
		n, err := w.Write(part)
		if sent.Add(int64(n)); err != nil {
			return
		}
	}
}

// TestRetryWakes: the authority is out of reach, and the loop sleeps for an hour. Retry makes it
// try at once. During an attempt that fails later, Retry makes another one follow at once.
func TestRetryWakes(t *testing.T) {
	t.Parallel()
	d, s := dbtest.New(t), acmetest.NewScripted(t)
	var reachable atomic.Bool
	r := scripted(t, d, s)
	r.SleepAfterFailure(time.Hour)
	s.Answer(acmetest.Directory, func(w http.ResponseWriter, req *http.Request) {
		if reachable.Load() {
			s.Good(w, req)
			return
		}
		panic(http.ErrAbortHandler) // no answer
	})
	r.run(t)
	eventually(t, "a failure", func() bool { return strings.Contains(r.log.String(), "background work failed") })
	reached, refuse := make(chan struct{}), make(chan struct{})
	var orders atomic.Int64
	s.Answer(acmetest.NewOrder, func(w http.ResponseWriter, req *http.Request) {
		if orders.Add(1) > 1 {
			s.Good(w, req)
			return
		}
		close(reached)
		<-refuse
		acmetest.Refuse(w, 403, "unauthorized", "no")
	})
	reachable.Store(true)
	must(t, r.Retry(t.Context()))
	select {
	case <-reached:
	case <-time.After(time.Minute):
		t.Fatal("Retry hasn't woken the loop")
	}
	must(t, r.Retry(t.Context()))
	close(refuse)
	eventually(t, "the certificate", func() bool { return r.serial(t, s) != 0 })
}

// TestDatabaseTakesNothing: the database doesn't take the certificate, or the failure. Neither
// makes the replica ask the authority again and again.
func TestDatabaseTakesNothing(t *testing.T) {
	t.Parallel()
	d, s := dbtest.New(t), acmetest.NewScripted(t)
	const check = "ALTER TABLE acmecertificates ADD CONSTRAINT nothing CHECK (name NOT LIKE 'certificate %' AND name NOT LIKE 'failure %')"
	_, err := d.Pool.Exec(t.Context(), check)
	must(t, err)
	r := scripted(t, d, s)
	for range 5 {
		if err := r.Batch(t.Context()); err == nil {
			t.Error("a certificate that can't be stored is no error")
		}
	}
	_, err = d.Pool.Exec(t.Context(), "ALTER TABLE acmecertificates DROP CONSTRAINT nothing")
	must(t, err)
	must(t, r.Batch(t.Context()))
	if n := s.Requests(acmetest.Finalize); n != 1 || r.serial(t, s) == 0 {
		t.Errorf("%d certificates were asked for, want 1, and %d is served", n, r.serial(t, s))
	}

	d, s = dbtest.New(t), acmetest.NewScripted(t)
	_, err = d.Pool.Exec(t.Context(), check)
	must(t, err)
	s.Answer(acmetest.NewOrder, func(w http.ResponseWriter, _ *http.Request) { acmetest.Refuse(w, 403, "unauthorized", "no") })
	r = scripted(t, d, s)
	for range 5 {
		r.Batch(t.Context()) //nolint:errcheck // the first one fails
	}
	if n := s.Requests(acmetest.NewOrder); n != 1 {
		t.Errorf("%d orders were made, want 1", n)
	}
}
