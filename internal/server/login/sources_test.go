package login_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/identity"
	"github.com/purser-registry/purser/internal/auth/identity/identitytest"
	"github.com/purser-registry/purser/internal/auth/password"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

func directory(t *testing.T, s *identitytest.LDAP) *identity.Directory {
	t.Helper()
	d, err := identity.NewDirectory(identity.DirectoryOptions{URL: s.URL, BindDN: identitytest.ServiceDN, BindPassword: identitytest.ServicePassword,
		UserBase: identitytest.UserBase, GroupBase: identitytest.GroupBase})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// unremembered lets each request check its password.
func unremembered() *password.Cache { return password.NewCache(password.CacheOptions{TTL: -1}) }

// TestLDAP: a person of the directory logs in with the directory's password, gets roles by
// groups, and loses them at the next log-in without the group.
func TestLDAP(t *testing.T) {
	t.Parallel()
	s := identitytest.StartLDAP(t)
	group := s.AddGroup(t, "developers", s.AddUser(t, "carl", "carl's secret"))
	r := closed(t, nil, func(o *servertest.Options) { o.Access.Directory, o.Access.Verified = directory(t, s), unremembered() })
	if _, err := r.Auth.PutTeam(t.Context(), "acme", "developers", auth.Writer, nil); err != nil {
		t.Fatal(err)
	}
	if err := r.Auth.SetTeamGroups(t.Context(), "acme", "developers", []auth.TeamGroup{{Source: auth.SourceLDAP, Name: "developers"}}); err != nil {
		t.Fatal(err)
	}
	const manifest = "/v2/acme/app/manifests/v1"
	carl := servertest.Basic("carl", "carl's secret")
	r.Do(t, "GET", manifest, "", carl...).Want(t, 200, "")
	r.Do(t, "GET", manifest, "", servertest.Basic("Carl", "carl's secret")...).Want(t, 200, "")
	token := r.Token(t, carl, "repository:acme/app:pull,push")
	r.Do(t, "POST", "/v2/acme/app/blobs/uploads/", "", servertest.Bearer(token)...).Want(t, 202, "")
	cookie := logIn(t, r, "carl", "carl's secret")
	if got := accountOf(t, r, cookie...); got != "carl" {
		t.Errorf("the session is %q's", got)
	}
	for _, wrong := range []string{"", "wrong", "*"} {
		r.Do(t, "GET", manifest, "", servertest.Basic("carl", wrong)...).Want(t, 401, oci.Unauthorized)
	}
	s.Set(t, group, "member", identitytest.ServiceDN)
	r.Do(t, "GET", manifest, "", carl...).Want(t, 403, oci.Denied)
	if a := r.Do(t, "GET", "/api/v1/repository/acme/app/tag", "", cookie...); a.StatusCode != 403 {
		t.Errorf("the session still has the role: %d", a.StatusCode)
	}
	s.Stop()
	r.Do(t, "GET", manifest, "", carl...).Want(t, 503, oci.Unavailable)
}

// TestLDAPGroupsOfTeams: teams name a group of the directory in other letters than the directory
// does, or by its DN. Whoever is in the group must be in the team after a log-in.
func TestLDAPGroupsOfTeams(t *testing.T) {
	t.Parallel()
	s := identitytest.StartLDAP(t)
	s.AddGroup(t, "Developers", s.AddUser(t, "carl", "carl's secret"))
	r := closed(t, nil, func(o *servertest.Options) { o.Access.Directory, o.Access.Verified = directory(t, s), unremembered() })
	teams := map[string]struct {
		group  string
		member bool
	}{
		"same":  {"Developers", true},
		"case":  {"dEVELOPERS", true},
		"dn":    {"CN=developers, OU=Groups,DC=example,dc=org", true},
		"other": {"cn=developers,dc=example,dc=org", false},
	}
	for team, g := range teams {
		if _, err := r.Auth.PutTeam(t.Context(), "acme", team, auth.Reader, nil); err != nil {
			t.Fatal(err)
		}
		if err := r.Auth.SetTeamGroups(t.Context(), "acme", team, []auth.TeamGroup{{Source: auth.SourceLDAP, Name: g.group}}); err != nil {
			t.Fatal(err)
		}
	}
	r.Do(t, "GET", "/auth/session", "", servertest.Basic("carl", "carl's secret")...).WantStatus(t, 200)
	for team, g := range teams {
		members, _, err := r.Auth.Members(t.Context(), "acme", team, "", 10)
		if err != nil || (len(members) == 1) != g.member {
			t.Errorf("the team of %s has %+v, %v", g.group, members, err)
		}
	}
}

// TestRenamedPerson: a person of the directory who gets the name that another person's account
// has doesn't get into that account.
func TestRenamedPerson(t *testing.T) {
	t.Parallel()
	s := identitytest.StartLDAP(t)
	add := func(cn, uid string) string {
		dn := "cn=" + cn + "," + identitytest.UserBase
		s.Add(t, dn, "objectClass: inetOrgPerson", "uid: "+uid, "sn: "+cn, "userPassword: password of "+cn)
		return dn
	}
	dora, carl := add("dora", "dora"), add("carl", "carl")
	r := closed(t, nil, func(o *servertest.Options) { o.Access.Directory, o.Access.Verified = directory(t, s), unremembered() })
	r.Do(t, "GET", "/auth/session", "", servertest.Basic("dora", "password of dora")...).WantStatus(t, 200)
	r.Do(t, "GET", "/auth/session", "", servertest.Basic("carl", "password of carl")...).WantStatus(t, 200)
	s.Delete(t, dora)
	s.Set(t, carl, "uid", "dora")
	a := r.Do(t, "GET", "/v2/", "", servertest.Basic("dora", "password of carl")...).WantStatus(t, 409)
	if !strings.Contains(string(a.Content), "has the account carl") {
		t.Errorf("the answer is %s", a.Content)
	}
}

// TestMovedEntries: an account belongs to the directory's entry, by the entry's id. It goes with the
// entry when that is moved or gets another name, and nobody else gets it: neither a new person with
// the old DN and name, nor somebody with whom the person has swapped names.
func TestMovedEntries(t *testing.T) {
	t.Parallel()
	s := identitytest.StartLDAP(t)
	r := closed(t, nil, func(o *servertest.Options) { o.Access.Directory, o.Access.Verified = directory(t, s), unremembered() })
	as := func(name, password string, status int) {
		t.Helper()
		r.Do(t, "GET", "/auth/session", "", servertest.Basic(name, password)...).WantStatus(t, status)
	}
	idOf := func(name string) (id int64, subject, entry string) {
		t.Helper()
		if err := r.DB.Pool.QueryRow(t.Context(), "SELECT id, COALESCE(subject, ''), COALESCE(entry_id, '') FROM accounts WHERE name = $1", name).Scan(&id, &subject, &entry); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return id, subject, entry
	}
	exec := func(sql string) {
		t.Helper()
		if _, err := r.DB.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	ann := s.AddUser(t, "ann", "ann's secret")
	bea := s.AddUser(t, "bea", "bea's secret")
	as("ann", "ann's secret", 200)
	as("bea", "bea's secret", 200)
	annID, _, annEntry := idOf("ann")
	beaID, _, _ := idOf("bea")
	if annEntry == "" {
		t.Fatal("no id is recorded")
	}

	// An account of a directory that told no ids takes the id if the DN agrees, and not otherwise.
	exec("UPDATE accounts SET entry_id = NULL WHERE name = 'ann'")
	as("ann", "ann's secret", 200)
	if id, _, entry := idOf("ann"); id != annID || entry != annEntry {
		t.Errorf("ann is %d with %s", id, entry)
	}

	// Moved, and renamed.
	s.Add(t, "ou=leavers,"+identitytest.UserBase, "objectClass: organizationalUnit")
	moved := s.Rename(t, ann, "uid=ann", "ou=leavers,"+identitytest.UserBase)
	as("ann", "ann's secret", 200)
	if id, subject, _ := idOf("ann"); id != annID || subject != moved {
		t.Errorf("ann is %d at %s", id, subject)
	}
	renamed := s.Rename(t, moved, "uid=anna", identitytest.UserBase)
	as("anna", "ann's secret", 200)
	if id, subject, _ := idOf("anna"); id != annID || subject != renamed {
		t.Errorf("anna is %d at %s", id, subject)
	}

	// A new person gets the old DN and the old name: that is another account.
	s.AddUser(t, "ann", "of the new ann")
	as("ann", "of the new ann", 200)
	if id, _, _ := idOf("ann"); id == annID {
		t.Error("the new ann has the old one's account")
	}
	// bea leaves without ever having been seen under another DN, and a new bea comes.
	s.Delete(t, bea)
	s.AddUser(t, "bea", "of the new bea")
	as("bea", "of the new bea", 409)
	if id, _, _ := idOf("bea"); id != beaID {
		t.Error("the old bea's account is gone")
	}

	// Two swap their names. Neither gets the other's account.
	cid, dan := s.AddUser(t, "cid", "cid's secret"), s.AddUser(t, "dan", "dan's secret")
	as("cid", "cid's secret", 200)
	as("dan", "dan's secret", 200)
	cidID, _, _ := idOf("cid")
	between := s.Rename(t, cid, "uid=other", identitytest.UserBase)
	s.Rename(t, dan, "uid=cid", identitytest.UserBase)
	s.Rename(t, between, "uid=dan", identitytest.UserBase)
	as("cid", "dan's secret", 409)
	as("dan", "cid's secret", 409)
	if id, _, _ := idOf("cid"); id != cidID {
		t.Error("the accounts were swapped")
	}

	// The directory no longer tells ids: nobody can say whose the account is.
	exec("UPDATE accounts SET entry_id = 'objectguid=00' WHERE name = 'anna'")
	as("anna", "ann's secret", 409)
}

// TestMovedEntriesWithGUIDs: an account belongs to an entry of Active Directory by the entry's
// objectGUID. It goes with the entry when that is moved or gets another name, and a new person with
// the old DN and name doesn't get it.
func TestMovedEntriesWithGUIDs(t *testing.T) {
	t.Parallel()
	s := identitytest.StartWithGUIDs(t)
	r := closed(t, nil, func(o *servertest.Options) { o.Access.Directory, o.Access.Verified = directory(t, s), unremembered() })
	as := func(name, password string) auth.Account {
		t.Helper()
		r.Do(t, "GET", "/auth/session", "", servertest.Basic(name, password)...).WantStatus(t, 200)
		a, err := r.Auth.Person(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	// The ids are no text, and differ by what in text would be case.
	const of, ofAnother = "\x00\xff\xfeA\n=,\x80\x01\x02\x03\x04\x05\x06\x07Z", "\x00\xff\xfea\n=,\x80\x01\x02\x03\x04\x05\x06\x07Z"
	ann := s.AddUserWithGUID(t, "ann", "ann's secret", of)
	first := as("ann", "ann's secret")
	if want := "objectguid=00fffe410a3d2c80010203040506075a"; first.EntryID != want {
		t.Errorf("ann's entry is %q, want %q", first.EntryID, want)
	}
	s.Add(t, "ou=leavers,"+identitytest.UserBase, "objectClass: organizationalUnit")
	moved := s.Rename(t, ann, "uid=ann", "ou=leavers,"+identitytest.UserBase)
	if a := as("ann", "ann's secret"); a.ID != first.ID || a.Subject != moved {
		t.Errorf("after the entry was moved, ann is %+v", a)
	}
	renamed := s.Rename(t, moved, "uid=anna", identitytest.UserBase)
	if a := as("anna", "ann's secret"); a.ID != first.ID || a.Subject != renamed {
		t.Errorf("after the entry got another name, anna is %+v", a)
	}
	s.AddUserWithGUID(t, "ann", "of the new ann", ofAnother)
	if a := as("ann", "of the new ann"); a.ID == first.ID {
		t.Error("the new ann has the old one's account")
	}
}

// htpasswd writes a file with names and passwords, in turn. In place of a password it takes a hash.
func htpasswd(t *testing.T, path string, pairs ...string) {
	t.Helper()
	var b strings.Builder
	for i := 0; i < len(pairs); i += 2 {
		hash := []byte(pairs[i+1])
		if !strings.HasPrefix(pairs[i+1], "$2") {
			var err error
			if hash, err = bcrypt.GenerateFromPassword(hash, bcrypt.MinCost); err != nil {
				t.Fatal(err)
			}
		}
		fmt.Fprintf(&b, "%s:%s\n", pairs[i], hash)
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

func openFile(t *testing.T, pairs ...string) (*password.File, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "htpasswd")
	htpasswd(t, path, pairs...)
	f, err := password.OpenFile(path, password.FileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return f, path
}

// TestHtpasswd: accounts of the file log in. A new password ends what the old one has got, and
// leaving the file ends personal tokens too.
func TestHtpasswd(t *testing.T) {
	t.Parallel()
	file, path := openFile(t, "hal", "old", "ida", "ida's")
	r := closed(t, nil, func(o *servertest.Options) { o.Access.Htpasswd = file })
	servertest.Background(t, file.Run)
	hal := servertest.Basic("hal", "old")
	r.Do(t, "GET", "/v2/", "", hal...).Want(t, 200, "")
	r.Do(t, "GET", "/v2/", "", servertest.Basic("hal", "new")...).Want(t, 401, oci.Unauthorized)
	cookie, refresh := logIn(t, r, "hal", "old"), refreshToken(t, r, "hal", "old")
	ida, idas := logIn(t, r, "ida", "ida's"), refreshToken(t, r, "ida", "ida's")
	useRefresh(t, r, refresh).WantStatus(t, 200)
	_, personal, err := r.Auth.CreateToken(t.Context(), &auth.Principal{Name: "hal"}, "laptop", auth.Limits{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	works := func(headers ...string) bool { return accountOf(t, r, headers...) == "hal" }
	same, _ := file.Lookup("ida")
	htpasswd(t, path, "hal", "new", "ida", same)
	servertest.Eventually(t, "the new password", func() bool {
		return r.Do(t, "GET", "/auth/session", "", servertest.Basic("hal", "new")...).StatusCode == 200
	})
	r.Do(t, "GET", "/v2/", "", hal...).Want(t, 401, oci.Unauthorized)
	if works(cookie...) {
		t.Error("the session outlives the password")
	}
	useRefresh(t, r, refresh).WantStatus(t, 401)
	if !works(servertest.Bearer(personal)...) {
		t.Error("the personal token ends with the password")
	}
	if useRefresh(t, r, idas).WantStatus(t, 200); accountOf(t, r, ida...) != "ida" {
		t.Error("the session of another account has ended")
	}
	forgetFailures(t, r)
	cookie, refresh = logIn(t, r, "hal", "new"), refreshToken(t, r, "hal", "new")
	useRefresh(t, r, refresh).WantStatus(t, 200)
	htpasswd(t, path, "ida", "ida's")
	servertest.Eventually(t, "the removal", func() bool {
		return r.Do(t, "GET", "/auth/session", "", servertest.Basic("hal", "new")...).StatusCode == 401
	})
	r.Do(t, "GET", "/v2/", "", servertest.Basic("hal", "new")...).Want(t, 401, oci.Unauthorized) // a moment ago the check was remembered
	if works(cookie...) {
		t.Error("the session outlives the account")
	}
	useRefresh(t, r, refresh).WantStatus(t, 401)
	r.Do(t, "GET", "/v2/", "", servertest.Bearer(personal)...).Want(t, 401, oci.Unauthorized)
}

// forgetFailures lets people log in who have failed to.
func forgetFailures(t *testing.T, r *servertest.Registry) {
	t.Helper()
	if _, err := r.DB.Pool.Exec(t.Context(), "DELETE FROM loginfailures"); err != nil {
		t.Fatal(err)
	}
}

// refreshToken logs in by a password as docker does, and returns the refresh token.
func refreshToken(t *testing.T, r *servertest.Registry, name, password string) string {
	t.Helper()
	var out struct {
		RefreshToken string `json:"refresh_token"`
	}
	r.Do(t, "GET", "/token?offline_token=true&service=purser", "", servertest.Basic(name, password)...).Into(t, 200, &out)
	return out.RefreshToken
}

// useRefresh asks for a registry token by a refresh token.
func useRefresh(t *testing.T, r *servertest.Registry, token string) servertest.Answer {
	t.Helper()
	form := url.Values{"grant_type": {"refresh_token"}, "refresh_token": {token}, "service": {"purser"}}.Encode()
	return r.Do(t, "POST", "/token", form, "Content-Type", "application/x-www-form-urlencoded")
}

// TestCollidingNames: people of several sources with one name don't get into each other's
// account, in whatever order they come. A name belongs to the source that came first.
func TestCollidingNames(t *testing.T) {
	t.Parallel()
	s := identitytest.StartLDAP(t)
	file, _ := openFile(t, "ann", "password of htpasswd", "bob", "password of htpasswd")
	names := []string{"ann", "bob", "cleo", "dan"} // the latter two aren't in the file
	for _, name := range names {
		s.AddUser(t, name, "password of ldap")
	}
	r := closed(t, nil, func(o *servertest.Options) {
		o.Access.Directory, o.Access.Verified, o.Access.Htpasswd = directory(t, s), unremembered(), file
	})
	hash, err := r.Auth.Passwords().Hash(t.Context(), "password of local")
	if err != nil {
		t.Fatal(err)
	}
	// enter logs in with what a source knows, and returns the account, "" if that is refused.
	enter := func(ctx context.Context, name, source string) (account int64) {
		if source == auth.SourceOIDC {
			a, err := r.Auth.Provision(ctx, identity.Identity{Source: source, Subject: "https://id.example " + name, Name: name})
			if err == nil {
				account = a.ID
			}
			return account
		}
		p, err := r.Auth.Login(ctx, name, "password of "+source, "192.0.2.1")
		if err == nil {
			account = p.ID
		}
		return account
	}
	sources := []string{auth.SourceLocal, auth.SourceHtpasswd, auth.SourceLDAP, auth.SourceOIDC}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a test
	entered := 0
	for range 60 {
		// Wrong passwords are limited, which isn't what this tests.
		forgetFailures(t, r)
		name := names[random.IntN(len(names))]
		switch random.IntN(4) {
		case 0:
			r.Auth.DeleteAccount(t.Context(), name) //nolint:errcheck // there may be none
		case 1:
			r.Auth.CreateAccount(t.Context(), auth.NewAccount{Name: name, PasswordHash: hash}) //nolint:errcheck // there may be one
		}
		before, _ := r.Auth.Account(t.Context(), name)
		accounts := make([]int64, len(sources))
		var all sync.WaitGroup
		for i, source := range sources {
			if random.IntN(3) > 0 {
				all.Go(func() { accounts[i] = enter(t.Context(), name, source) })
			}
		}
		all.Wait()
		after, _ := r.Auth.Account(t.Context(), name)
		if before.ID != 0 && (after.ID != before.ID || after.Source != before.Source) {
			t.Fatalf("%s of %s became %s of %s", before.Name, before.Source, after.Name, after.Source)
		}
		for i, account := range accounts {
			if account == 0 {
				continue
			}
			if entered++; account != after.ID || sources[i] != after.Source {
				t.Fatalf("%s of %s got into the account of %s", name, sources[i], after.Source)
			}
		}
	}
	if entered < 10 {
		t.Errorf("only %d log-ins succeeded", entered)
	}
}

// TestReservedNamespaces: whoever names accounts at a source doesn't decide by that who administers
// a reserved namespace.
func TestReservedNamespaces(t *testing.T) {
	t.Parallel()
	file, _ := openFile(t, "hal", "hal's", "library", "library's")
	var mu sync.Mutex
	var asked []string
	r := closed(t, nil, func(o *servertest.Options) {
		o.Access.Htpasswd, o.Access.ReservedNamespaces = file, []string{"Library"}
		o.Access.NewNamespace = func(_ context.Context, name string) (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, name)
			return false, nil
		}
	})
	for _, name := range []string{"library", "hal"} {
		r.Do(t, "GET", "/v2/", "", servertest.Basic(name, name+"'s")...).Want(t, 200, "")
	}
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(asked, []string{"hal"}) {
		t.Errorf("namespaces were made for %v", asked)
	}
}
