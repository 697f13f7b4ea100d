package login_test

import (
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/auth/identity"
	"github.com/purser-registry/purser/internal/auth/identity/identitytest"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// withDirectory starts a closed registry whose people are in a directory.
func withDirectory(t *testing.T, s *identitytest.LDAP, recheck time.Duration, o identity.DirectoryOptions) *servertest.Registry {
	t.Helper()
	o.URL, o.BindDN, o.BindPassword = s.URL, identitytest.ServiceDN, identitytest.ServicePassword
	o.UserBase, o.GroupBase = identitytest.UserBase, identitytest.GroupBase
	d, err := identity.NewDirectory(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return closed(t, nil, func(o *servertest.Options) {
		o.Access.Directory, o.Access.DirectoryRecheck, o.Access.Verified = d, recheck, unremembered()
	})
}

// held is what somebody has got by a password.
type held struct {
	name, refresh string
	cookie        []string
}

func hold(t *testing.T, r *servertest.Registry, name, password string) held {
	t.Helper()
	return held{name, refreshToken(t, r, name, password), logIn(t, r, name, password)}
}

// want checks whether the refresh token and the session are accepted.
func (h held) want(t *testing.T, r *servertest.Registry, works bool) {
	t.Helper()
	account, status := "", 401
	if works {
		account, status = h.name, 200
	}
	if got := accountOf(t, r, h.cookie...); got != account {
		t.Errorf("the session is %q's, want %q's", got, account)
	}
	useRefresh(t, r, h.refresh).WantStatus(t, status)
}

// setPassword gives a person another password, as the person would.
func setPassword(t *testing.T, s *identitytest.LDAP, dn, password string) {
	t.Helper()
	s.Set(t, dn, "userPassword", password)
	s.Set(t, dn, "pwdReset") // else the person has to change what an administrator has set
}

// TestLDAPPasswordChanges: when the directory is asked again, what was got by a password ends if the
// password has changed, if the person has left, and if the person is in no required group any more.
func TestLDAPPasswordChanges(t *testing.T) {
	t.Parallel()
	s := identitytest.StartLDAP(t)
	people := map[string]string{}
	for _, name := range []string{"carl", "dora", "eve", "fay"} {
		people[name] = s.AddUser(t, name, "first")
		setPassword(t, s, people[name], "password") // ppolicy notes the time of a change
	}
	users := s.AddGroup(t, "users", people["carl"], people["dora"], people["eve"], people["fay"])
	r := withDirectory(t, s, time.Nanosecond, identity.DirectoryOptions{RequiredGroups: []string{"users"}})
	got := map[string]held{}
	for name := range people {
		got[name] = hold(t, r, name, "password")
		got[name].want(t, r, true)
	}
	// The directory notes times in whole seconds, by a clock of the kernel that may be some milliseconds behind.
	time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second + 50*time.Millisecond)))
	setPassword(t, s, people["carl"], "another password")
	s.Delete(t, people["dora"])
	s.Set(t, users, "member", people["carl"], people["fay"])
	for _, name := range []string{"carl", "dora", "eve"} {
		got[name].want(t, r, false)
	}
	got["fay"].want(t, r, true)
	hold(t, r, "carl", "another password").want(t, r, true)
	var ended int
	if err := r.DB.Pool.QueryRow(t.Context(), "SELECT count(*) FROM auditlog WHERE kind = 'user_end_log_ins'").Scan(&ended); err != nil || ended != 3 {
		t.Errorf("%d entries of the audit log, %v", ended, err)
	}
}

// TestLDAPWithoutTimes: if the directory doesn't say when a password was changed, what was got by it
// ends when the directory would be asked again.
func TestLDAPWithoutTimes(t *testing.T) {
	t.Parallel()
	s := identitytest.StartLDAP(t)
	carl := s.AddUser(t, "carl", "password")
	r := withDirectory(t, s, time.Hour, identity.DirectoryOptions{PasswordChangedAttribute: "title"})
	got := hold(t, r, "carl", "password")
	got.want(t, r, true)
	ends := func() (longest time.Duration) {
		t.Helper()
		err := r.DB.Pool.QueryRow(t.Context(), `
			SELECT max(expires_at) - now() FROM (SELECT expires_at FROM sessions UNION ALL SELECT expires_at FROM credentials) e`).Scan(&longest)
		if err != nil {
			t.Fatal(err)
		}
		return longest
	}
	if d := ends(); d > time.Hour || d < 50*time.Minute {
		t.Errorf("it ends after %v", d)
	}
	age(t, r, 61*time.Minute) // as if the setting was longer before
	got.want(t, r, false)
	s.Set(t, carl, "title", "now it has one")
	hold(t, r, "carl", "password").want(t, r, true)
	if d := ends(); d < 2*time.Hour {
		t.Errorf("it ends after %v, although the directory can be asked", d)
	}
}

// age makes what the directory has confirmed older.
func age(t *testing.T, r *servertest.Registry, by time.Duration) {
	t.Helper()
	for _, table := range []string{"sessions", "credentials"} {
		if _, err := r.DB.Pool.Exec(t.Context(), "UPDATE "+table+" SET confirmed_at = confirmed_at - $1::interval", by); err != nil {
			t.Fatal(err)
		}
	}
	r.Auth.Forget()
}

// TestLDAPAwayAtRecheck: while the directory doesn't answer, its last answer counts for as long
// again, and nothing ends for good.
func TestLDAPAwayAtRecheck(t *testing.T) {
	t.Parallel()
	s := identitytest.StartLDAP(t)
	for _, name := range []string{"carl", "dora"} {
		s.AddUser(t, name, "password")
	}
	r := withDirectory(t, s, time.Hour, identity.DirectoryOptions{PasswordChangedAttribute: "mail"})
	carl := hold(t, r, "carl", "password")
	s.Stop()
	carl.want(t, r, true) // nobody is asked yet
	age(t, r, 90*time.Minute)
	carl.want(t, r, true)
	s.Start(t)
	dora := hold(t, r, "dora", "password")
	s.Stop()
	age(t, r, 121*time.Minute)
	useRefresh(t, r, dora.refresh).WantStatus(t, 503)
	if got := accountOf(t, r, dora.cookie...); got != "" {
		t.Errorf("the session is %q's", got)
	}
	var left int
	err := r.DB.Pool.QueryRow(t.Context(), "SELECT (SELECT count(*) FROM sessions) + (SELECT count(*) FROM credentials)").Scan(&left)
	if err != nil || left != 4 {
		t.Errorf("%d are left, %v", left, err)
	}
}
