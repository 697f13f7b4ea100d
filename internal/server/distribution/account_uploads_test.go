package distribution_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestOpenUploadsOfAnAccount: an account may have two open uploads, and has two, from two
// addresses. The registry must refuse to start a third from another address, until the account
// finishes or cancels one of the two, through this process or another. Another account may
// start uploads from the same addresses.
func TestOpenUploadsOfAnAccount(t *testing.T) {
	t.Parallel()
	closed := func(o *servertest.Options) {
		o.Access = &auth.Options{}
		o.Distribution.AccountUploads = 2
		o.Server.Limits.Metrics = limit.NewMetrics(o.Server.Metrics)
		o.Server.Proxies = limit.NewProxies([]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, limit.AnyForwarded)
	}
	r := setup(t, closed)
	for _, name := range []string{"ann", "bob"} {
		r.AddAccount(t, name, true)
	}
	from := func(r *registry, account, address string) *servertest.Registry {
		return r.With(append(servertest.As(account), "X-Forwarded-For", address))
	}
	refused := func(address string) {
		t.Helper()
		a := from(r, "ann", address).Do(t, "POST", "/v2/acme/app/blobs/uploads/", "").Want(t, 429, oci.TooManyRequests, "Retry-After", "*")
		if !strings.Contains(string(a.Content), "2 uploads of the account ann") {
			t.Errorf("the answer is %s", a.Content)
		}
	}
	a := from(r, "ann", "198.51.100.1").StartUpload(t, "acme/app", "")
	b := from(r, "ann", "198.51.100.2").StartUpload(t, "acme/app", "")
	other := replica(t, r.DSN, r.Dir, closed)
	from(other, "ann", "198.51.100.1").Do(t, "DELETE", a, "").Want(t, 204, "")
	from(r, "ann", "198.51.100.3").StartUpload(t, "acme/app", "")
	refused("198.51.100.4")
	from(r, "ann", "198.51.100.5").Do(t, "PUT", b+"?digest="+digest("x").String(), "x").Want(t, 201, "")
	from(r, "ann", "198.51.100.4").StartUpload(t, "acme/app", "")
	refused("198.51.100.1")
	from(r, "bob", "198.51.100.4").StartUpload(t, "acme/app", "")
	from(r, "bob", "198.51.100.6").StartUpload(t, "acme/app", "")
	if n := r.Gauge(t, "purser_limit_refused_total"); n != 2 {
		t.Errorf("%v were counted", n)
	}
}

// TestAnAccountLeavesRoomForOthers: an account has as many open uploads as accounts may have,
// all from one address, whose limit is higher. Another account must still be able to start
// uploads from this address.
func TestAnAccountLeavesRoomForOthers(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *servertest.Options) {
		o.Access = &auth.Options{}
		o.Distribution.ClientUploads, o.Distribution.AccountUploads = 4, 2
	})
	for _, name := range []string{"ann", "bob"} {
		r.AddAccount(t, name, true)
	}
	ann, bob := r.With(servertest.As("ann")), r.With(servertest.As("bob"))
	for range 2 {
		ann.StartUpload(t, "acme/app", "")
	}
	ann.Do(t, "POST", "/v2/acme/app/blobs/uploads/", "").Want(t, 429, oci.TooManyRequests, "Retry-After", "*")
	for range 2 {
		bob.StartUpload(t, "acme/app", "")
	}
	a := bob.Do(t, "POST", "/v2/acme/app/blobs/uploads/", "").Want(t, 429, oci.TooManyRequests, "Retry-After", "*")
	if !strings.Contains(string(a.Content), "uploads from your address") && !strings.Contains(string(a.Content), "account bob") {
		t.Errorf("the answer is %s", a.Content)
	}
}
