package login_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/password"
	"github.com/purser-registry/purser/internal/auth/throttle"
	"github.com/purser-registry/purser/internal/auth/token"
	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// pair starts two replicas with access control on one database and store. The tokens of each
// have the options that `change` sets.
func pair(t *testing.T, change func(*token.Options)) (list [2]*servertest.Registry, keys [2]*token.Keys) {
	t.Helper()
	dsn, dir := dbtest.DSN(t), pgtest.TempDir(t)
	for i := range list {
		d, err := db.Open(t.Context(), db.Options{DSN: dsn})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(d.Close)
		o := token.Options{DB: d, Issuer: "purser", Service: "purser", Log: slog.New(slog.DiscardHandler)}
		if change != nil {
			change(&o)
		}
		if keys[i], err = token.NewKeys(o); err != nil {
			t.Fatal(err)
		}
		list[i] = servertest.NewReplica(t, dsn, dir, func(o *servertest.Options) {
			o.Access = &auth.Options{AnonymousPull: true, Tokens: keys[i]}
		})
		list[i].Listen(t)
	}
	person(t, list[0], "root", true)
	root := list[0].With(secret("root"))
	root.Put(t, "acme/app", "v1", root.Simple(t, "acme/app", 1, nil))
	person(t, list[0], "reader", false)
	list[0].Grant(t, "acme", "reader", auth.Reader)
	return list, keys
}

const (
	pullPath  = "/v2/acme/app/manifests/v1"
	pullScope = "repository:acme/app:pull"
)

// TestReplicasShareTokens: a replica accepts the tokens of the other.
func TestReplicasShareTokens(t *testing.T) {
	t.Parallel()
	r, _ := pair(t, nil)
	for i := range r {
		token := servertest.Bearer(r[i].Token(t, secret("reader"), pullScope))
		for j := range r {
			r[j].Do(t, "GET", pullPath, "", token...).WantStatus(t, 200)
			r[j].Do(t, "DELETE", pullPath, "", token...).WantStatus(t, 401)
		}
	}
}

// TestTokensAskSeldom: a replica asks the database once in a while, and not at each request, whether the
// namespace of a token is still the one in which it was granted: of a token that stands, of one whose
// namespace was made again since, and of a token of the new namespace where the replica knows the former.
func TestTokensAskSeldom(t *testing.T) {
	t.Parallel()
	r, _ := pair(t, nil)
	may := func(r *servertest.Registry, token string, want bool) {
		t.Helper()
		request := httptest.NewRequest("GET", pullPath, nil)
		request.Header.Set("Authorization", "Bearer "+token)
		p, err := r.Auth.Authenticate(request, auth.From{Tokens: true})
		if err != nil {
			t.Fatal(err)
		}
		before := r.DB.Pool.Stat().AcquireCount()
		for range 100 {
			if err := r.Auth.Authorize(t.Context(), p, auth.Pull, auth.OfRepository("acme/app")); (err == nil) != want {
				t.Fatalf("%v, want access: %v", err, want)
			}
		}
		if n := r.DB.Pool.Stat().AcquireCount() - before; n > 10 {
			t.Errorf("100 requests took %d queries; access: %v", n, want)
		}
	}
	old := r[0].Token(t, secret("reader"), pullScope)
	may(r[1], old, true)
	root := r[0].With(secret("root"))
	root.Manage(t, "DELETE", "/organization/acme?purge=true", "").WantStatus(t, 204)
	root.Manage(t, "POST", "/organization/", `{"name": "acme"}`).WantStatus(t, 201)
	r[0].Grant(t, "acme", "reader", auth.Reader)
	may(r[0], old, false)
	may(r[1], r[0].Token(t, secret("reader"), pullScope), true)
}

