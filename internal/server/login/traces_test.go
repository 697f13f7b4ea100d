package login_test

import (
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/identity"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// entries returns the details of the audit entries of a kind, oldest first.
func entries(t *testing.T, r *servertest.Registry, kind string) (list []string) {
	t.Helper()
	err := r.DB.Pool.QueryRow(t.Context(), "SELECT COALESCE(array_agg(detail::text ORDER BY id), '{}') FROM auditlog WHERE kind = $1", kind).Scan(&list)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestFailedLogInsHideUnknownNames: people sometimes type their password where the name belongs.
// The audit log must have the name of a failed log-in only if it is that of an account.
func TestFailedLogInsHideUnknownNames(t *testing.T) {
	t.Parallel()
	r := closed(t, map[string]auth.Role{"ann": auth.Reader})
	r.Do(t, "GET", "/token", "", servertest.Basic("my-secret-password", "x")...).WantStatus(t, 401)
	r.Do(t, "GET", "/token", "", servertest.Basic("ann", "wrong")...).WantStatus(t, 401)
	list := strings.Join(entries(t, r, "login_failure"), " ")
	if strings.Contains(list, "my-secret-password") || !strings.Contains(list, `"ann"`) {
		t.Errorf("the audit log has %s", list)
	}
}

// TestProvisionKeepsAndRecords: a source without an e-mail address logs in a person whose address
// was set by hand, and a source's groups make a person an administrator of the registry and take
// that away. The address must stay, and the audit log must have each change of the right.
func TestProvisionKeepsAndRecords(t *testing.T) {
	t.Parallel()
	r := closed(t, nil, func(o *servertest.Options) { o.Access.SuperusersOf = []string{auth.SourceLDAP} })
	i := identity.Identity{Source: auth.SourceLDAP, Subject: "uid=ann", Name: "ann"}
	email := "ann@example.com"
	for n, superuser := range []bool{false, true, true, false} {
		i.Superuser = superuser
		a, err := r.Auth.Provision(t.Context(), i)
		if err != nil || a.Superuser != superuser || n > 0 && a.Email != email {
			t.Errorf("log-in %d: %+v, %v", n, a, err)
		}
		if err := r.Auth.ChangeAccount(t.Context(), "ann", auth.AccountChange{Email: &email}); err != nil {
			t.Fatal(err)
		}
	}
	var told []string
	for _, detail := range entries(t, r, "change_user") {
		if strings.Contains(detail, "superuser") {
			told = append(told, detail)
		}
	}
	if len(told) != 2 || !strings.Contains(told[0], "true") || !strings.Contains(told[1], "false") {
		t.Errorf("the audit log has %q", told)
	}
}

// TestExpiredTokensDoNotCount: an account has as many tokens as it may have, and all have
// expired. It must be able to make another one.
func TestExpiredTokensDoNotCount(t *testing.T) {
	t.Parallel()
	r := closed(t, map[string]auth.Role{"ann": auth.Reader})
	past := time.Now().Add(-time.Hour)
	for range 100 {
		if _, _, err := r.Auth.CreateToken(t.Context(), &auth.Principal{Name: "ann"}, "", auth.Limits{}, &past); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 101 {
		_, _, err := r.Auth.CreateToken(t.Context(), &auth.Principal{Name: "ann"}, "", auth.Limits{}, nil)
		if (err == nil) != (n < 100) {
			t.Fatalf("token %d: %v", n, err)
		}
	}
}
