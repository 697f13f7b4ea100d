package login_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/identity/identitytest"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// rebinds is a registry with a directory, whose administrator binds accounts to other entries.
type rebinds struct {
	t *testing.T
	s *identitytest.LDAP
	r *servertest.Registry
}

func newRebinds(t *testing.T, change ...func(*servertest.Options)) *rebinds {
	t.Helper()
	b := &rebinds{t: t, s: identitytest.StartLDAP(t)}
	b.r = closed(t, nil, append(change, func(o *servertest.Options) { o.Access.Directory = directory(t, b.s) })...)
	return b
}

// rebind asks the registry's administrator to bind an account, and wants an answer with a status.
func (b *rebinds) rebind(account, body string, status int) string {
	b.t.Helper()
	headers := servertest.As("root")
	if body != "" {
		headers = append(headers, "Content-Type", "application/json")
	}
	return string(b.r.Do(b.t, "POST", "/api/v1/superuser/users/"+account+"/rebind", body, headers...).WantStatus(b.t, status).Content)
}

func (b *rebinds) as(name, password string, status int) {
	b.t.Helper()
	b.r.Do(b.t, "GET", "/auth/session", "", servertest.Basic(name, password)...).WantStatus(b.t, status)
}

func (b *rebinds) person(name string) auth.Account {
	b.t.Helper()
	a, err := b.r.Auth.Person(b.t.Context(), name)
	if err != nil {
		b.t.Fatal(err)
	}
	return a
}

