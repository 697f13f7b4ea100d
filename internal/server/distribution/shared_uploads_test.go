package distribution_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"sync"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// withUploadLimit lets each account, and each client, have `most` open uploads. Requests name their
// client in X-Forwarded-For.
func withUploadLimit(most int) func(o *servertest.Options) {
	return func(o *servertest.Options) {
		o.Access = &auth.Options{}
		o.Distribution.ClientUploads, o.Distribution.AccountUploads = most, most
		o.Server.Proxies = limit.NewProxies([]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, limit.AnyForwarded)
	}
}

// openRows returns how many rows the account's uploads have.
func (r *registry) openRows(t *testing.T, account string) (n int) {
	t.Helper()
	if err := r.DB.Pool.QueryRow(t.Context(), "SELECT count(*) FROM uploads WHERE account = $1", account).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestUploadsAtTwoReplicas: an account starts uploads at two replicas at the same time, from many
// addresses, and cancels some of them at the other replica. It must never have more open uploads
// than the limit allows, and must get as many as the limit allows when it cancels none.
func TestUploadsAtTwoReplicas(t *testing.T) {
	t.Parallel()
	const most = 10
	one := setup(t, withUploadLimit(most))
	one.AddAccount(t, "ann", true)
	replicas := []*registry{one, replica(t, one.DSN, one.Dir, withUploadLimit(most))}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var mu sync.Mutex
	var open []string // a URL is here from the answer to its start to the request that cancels it
	var highest, refused int
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(worker)))
			for range 40 {
				r := replicas[random.IntN(2)].With(append(servertest.As("ann"), "X-Forwarded-For", fmt.Sprintf("198.51.100.%d", random.IntN(20))))
				mu.Lock()
				cancel := ""
				if len(open) > 0 && random.IntN(3) == 0 {
					i := random.IntN(len(open))
					cancel, open[i] = open[i], open[len(open)-1]
					open = open[:len(open)-1]
				}
				mu.Unlock()
				if cancel != "" {
					if a := r.Do(t, "DELETE", cancel, ""); a.StatusCode != http.StatusNoContent {
						t.Errorf("cancelling: %s", a.Status)
					}
					continue
				}
				a := r.Do(t, "POST", "/v2/acme/app/blobs/uploads/", "")
				mu.Lock()
				switch a.StatusCode {
				case http.StatusAccepted:
					open = append(open, a.Header.Get("Location"))
					highest = max(highest, len(open))
				case http.StatusTooManyRequests:
					refused++
				default:
					t.Errorf("starting: %s %s", a.Status, a.Content)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if highest > most || refused == 0 {
		t.Errorf("up to %d uploads were open and %d were refused; the limit is %d", highest, refused, most)
	}
	for i := 0; len(open) < most; i++ {
		r := replicas[i%2].With(append(servertest.As("ann"), "X-Forwarded-For", fmt.Sprintf("198.51.100.%d", i)))
		open = append(open, r.StartUpload(t, "acme/app", ""))
	}
	for _, r := range replicas {
		r.With(append(servertest.As("ann"), "X-Forwarded-For", "198.51.100.30")).
			Do(t, "POST", "/v2/acme/app/blobs/uploads/", "").WantStatus(t, http.StatusTooManyRequests)
	}
	if n := one.openRows(t, "ann"); n != most {
		t.Errorf("%d rows of open uploads, want %d", n, most)
	}
}

// TestUploadsAheadOfALimit: uploads are made in advance while the limit is far. They count, so both
// replicas together must never exceed the limit, and they must not use up much of it.
func TestUploadsAheadOfALimit(t *testing.T) {
	t.Parallel()
	const most = 200
	one := setup(t, withUploadLimit(most))
	one.AddAccount(t, "ann", true)
	replicas := []*registry{one, replica(t, one.DSN, one.Dir, withUploadLimit(most))}
	started, refused, ahead := 0, 0, 0
	for i := 0; refused < 2; i++ {
		r := replicas[i%2].With(append(servertest.As("ann"), "X-Forwarded-For", "198.51.100.1"))
		switch a := r.Do(t, "POST", "/v2/acme/app/blobs/uploads/", ""); a.StatusCode {
		case http.StatusAccepted:
			started++
			refused = 0
		case http.StatusTooManyRequests:
			refused++
		default:
			t.Fatalf("starting: %s %s", a.Status, a.Content)
		}
		ahead = max(ahead, one.openRows(t, "ann")-started)
		if n := one.openRows(t, "ann"); n > most {
			t.Fatalf("%d rows of open uploads, more than %d", n, most)
		}
	}
	if started != most || ahead < 4 {
		t.Errorf("%d uploads were started and at most %d were made in advance, want %d and at least 4", started, ahead, most)
	}
	for _, r := range replicas {
		if err := r.Distribution.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := one.openRows(t, "ann"); n != started {
		t.Errorf("%d rows after the replicas were stopped, want %d", n, started)
	}
}

// aheadOf starts uploads of an account until the registry has made one in advance, and returns how
// many it has started.
func (r *registry) aheadOf(t *testing.T, account string) (started int) {
	t.Helper()
	for ; r.openRows(t, account) <= started; started++ {
		r.With(servertest.As(account)).StartUpload(t, "acme/app", "")
	}
	return started
}

// interrupt breaks the connection by which the registry hears of changes, so that it gives up the
// uploads that it has made in advance.
func (r *registry) interrupt(t *testing.T) {
	t.Helper()
	before := r.Catalog.Interruptions()
	if _, err := r.DB.Pool.Exec(t.Context(), `
		SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE application_name = 'purser listener' AND datname = current_database()`); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the interruption is noticed", func() bool { return r.Catalog.Interruptions() > before })
}

// closed closes the registry, which deletes the unused uploads, and checks how many are left.
func (r *registry) closed(t *testing.T, account string, want int) {
	t.Helper()
	if err := r.Distribution.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := r.openRows(t, account); n != want {
		t.Errorf("%d rows of open uploads, want those of the %d uploads that were started", n, want)
	}
}

// TestUploadsAheadOfAFailure: the start of an upload also deletes the rows of uploads that were given
// up. If it fails, they are still there, and are deleted later: they count for the limit.
func TestUploadsAheadOfAFailure(t *testing.T) {
	t.Parallel()
	r := setup(t, withUploadLimit(200))
	r.AddAccount(t, "ann", true)
	started := r.aheadOf(t, "ann")
	r.interrupt(t)
	exec := func(sql string) {
		t.Helper()
		if _, err := r.DB.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec("ALTER TABLE uploads ADD CONSTRAINT broken CHECK (id IS NULL) NOT VALID")
	r.With(servertest.As("ann")).Do(t, "POST", "/v2/acme/app/blobs/uploads/", "").WantStatus(t, http.StatusInternalServerError)
	exec("ALTER TABLE uploads DROP CONSTRAINT broken")
	r.closed(t, "ann", started)
}

// TestUploadsAheadOfAnInterruption: the connection to the database is interrupted while uploads are
// made in advance. The registry gives them to nobody, and deletes their rows.
func TestUploadsAheadOfAnInterruption(t *testing.T) {
	t.Parallel()
	r := setup(t, withUploadLimit(200))
	r.AddAccount(t, "ann", true)
	ann := r.With(servertest.As("ann"))
	ann.StartUpload(t, "acme/app", "") // the next start makes two
	lock, err := r.DB.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it may be over
	if _, err := lock.Exec(t.Context(), "SELECT pg_advisory_xact_lock(1886745446, hashtext('ann'))"); err != nil {
		t.Fatal(err)
	}
	status := make(chan int, 1)
	go func() {
		a, err := ann.Try(t.Context(), "POST", "/v2/acme/app/blobs/uploads/", nil)
		if err != nil {
			status <- 0
			return
		}
		status <- a.StatusCode
	}()
	pid := lock.Conn().PgConn().PID()
	eventually(t, "the start waits", func() (waits bool) {
		if err := r.DB.Pool.QueryRow(t.Context(), `
			SELECT EXISTS (SELECT FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid)))`, int32(pid)).Scan(&waits); err != nil {
			t.Fatal(err)
		}
		return waits
	})
	r.interrupt(t)
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-status; got != http.StatusAccepted {
		t.Errorf("the start that waited: status %d", got)
	}
	if n := r.openRows(t, "ann"); n != 3 {
		t.Errorf("%d rows of uploads, want two that were started and one that was made in advance", n)
	}
	r.closed(t, "ann", 2)
}
