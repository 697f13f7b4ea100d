package server_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/throttle"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// limitedAccounts starts a registry with access control, the administrators ann and bob, and
// limits. Requests name their client in X-Forwarded-For.
func limitedAccounts(t *testing.T, change func(*server.Limits)) (*registry, *prometheus.Registry) {
	t.Helper()
	reg, limits := limited(t, change)
	r := setup(t, limits, behindProxies, func(o *servertest.Options) { o.Access = &auth.Options{} })
	r.AddAccount(t, "ann", true)
	r.AddAccount(t, "bob", true)
	return r, reg
}

// from returns the headers of a request that an account sends from an address.
func from(account, address string) []string {
	return append(servertest.As(account), "X-Forwarded-For", address)
}

// lines returns headers as lines of a request.
func lines(headers []string) string {
	var b strings.Builder
	for i := 0; i < len(headers); i += 2 {
		fmt.Fprintf(&b, "%s: %s\r\n", headers[i], headers[i+1])
	}
	return b.String()
}

// wantRetryAfter checks that the answer's Retry-After is a whole number of seconds from 1 to
// `most`.
func (r *registry) wantRetryAfter(t *testing.T, a answer, most int) {
	t.Helper()
	text := a.Header.Get("Retry-After")
	if n, err := strconv.Atoi(text); err != nil || n < 1 || n > most {
		t.Errorf("%s: Retry-After is %q, want 1 to %d", a.Request.URL.Path, text, most)
	}
}

// TestClientRate: a client has sent as many requests as it may send at once. The registry must
// refuse the next one with 429, and must still answer other clients.
func TestClientRate(t *testing.T) {
	t.Parallel()
	reg, limits := limited(t, func(l *server.Limits) {
		l.ClientRate = throttle.NewRates(throttle.RatesOptions{PerSecond: 0.001, Burst: 3})
	})
	r := setup(t, limits, behindProxies)
	for range 3 {
		r.Do(t, "GET", "/v2/", "", "X-Forwarded-For", "198.51.100.1").Want(t, 200, "")
	}
	r.wantRetryAfter(t, r.Do(t, "GET", "/v2/", "", "X-Forwarded-For", "198.51.100.1").Want(t, 429, oci.TooManyRequests), 1000)
	r.Do(t, "GET", "/v2/", "", "X-Forwarded-For", "198.51.100.2").Want(t, 200, "")
	if n := metric(t, reg, "purser_limit_refused_total", limit.ClientRate); n != 1 {
		t.Errorf("%v were counted", n)
	}
}

// TestAccountRate: an account has sent as many requests as it may send at once, from several
// addresses. The registry must refuse the account's next ones with 429 in all its interfaces,
// and must still answer other accounts and clients without one. Requests with a wrong password
// must not count for the account.
func TestAccountRate(t *testing.T) {
	t.Parallel()
	r, reg := limitedAccounts(t, func(l *server.Limits) {
		l.AccountRate = throttle.NewRates(throttle.RatesOptions{PerSecond: 0.001, Burst: 3})
	})
	const api = "/api/v1/organization"
	r.Do(t, "GET", "/v2/", "", servertest.Basic("ann", "wrong")...).Want(t, 401, oci.Unauthorized)
	r.Do(t, "GET", "/v2/", "", from("ann", "198.51.100.1")...).Want(t, 200, "")
	r.Do(t, "GET", api, "", from("ann", "198.51.100.2")...).WantStatus(t, 200)
	r.Do(t, "GET", "/v2/", "", from("ann", "198.51.100.3")...).Want(t, 200, "")
	r.wantRetryAfter(t, r.Do(t, "GET", "/v2/", "", from("ann", "198.51.100.4")...).Want(t, 429, oci.TooManyRequests), 1000)
	refused := r.Do(t, "GET", api, "", from("ann", "198.51.100.5")...)
	refused.WantStatus(t, 429)
	r.wantRetryAfter(t, refused, 1000)
	r.Do(t, "GET", "/v2/", "", from("bob", "198.51.100.4")...).Want(t, 200, "")
	r.Do(t, "GET", api, "", from("bob", "198.51.100.4")...).WantStatus(t, 200)
	r.Do(t, "GET", "/v2/", "", "X-Forwarded-For", "198.51.100.4").Want(t, 401, oci.Unauthorized)
	if n := metric(t, reg, "purser_limit_refused_total", limit.AccountRate); n != 2 {
		t.Errorf("%v were counted", n)
	}
}

