package operate

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestRecover: an administrator who is locked out gets in with the printed password, also after
// the account was disabled, and in place of an account that was deleted.
func TestRecover(t *testing.T) {
	t.Parallel()
	r := servertest.Setup(t, func(o *servertest.Options) { o.Access = &auth.Options{} })
	r.AddAccount(t, "root", true)
	r.AddAccount(t, "alice", false)
	yes := true
	if err := r.Auth.ChangeAccount(t.Context(), "alice", auth.AccountChange{Disabled: &yes}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Auth.CreateAccount(t.Context(), auth.NewAccount{Name: "bob", Source: auth.SourceLDAP, Subject: "cn=bob"}); err != nil {
		t.Fatal(err)
	}
	recoverAs := func(args ...string) (int, string, string) {
		var out, errOut bytes.Buffer
		src := &command.Source{Environ: []string{"PURSER_DATABASE_MAIN=" + r.DSN, "HOME=" + t.TempDir()}}
		root := command.NewRoot(src, command.Group("user", "", RecoverCommand(src)))
		code := command.Execute(t.Context(), root, append([]string{"user", "recover"}, args...), &out, &errOut)
		return code, out.String(), errOut.String()
	}
	for _, name := range []string{"alice", "carol"} {
		code, stdout, stderr := recoverAs(name, "-o", "json")
		var got recovered
		if err := json.Unmarshal([]byte(stdout), &got); code != 0 || stderr != "" || err != nil || got.Name != name || got.Created != (name == "carol") {
			t.Fatalf("%s: exit code %d, %s%s", name, code, stdout, stderr)
		}
		// A server of another process would accept the password only when its cache has ended.
		other := servertest.NewReplica(t, r.DSN, pgtest.TempDir(t), func(o *servertest.Options) { o.Access = &auth.Options{} })
		if a := other.Do(t, http.MethodGet, "/api/v1/superuser/users", "", servertest.Basic(name, got.Password)...); a.StatusCode != 200 {
			t.Errorf("%s with the new password: %d %s", name, a.StatusCode, a.Content)
		}
	}
	for name, want := range map[string]string{"bob": "its source ldap", "Not A Name": "NAME: ", "acme+ci": "NAME: "} {
		if code, stdout, stderr := recoverAs(name); code == 0 || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, %s%s, want %q", name, code, stdout, stderr, want)
		}
	}
}