// TestRebindToNewEntry: a person whose entry was deleted and made anew gets the account back when an
// administrator takes the old entry from it. What the old entry has got by its password ends.
func TestRebindToNewEntry(t *testing.T) {
	t.Parallel()
	b := newRebinds(t)
	old := b.s.AddUser(t, "ann", "old")
	b.as("ann", "old", 200)
	before := b.person("ann")
	cookie, refresh := logIn(t, b.r, "ann", "old"), refreshToken(t, b.r, "ann", "old")
	_, personal, err := b.r.Auth.CreateToken(t.Context(), &auth.Principal{Name: "ann"}, "laptop", auth.Limits{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.s.Delete(t, old)
	b.s.AddUser(t, "ann", "new")
	b.as("ann", "new", 409)
	forgetFailures(t, b.r)

	b.rebind("ann", "", 200)
	if accountOf(t, b.r, cookie...) != "" {
		t.Error("the session goes on")
	}
	useRefresh(t, b.r, refresh).WantStatus(t, 401)
	b.r.Do(t, "GET", "/v2/", "", servertest.Bearer(personal)...).WantStatus(t, 401)
	b.as("ann", "old", 401) // the password was right a moment ago
	forgetFailures(t, b.r)
	if a := b.person("ann"); !a.Awaits || a.EntryID != "" || a.Subject != "" {
		t.Errorf("it awaits no entry: %+v", a)
	}
	b.as("ann", "new", 200)
	if a := b.person("ann"); a.ID != before.ID || a.EntryID == before.EntryID || a.EntryID == "" || a.Awaits {
		t.Errorf("ann has %+v", a)
	}
	// It was for one entry: the next with this name doesn't get it.
	b.s.Delete(t, old)
	b.s.AddUser(t, "ann", "newest")
	b.as("ann", "newest", 409)
	forgetFailures(t, b.r)

	// The person keeps personal tokens if the administrator says so.
	_, personal, err = b.r.Auth.CreateToken(t.Context(), &auth.Principal{Name: "ann"}, "laptop", auth.Limits{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.rebind("ann", `{"directory_name":"ann","keep_personal_tokens":true}`, 200)
	b.r.Do(t, "GET", "/v2/", "", servertest.Bearer(personal)...).WantStatus(t, 200)
	b.as("ann", "newest", 200)
	if a := b.person("ann"); a.ID != before.ID {
		t.Errorf("ann has %+v", a)
	}
	var entries int
	err = b.r.DB.Pool.QueryRow(t.Context(), `
		SELECT count(*) FROM auditlog WHERE detail->>'account' = 'ann' AND detail ? 'former_entry' AND detail->>'former_entry' LIKE 'entryuuid=%'`).Scan(&entries)
	if err != nil || entries != 2 {
		t.Errorf("%d entries in the audit log: %v", entries, err)
	}
}

// TestRebindToOther: an account goes to the entry of another name, and is renamed at its log-in.
func TestRebindToOther(t *testing.T) {
	t.Parallel()
	b := newRebinds(t)
	b.s.AddUser(t, "ann", "ann's")
	b.as("ann", "ann's", 200)
	before := b.person("ann")
	b.s.AddUser(t, "bea", "bea's")
	b.rebind("ann", `{"directory_name":"bea"}`, 200)
	b.as("bea", "bea's", 200)
	if a := b.person("bea"); a.ID != before.ID {
		t.Errorf("bea has %+v, not ann's account", a)
	}
	b.as("ann", "ann's", 200) // an account of her own
	if a := b.person("ann"); a.ID == before.ID {
		t.Error("ann has the account still")
	}
}

// TestRebindRefusals: what isn't an account of the directory, and entries that others have, are
// refused, and nothing changes.
func TestRebindRefusals(t *testing.T) {
	t.Parallel()
	b := newRebinds(t)
	b.s.AddUser(t, "ann", "ann's")
	b.s.AddUser(t, "bea", "bea's")
	b.s.AddUser(t, "root", "of the directory")
	b.as("ann", "ann's", 200)
	b.as("bea", "bea's", 200)
	cookie := logIn(t, b.r, "ann", "ann's")
	before := b.person("ann")
	for _, refusal := range []struct {
		account, body string
		status        int
		want          string
	}{
		{"nobody", "", 404, "no account nobody"},
		{"nobody", `{"directory_name":"ann"}`, 404, "no account nobody"},
		{"root", "", 400, "source local"},
		{"root", `{"directory_name":"nobody"}`, 400, "source local"},
		{"ann", `{"directory_name":"bea"}`, 409, "account bea has this entry"},
		{"ann", `{"directory_name":"root"}`, 409, "account root has this entry, or the name"},
		{"ann", `{"directory_name":"carl"}`, 404, "nobody may log in as carl"},
		{"ann", `{"directory_name":"*"}`, 404, "nobody may log in as *"},
		{"ann", `{"directory_name":"ann\u0000"}`, 400, "NUL"},
		{"ann", `{"entry":"x"}`, 400, "unexpected property"},
	} {
		got := b.rebind(refusal.account, refusal.body, refusal.status)
		if !strings.Contains(got, refusal.want) {
			t.Errorf("%s %s: %s", refusal.account, refusal.body, got)
		}
	}
	b.r.Do(t, "POST", "/api/v1/superuser/users/ann/rebind", "", cookie...).WantStatus(t, 403)
	b.s.Stop()
	b.rebind("ann", `{"directory_name":"ann"}`, 503)
	if a := b.person("ann"); a.EntryID != before.EntryID || a.Subject != before.Subject || a.Awaits || accountOf(t, b.r, cookie...) != "ann" {
		t.Errorf("ann has %+v", a)
	}
}

// TestRebindTwice: of two administrators who give accounts the same entry at once, one succeeds.
func TestRebindTwice(t *testing.T) {
	t.Parallel()
	b := newRebinds(t)
	for _, name := range []string{"ann", "bea"} {
		b.s.AddUser(t, name, "secret")
		b.as(name, "secret", 200)
	}
	b.s.AddUser(t, "carl", "secret")
	var statuses [2]int
	var done sync.WaitGroup
	for i, name := range []string{"ann", "bea"} {
		done.Go(func() {
			statuses[i] = b.r.Do(t, "POST", "/api/v1/superuser/users/"+name+"/rebind", `{"directory_name":"carl"}`,
				append(servertest.As("root"), "Content-Type", "application/json")...).StatusCode
		})
	}
	done.Wait()
	if statuses != [2]int{http.StatusOK, http.StatusConflict} && statuses != [2]int{http.StatusConflict, http.StatusOK} {
		t.Errorf("the answers are %v", statuses)
	}
}