// TestTokenAfterTheEnd: a client has authenticated, and before it gets a new token an administrator ends
// all log-ins of the account, or somebody revokes the token. It gets none, since that would go on.
func TestTokenAfterTheEnd(t *testing.T) {
	t.Parallel()
	r, _ := pair(t, nil)
	person(t, r[0], "eve", false)
	for what, end := range map[string]func(auth.Credential) error{
		"all log-ins end":  func(auth.Credential) error { _, err := r[0].Auth.EndLogIns(t.Context(), "eve", true); return err },
		"it's revoked":     func(c auth.Credential) error { return r[0].Auth.RevokeToken(t.Context(), "eve", c.ID) },
		"nothing happened": func(auth.Credential) error { return nil },
	} {
		c, text, err := r[0].Auth.CreateToken(t.Context(), &auth.Principal{Name: "eve"}, "stolen", auth.Limits{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		p, err := r[1].Auth.Login(t.Context(), "eve", text, "192.0.2.1")
		if err == nil {
			err = end(c)
		}
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = r[1].Auth.CreateToken(t.Context(), p, "foothold", auth.Limits{}, nil)
		if (oci.CodeOf(err) == oci.Unauthorized) != (what != "nothing happened") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestNameOfADeletedAccount: an account is deleted, and another person gets its name, while a replica
// still knows what the first person has sent. The first person is never taken for the other one, and gets
// no token and no session of the other's account; the other person isn't refused.
func TestNameOfADeletedAccount(t *testing.T) {
	t.Parallel()
	r, _ := pair(t, nil)
	for i, knows := range []string{"the credential", "the credential and the account", "the password"} {
		name := fmt.Sprint("alice", i)
		old := person(t, r[0], name, false)
		_, text, err := r[0].Auth.CreateToken(t.Context(), &auth.Principal{ID: old.ID, Name: name}, "laptop", auth.Limits{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		known, as := text, name
		switch knows {
		case "the credential":
			as = "other" // the replica looks at the credential, and no further
		case "the password":
			known = "secret"
		}
		if _, err := r[1].Auth.Login(t.Context(), as, known, "192.0.2.1"); (err == nil) != (as == name) {
			t.Fatal(err)
		}
		if err := r[0].Auth.DeleteAccount(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		made := person(t, r[0], name, false)
		laptop, fresh, err := r[0].Auth.CreateToken(t.Context(), &auth.Principal{ID: made.ID, Name: name}, "laptop", auth.Limits{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		email := "new@example.org"
		if err := r[0].Auth.ChangeAccount(t.Context(), name, auth.AccountChange{Email: &email}); err != nil {
			t.Fatal(err)
		}
		p, err := r[1].Auth.Login(t.Context(), name, known, "192.0.2.1")
		if err == nil && p.ID != old.ID {
			t.Errorf("%s: the first person is taken for the account %d, want %d or a refusal", knows, p.ID, old.ID)
		}
		if err == nil {
			if _, _, err := r[1].Auth.CreateToken(t.Context(), p, "foothold", auth.Limits{}, nil); oci.CodeOf(err) == "" {
				t.Errorf("%s: a token of the other's account: %v", knows, err)
			}
			request := httptest.NewRequest("POST", "http://localhost/auth/login", nil)
			if err := r[1].Auth.OpenSession(httptest.NewRecorder(), request, p.Name, "password", p.Proof()); oci.CodeOf(err) != oci.Unauthorized {
				t.Errorf("%s: a session of the other's account: %v", knows, err)
			}
		}
		for _, path := range []string{"/api/v1/user", "/api/v1/user/apptoken", "/api/v1/user/apptoken/" + laptop.ID.String()} {
			if known == "secret" {
				break // it is the other person's password too
			}
			a := r[1].Do(t, "GET", path, "", servertest.Basic(name, known)...)
			if bytes.Contains(a.Content, []byte("new@example.org")) || bytes.Contains(a.Content, []byte(laptop.ID.String())) && a.StatusCode == 200 {
				t.Errorf("%s: GET %s shows the other's account: %s", knows, path, a.Content)
			}
		}
		if p, err := r[1].Auth.Login(t.Context(), name, fresh, "192.0.2.1"); err != nil || p.ID != made.ID {
			t.Errorf("%s: the other person is %v, %v", knows, p, err)
		}
	}
}

// TestRevokedRightsEnd: the end of a right ends the credentials at once on the replica that
// made the change, within 10 s on others, and tokens that were issued before when they expire.
func TestRevokedRightsEnd(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	r, _ := pair(t, func(o *token.Options) {
		o.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	names := []string{"revoked", "disabled", "deleted"}
	cookies, tokens, personal := map[string][]string{}, map[string][]string{}, map[string][]string{}
	for _, name := range names {
		a := person(t, r[0], name, false)
		r[0].Grant(t, "acme", name, auth.Reader)
		cookie, err := r[0].Auth.Sessions().Create(t.Context(), a.ID, "192.0.2.1", "test")
		if err != nil {
			t.Fatal(err)
		}
		_, text, err := r[0].Auth.CreateToken(t.Context(), &auth.Principal{Name: name}, "test", auth.Limits{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		cookies[name], personal[name] = []string{"Cookie", "purser_session=" + cookie}, servertest.Bearer(text)
		tokens[name] = servertest.Bearer(r[0].Token(t, secret(name), pullScope))
	}
	const managed = "/api/v1/repository/acme/app/tag"
	may := func(r *servertest.Registry, name string) (list []bool) {
		list = append(list, r.Do(t, "GET", pullPath, "", secret(name)...).StatusCode == 200)
		list = append(list, r.Do(t, "GET", pullPath, "", personal[name]...).StatusCode == 200)
		return append(list, r.Do(t, "GET", managed, "", cookies[name]...).StatusCode == 200)
	}
	const all, none = "[true true true]", "[false false false]"
	for _, name := range names {
		for i := range r {
			if got := fmt.Sprint(may(r[i], name)); got != all {
				t.Fatalf("%s at %d before the change: %s", name, i, got)
			}
		}
	}
	began := time.Now()
	if err := r[0].Auth.SetGrant(t.Context(), auth.OfNamespace("acme"), "revoked", "", auth.NoRole); err != nil {
		t.Fatal(err)
	}
	yes := true
	if err := r[0].Auth.ChangeAccount(t.Context(), "disabled", auth.AccountChange{Disabled: &yes}); err != nil {
		t.Fatal(err)
	}
	if err := r[0].Auth.DeleteAccount(t.Context(), "deleted"); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if got := fmt.Sprint(may(r[0], name)); got != none {
			t.Errorf("%s on the replica of the change: %s", name, got)
		}
		r[0].Do(t, "GET", pullPath, "", tokens[name]...).WantStatus(t, 200) // until it expires
		servertest.Eventually(t, name+" on the other replica", func() bool { return fmt.Sprint(may(r[1], name)) == none })
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %v until the other replica knew", took)
	}
	ahead.Store(int64(6*time.Minute + time.Second)) // the lifetime of a token, and the difference of clocks
	for _, name := range names {
		for i := range r {
			r[i].Do(t, "GET", pullPath, "", tokens[name]...).WantStatus(t, 401)
		}
	}
}

// TestRotationUnderLoad: while keys are replaced again and again, no valid token is refused,
// whichever replica has issued it.
func TestRotationUnderLoad(t *testing.T) {
	t.Parallel()
	r, keys := pair(t, func(o *token.Options) { o.Lead = 400 * time.Millisecond })
	ctx, cancel := context.WithCancel(t.Context())
	var running, load sync.WaitGroup
	for _, k := range keys {
		running.Go(func() { k.Run(ctx) }) //nolint:errcheck // it ends with the test
	}
	defer running.Wait()
	defer cancel()
	stop := make(chan struct{})
	var pulls atomic.Int64
	var seen sync.Map
	for i := range r {
		load.Go(func() {
			for done := false; !done; {
				select {
				case <-stop:
					done = true
				default:
				}
				raw := r[i].Token(t, secret("reader"), pullScope)
				seen.Store(raw[:80], true) // the key is in the header
				for j := range r {
					if a := r[j].Do(t, "GET", pullPath, "", servertest.Bearer(raw)...); a.StatusCode != 200 {
						t.Errorf("a token of replica %d at %d: %d %s", i, j, a.StatusCode, a.Content)
					}
					pulls.Add(1)
				}
			}
		})
	}
	signers := func() (n int) {
		seen.Range(func(any, any) bool { n++; return true })
		return n
	}
	for i := range 3 {
		before := signers()
		if err := keys[i%2].RotateNow(t.Context()); err != nil {
			t.Error(err)
		}
		servertest.Eventually(t, "another key signs", func() bool { return signers() > before })
	}
	close(stop)
	load.Wait()
	if pulls.Load() < 20 {
		t.Errorf("%d pulls", pulls.Load())
	}
}

// guessing starts a registry whose checks of passwords are counted.
func guessing(t *testing.T) (r *servertest.Registry, checked func() int) {
	t.Helper()
	hashes := prometheus.NewRegistry()
	r = whole(t, &auth.Options{Passwords: password.NewHasher(password.HasherOptions{Metrics: hashes, Workers: 2, Queue: 2000})},
		func(o *throttle.FailuresOptions) { o.AccountEvery, o.AddressEvery = time.Hour, time.Hour })
	for i := range 100 {
		person(t, r, "user"+strconv.Itoa(i), false)
	}
	return r, func() (n int) {
		t.Helper()
		families, err := hashes.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				n += int(m.GetHistogram().GetSampleCount()) //nolint:gosec // a small number
			}
		}
		return n
	}
}

// guess sends n concurrent requests with wrong passwords and returns how many were answered
// with each status.
func guess(t *testing.T, r *servertest.Registry, n int, of func(i int) (name, address string)) map[int]int {
	t.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	statuses := map[int]int{}
	for i := range n {
		wg.Go(func() {
			name, address := of(i)
			path := []string{"/v2/", "/token", "/api/v1/organization"}[i%3]
			q := operation{method: "GET"}.request(path, append(servertest.Basic(name, "guess"+strconv.Itoa(i)),
				"X-Forwarded-For", address, "X-Real-IP", address, "Forwarded", "for="+address)...)
			q.RemoteAddr = address + ":1234"
			if i%2 == 1 { // a header that isn't from a proxy names no client
				q.Header.Set("X-Forwarded-For", "198.51.100."+strconv.Itoa(i%250))
			}
			code := serve(t.Context(), r, q).Code
			mu.Lock()
			defer mu.Unlock()
			statuses[code]++
		})
	}
	wg.Wait()
	return statuses
}

// TestGuessesAreHeldToTheirRate: of a thousand guesses at once, only as many passwords are
// checked as the account and the address may try, whatever headers name as the address.
func TestGuessesAreHeldToTheirRate(t *testing.T) {
	t.Parallel()
	t.Run("one account from many addresses", func(t *testing.T) {
		t.Parallel()
		r, checked := guessing(t)
		got := guess(t, r, 1000, func(i int) (string, string) { return "user0", fmt.Sprintf("192.0.%d.%d", i/250, i%250) })
		if n := checked(); n != 10 || got[401] != 10 || got[429] != 990 {
			t.Errorf("%d passwords were checked, answers %v", n, got)
		}
	})
	t.Run("an account that has just logged in", func(t *testing.T) {
		t.Parallel()
		r, checked := guessing(t)
		right := func(address string) int {
			q := operation{method: "GET"}.request("/v2/", secret("user0")...)
			q.RemoteAddr = address + ":1234"
			return serve(t.Context(), r, q).Code
		}
		if code := right("192.0.2.1"); code != 200 {
			t.Fatalf("status %d", code)
		}
		for range 20 {
			got := guess(t, r, 10, func(i int) (string, string) { return "user0", "192.0.2.1" })
			if got[401]+got[429] != 10 {
				t.Errorf("answers %v", got)
			}
		}
		if n := checked(); n != 11 {
			t.Errorf("%d passwords were checked", n)
		}
		if code := right("192.0.2.1"); code != 429 {
			t.Errorf("the right password after too many wrong ones: status %d", code)
		}
		if code := right("192.0.2.2"); code != 200 {
			t.Errorf("elsewhere: status %d", code)
		}
	})
	t.Run("many accounts from one address", func(t *testing.T) {
		t.Parallel()
		r, checked := guessing(t)
		got := guess(t, r, 1000, func(i int) (string, string) { return "user" + strconv.Itoa(i%200), "192.0.2.1" })
		if n := checked(); n != 50 || got[401] != 50 || got[429] != 950 {
			t.Errorf("%d passwords were checked, answers %v", n, got)
		}
	})
}
