package distribution_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/identity"
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

// TestOpenUploadsOfRobots: three robots of a namespace have, all together, as many open uploads as
// one client may have, from several addresses. The registry must refuse to start another one for a
// robot of the namespace, through any process, until one of them is cancelled. A robot of another
// namespace may start uploads.
func TestOpenUploadsOfRobots(t *testing.T) {
	t.Parallel()
	for _, ofAccount := range []int{0, 3} { // without a limit of accounts, and with one that isn't reached
		closed := func(o *servertest.Options) {
			o.Access = &auth.Options{}
			o.Distribution.ClientUploads, o.Distribution.AccountUploads = 4, ofAccount
			o.Server.Limits.Metrics = limit.NewMetrics(o.Server.Metrics)
			o.Server.Proxies = limit.NewProxies([]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, limit.AnyForwarded)
		}
		r := setup(t, closed)
		r.AddAccount(t, "ann", true)
		ann := r.With(servertest.As("ann"))
		ann.Push(t, "acme/app", "x")
		ann.Push(t, "acmeplus/app", "x")
		number := 0
		as := func(r *registry, headers []string) *servertest.Registry {
			number++
			return r.With(append(slices.Clone(headers), "X-Forwarded-For", fmt.Sprint("198.51.100.", number)))
		}
		robots := [][]string{r.AddRobot(t, "acme", "a", auth.Writer), r.AddRobot(t, "acme", "b", auth.Writer), r.AddRobot(t, "acme", "c", auth.Writer)}
		other := r.AddRobot(t, "acmeplus", "a", auth.Writer)
		two := replica(t, r.DSN, r.Dir, closed)
		var last string
		for i := range 4 {
			last = as([]*registry{r, two}[i%2], robots[i%3]).StartUpload(t, "acme/app", "")
		}
		refused := func() {
			t.Helper()
			for i, process := range []*registry{r, two} {
				a := as(process, robots[i+1]).Do(t, "POST", "/v2/acme/app/blobs/uploads/", "").Want(t, 429, oci.TooManyRequests, "Retry-After", "*")
				if !strings.Contains(string(a.Content), "4 uploads of the robots of acme") {
					t.Errorf("the answer is %s", a.Content)
				}
			}
		}
		refused()
		as(r, other).StartUpload(t, "acmeplus/app", "")
		as(r, servertest.As("ann")).StartUpload(t, "acme/app", "")
		as(two, robots[2]).Do(t, "DELETE", last, "").Want(t, 204, "")
		as(r, robots[1]).StartUpload(t, "acme/app", "")
		refused()
	}
}

// TestUploadsOfADeletedAccount: what a deleted account has open doesn't count for the next of its name: of
// a person, a robot, and the robot of a namespace that is deleted and made again.
func TestUploadsOfADeletedAccount(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *servertest.Options) {
		o.Access = &auth.Options{}
		o.Distribution.AccountUploads = 1
	})
	r.AddAccount(t, "root", true)
	r.AddAccount(t, "ann", true)
	root := r.With(servertest.As("root"))
	root.Manage(t, "POST", "/organization", `{"name":"acme"}`).WantStatus(t, 201)
	robot := func() *servertest.Registry {
		_, secret, err := r.Auth.CreateRobot(t.Context(), "acme", "ci", "", auth.Limits{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Grant(t, "acme", "acme+ci", auth.Writer)
		return r.With(servertest.Basic("acme+ci", secret))
	}
	full := func(who *servertest.Registry) {
		t.Helper()
		who.StartUpload(t, "acme/app", "")
		who.Do(t, "POST", "/v2/acme/app/blobs/uploads/", "").Want(t, 429, oci.TooManyRequests, "Retry-After", "*")
	}
	full(r.With(servertest.As("ann")))
	root.Manage(t, "DELETE", "/superuser/users/ann", "").WantStatus(t, 204)
	r.AddAccount(t, "ann", true)
	full(r.With(servertest.As("ann")))
	full(robot())
	root.Manage(t, "DELETE", "/organization/acme/robots/ci", "").WantStatus(t, 204)
	full(robot())
	root.Manage(t, "DELETE", "/organization/acme", "").WantStatus(t, 204)
	root.Manage(t, "POST", "/organization", `{"name":"acme"}`).WantStatus(t, 201)
	full(robot())
}

// TestUploadsOfARenamedAccount: when the directory has given a person another name, the open uploads count for
// the account under that name, and not for the next account of the former one.
func TestUploadsOfARenamedAccount(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *servertest.Options) {
		o.Access = &auth.Options{}
		o.Distribution.AccountUploads = 1
	})
	r.AddAccount(t, "root", true)
	r.With(servertest.As("root")).Manage(t, "POST", "/organization", `{"name":"acme"}`).WantStatus(t, 201)
	as := func(name, entry string) *servertest.Registry {
		t.Helper()
		i := identity.Identity{Source: auth.SourceLDAP, Subject: "uid=" + name, Name: name, EntryID: entry}
		if _, err := r.Auth.Provision(t.Context(), i); err != nil {
			t.Fatal(err)
		}
		r.Grant(t, "acme", name, auth.Writer)
		_, secret, err := r.Auth.CreateToken(t.Context(), &auth.Principal{Name: name}, "", auth.Limits{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return r.With(servertest.Basic(name, secret))
	}
	full := func(who *servertest.Registry) {
		t.Helper()
		who.Do(t, "POST", "/v2/acme/app/blobs/uploads/", "").Want(t, 429, oci.TooManyRequests, "Retry-After", "*")
	}
	as("ann", "first").StartUpload(t, "acme/app", "")
	full(as("anna", "first"))
	next := as("ann", "second")
	next.StartUpload(t, "acme/app", "")
	full(next)
}
