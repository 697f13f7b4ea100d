package client

import (
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/identity"
	"github.com/purser-registry/purser/internal/auth/identity/identitytest"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestUserRebind: an administrator gives an account of the directory to the entry of another name,
// with its personal tokens, and then to the next entry that logs in, without them.
func TestUserRebind(t *testing.T) {
	t.Parallel()
	s := identitytest.StartLDAP(t)
	d, err := identity.NewDirectory(identity.DirectoryOptions{
		URL: s.URL, BindDN: identitytest.ServiceDN, BindPassword: identitytest.ServicePassword, UserBase: identitytest.UserBase,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	o := newOffice(t, func(o *servertest.Options, _ *db.DB) { o.Access.Directory = d })
	o.login("root")
	person := func(name, password string) auth.Account {
		t.Helper()
		o.r.Do(t, "GET", "/auth/session", "", servertest.Basic(name, password)...).WantStatus(t, 200)
		a, err := o.r.Auth.Person(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	s.AddUser(t, "ann", "ann's")
	bea := s.AddUser(t, "bea", "bea's")
	before := person("ann", "ann's")
	_, token, err := o.r.Auth.CreateToken(t.Context(), &auth.Principal{Name: "ann"}, "laptop", auth.Limits{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	tokenIs := func(status int) {
		t.Helper()
		o.r.Do(t, "GET", "/v2/", "", servertest.Bearer(token)...).WantStatus(t, status)
	}
	prints := func(want string, args ...string) {
		t.Helper()
		if text := o.ok("", args...); !strings.Contains(text, want) {
			t.Errorf("purser %q prints %q, want %q", args, text, want)
		}
	}

	o.fails("--to is empty", 2, "", "user", "rebind", "ann", "--to", "", "--yes")
	o.fails("Give account ann to the entry of bea, and end its log-ins? There is no terminal", 3, "", "user", "rebind", "ann", "--to", "bea")
	if a := person("ann", "ann's"); a.EntryID != before.EntryID {
		t.Errorf("a question without an answer has given ann away: %+v", a)
	}
	prints("Account ann belongs to the entry of bea now. Ended: log-ins of browsers 0, refresh tokens 0, personal tokens 0.",
		"user", "rebind", "ann", "--to", "bea", "--keep-personal-tokens", "--yes")
	tokenIs(200)
	if a := person("bea", "bea's"); a.ID != before.ID || a.EntryID == before.EntryID {
		t.Errorf("bea has %+v, want ann's account with another entry", a)
	}

	s.Delete(t, bea)
	s.AddUser(t, "bea", "of the new bea")
	prints("Account bea belongs to the next entry that logs in by this name now. Ended: log-ins of browsers 0, refresh tokens 0, personal tokens 1.",
		"user", "rebind", "bea", "--yes")
	tokenIs(401)
	if a := person("bea", "of the new bea"); a.ID != before.ID {
		t.Errorf("the new bea has %+v, want the old one's account", a)
	}
}