// TestRetryAfterIsRoundedUp: a client may try again in a millisecond. The header Retry-After has
// whole seconds, so it must be 1, not 0.
func TestRetryAfterIsRoundedUp(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *servertest.Options) {
		o.Server.Authorize = func(context.Context, auth.Access, auth.Resource) error {
			return oci.NewError(oci.TooManyRequests).WithRetryAfter(time.Millisecond)
		}
	})
	r.wantRetryAfter(t, r.Do(t, "GET", "/v2/a/tags/list", "").Want(t, 429, oci.TooManyRequests), 1)
}

// TestRequestsOfAnAccount: an account has as many unfinished requests as one client may have,
// each from another address. The registry must refuse its next request with 503 until one of
// the unfinished requests ends, and must still answer others.
func TestRequestsOfAnAccount(t *testing.T) {
	t.Parallel()
	r, reg := limitedAccounts(t, func(l *server.Limits) {
		l.ClientRequests, l.Memory = 2, limit.BudgetOptions{Total: 4 << 20}
	})
	used := func() float64 { return metric(t, reg, "purser_body_memory_bytes", "") }
	put := func(address string) string {
		return lines(from("ann", address)) + "Content-Length: 10\r\n\r\n"
	}
	one := r.unfinished(t, "PUT /v2/acme/app/manifests/x", put("198.51.100.1"))
	r.unfinished(t, "PUT /v2/acme/app/manifests/x", put("198.51.100.2"))
	eventually(t, "two requests with a buffer of 10 bytes each, which count twice", func() bool { return used() == 2*20 })
	r.Do(t, "GET", "/v2/", "", from("ann", "198.51.100.3")...).Want(t, 503, oci.Unavailable, "Retry-After", "*")
	r.Do(t, "GET", "/v2/", "", from("bob", "198.51.100.3")...).Want(t, 200, "")
	r.Do(t, "GET", "/v2/", "", "X-Forwarded-For", "198.51.100.3").Want(t, 401, oci.Unauthorized)
	one.Close() //nolint:errcheck
	eventually(t, "one has ended", func() bool { return used() == 20 })
	r.Do(t, "GET", "/v2/", "", from("ann", "198.51.100.3")...).Want(t, 200, "")
	if n := metric(t, reg, "purser_limit_refused_total", limit.AccountRequests); n != 1 {
		t.Errorf("%v were counted", n)
	}
}

// TestAddressesOfAccountsAreKnown: an account has logged in from an address. What comes from there is a
// known client's, and what comes from elsewhere, or with a wrong password, a stranger's.
func TestAddressesOfAccountsAreKnown(t *testing.T) {
	t.Parallel()
	r, _ := limitedAccounts(t, func(*server.Limits) {})
	r.Handler.Mount(server.Mount{Prefix: "/sharer", Exact: true, MarshalError: func(e *oci.Error) []byte { return oci.MarshalErrors(e) },
		Handler: http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
			client, known := server.ShareOf(request.Context())
			fmt.Fprintf(w, "%s %v", client, known)
		})})
	for _, step := range []struct {
		headers []string
		want    string
	}{
		{[]string{"X-Forwarded-For", "198.51.100.1"}, "198.51.100.1 false"},
		{from("ann", "198.51.100.1"), "ann true"},
		{[]string{"X-Forwarded-For", "198.51.100.1"}, "198.51.100.1 true"},
		{append(servertest.Basic("ann", "wrong"), "X-Forwarded-For", "198.51.100.2"), "198.51.100.2 false"},
		{[]string{"X-Forwarded-For", "198.51.100.2"}, "198.51.100.2 false"},
	} {
		if got := string(r.Do(t, "GET", "/sharer", "", step.headers...).Content); got != step.want {
			t.Errorf("a request with %v is of %q, want %q", step.headers, got, step.want)
		}
	}
}

