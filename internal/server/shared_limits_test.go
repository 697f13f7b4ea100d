package server_test

import (
	"strconv"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/throttle"
	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/server"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// rateReplica is a replica that admits five requests at once, and then one in a thousand seconds.
type rateReplica struct {
	*servertest.Registry
	rate    *throttle.Rates
	closeDB func() // ends the connections for exchanges
}

func newRateReplica(t *testing.T, dsn, dir string, of throttle.KeyKind) rateReplica {
	t.Helper()
	d := dbtest.Open(t, dsn)
	rate := throttle.NewRates(throttle.RatesOptions{Of: of, PerSecond: 0.001, Burst: 5, DB: d})
	_, limits := limited(t, func(l *server.Limits) {
		if of == throttle.OfAccounts {
			l.AccountRate = rate
		} else {
			l.ClientRate = rate
		}
	})
	closed := func(o *servertest.Options) { o.Access = &auth.Options{} }
	return rateReplica{servertest.NewReplica(t, dsn, dir, limits, behindProxies, closed), rate, d.Close}
}

// TestRatesAtTwoReplicas: a client, or an account, sends requests to two replicas. After an
// exchange, each replica must count the requests that the other has admitted, and must still
// answer others. If the database doesn't answer the exchange, a replica must go on with its own
// counts.
func TestRatesAtTwoReplicas(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		of      throttle.KeyKind
		one     func(n int) []string // headers of the n-th request of the one that is limited
		another []string
	}{
		"client":  {throttle.OfAddresses, func(int) []string { return from("ann", "198.51.100.1") }, from("ann", "198.51.100.2")},
		"account": {throttle.OfAccounts, func(n int) []string { return from("ann", "198.51.100."+strconv.Itoa(n)) }, from("bob", "198.51.100.1")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn, dir := dbtest.DSN(t), pgtest.TempDir(t)
			a, b := newRateReplica(t, dsn, dir, tt.of), newRateReplica(t, dsn, dir, tt.of)
			a.AddAccount(t, "ann", true)
			a.AddAccount(t, "bob", true)
			sent := 0
			send := func(r rateReplica, want ...int) {
				t.Helper()
				for _, status := range want {
					sent++
					r.Do(t, "GET", "/v2/", "", tt.one(sent)...).WantStatus(t, status)
				}
			}
			exchange := func(r rateReplica) {
				t.Helper()
				if err := r.rate.Exchange(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			send(a, 200, 200, 200)
			send(b, 200, 200, 200)
			exchange(a)
			exchange(b)
			send(b, 429)           // it knows of all six requests
			send(a, 200, 200, 429) // it knows of its own requests
			exchange(a)
			refused := a.Do(t, "GET", "/v2/", "", tt.one(sent)...)
			refused.WantStatus(t, 429)
			if n, err := strconv.Atoi(refused.Header.Get("Retry-After")); err != nil || n <= 3900 || n > 4000 {
				t.Errorf("Retry-After is %q after eight requests, want almost 4000", refused.Header.Get("Retry-After"))
			}
			for _, r := range []rateReplica{a, b} {
				r.Do(t, "GET", "/v2/", "", tt.another...).WantStatus(t, 200)
			}
			b.closeDB()
			for _, status := range []int{200, 200, 200, 200, 429} {
				b.Do(t, "GET", "/v2/", "", tt.another...).WantStatus(t, status)
				if b.rate.Exchange(t.Context()) == nil {
					t.Fatal("there was an exchange")
				}
			}
		})
	}
}