// TestMemoryOfAnAccount: an account sends two manifests from two addresses, and both together
// need more memory than one client may have. The registry must refuse the second with 503, and
// must accept another account's manifest.
func TestMemoryOfAnAccount(t *testing.T) {
	t.Parallel()
	r, reg := limitedAccounts(t, func(l *server.Limits) { l.Memory = limit.BudgetOptions{Total: 4 << 20} })
	large := func(address string) string {
		return lines(from("ann", address)) + "Content-Length: 500000\r\n\r\n" + strings.Repeat("x", 400_000)
	}
	r.unfinished(t, "PUT /v2/acme/app/manifests/x", large("198.51.100.1"))
	eventually(t, "the first is in memory", func() bool {
		return metric(t, reg, "purser_body_memory_bytes", "") == 2*500_000
	})
	second := answerOn(t, r.unfinished(t, "PUT /v2/acme/app/manifests/x", large("198.51.100.2")))
	if second.StatusCode != 503 || second.Header.Get("Retry-After") == "" {
		t.Errorf("beyond the account's share: %s, %v", second.Status, second.Header)
	}
	if n := metric(t, reg, "purser_limit_refused_total", limit.AccountBodyMemory); n != 1 {
		t.Errorf("%v were counted", n)
	}
	bob := r.With(from("bob", "198.51.100.2"))
	bob.Put(t, "acme/app", "v1", bob.Simple(t, "acme/app", 1, object{"annotations": map[string]string{"l": strings.Repeat("x", 400_000)}}))
}

// TestRobotsOfANamespaceShare: robots of a namespace have, all together, as many unfinished requests
// and as much memory as one account may have, each from another address. The registry must refuse a
// further robot's requests until one of them ends, and must still answer a robot of another namespace.
func TestRobotsOfANamespaceShare(t *testing.T) {
	t.Parallel()
	r, reg := limitedAccounts(t, func(l *server.Limits) {
		l.ClientRequests, l.Memory = 2, limit.BudgetOptions{Total: 4 << 20}
	})
	ann := r.With(servertest.As("ann"))
	ann.Push(t, "acme/app", "x")
	ann.Push(t, "other/app", "x")
	number := 0
	at := func(headers []string) []string { // each request comes from another address
		number++
		return append(slices.Clone(headers), "X-Forwarded-For", "198.51.100."+strconv.Itoa(number))
	}
	a, b, c := r.AddRobot(t, "acme", "a", auth.Writer), r.AddRobot(t, "acme", "b", auth.Writer), r.AddRobot(t, "acme", "c", auth.Writer)
	other := r.AddRobot(t, "other", "a", auth.Writer)
	used := func() float64 { return metric(t, reg, "purser_body_memory_bytes", "") }
	put := func(robot []string, size, sent int) net.Conn {
		t.Helper()
		return r.unfinished(t, "PUT /v2/acme/app/manifests/x",
			lines(at(robot))+"Content-Length: "+strconv.Itoa(size)+"\r\n\r\n"+strings.Repeat("x", sent))
	}
	one := put(a, 500_000, 400_000)
	eventually(t, "the first manifest is in memory", func() bool { return used() == 2*500_000 })

	second := answerOn(t, put(b, 500_000, 400_000))
	if second.StatusCode != 503 || second.Header.Get("Retry-After") == "" {
		t.Errorf("beyond the robots' share of memory: %s, %v", second.Status, second.Header)
	}
	if n := metric(t, reg, "purser_limit_refused_total", limit.AccountBodyMemory); n != 1 {
		t.Errorf("%v were counted", n)
	}

	put(b, 10, 0)
	eventually(t, "both are in memory", func() bool { return used() == 2*500_000+2*10 })
	refused := r.Do(t, "GET", "/v2/", "", at(c)...).Want(t, 503, oci.Unavailable, "Retry-After", "*")
	if !strings.Contains(string(refused.Content), "the robots of acme") {
		t.Errorf("the answer is %s", refused.Content)
	}
	r.Do(t, "GET", "/v2/", "", at(other)...).Want(t, 200, "")
	r.Do(t, "GET", "/v2/", "", at(servertest.As("ann"))...).Want(t, 200, "")
	one.Close() //nolint:errcheck
	eventually(t, "one has ended", func() bool { return used() == 2*10 })
	r.Do(t, "GET", "/v2/", "", at(c)...).Want(t, 200, "")
	if n := metric(t, reg, "purser_limit_refused_total", limit.AccountRequests); n != 1 {
		t.Errorf("%v were counted", n)
	}
}
