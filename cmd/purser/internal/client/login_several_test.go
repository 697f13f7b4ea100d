package client

import (
	"maps"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestLoginToSeveral: a log-in says which registry commands ask from then on. Of several they ask the one that the
// user has chosen, and without a choice none.
func TestLoginToSeveral(t *testing.T) {
	t.Parallel()
	o, other := newOffice(t), newOffice(t)
	o.environ = o.environ[:1] // without PURSER_SERVER
	login := func(r *servertest.Registry, flags ...string) string {
		t.Helper()
		text := o.ok(servertest.PasswordOf("root")+"\n", append([]string{"login", r.URL, "--username", "root", "--password-stdin"}, flags...)...)
		_, text, _ = strings.Cut(text, " as root.\n")
		return text
	}
	if text := login(o.r); text != "Commands ask this registry unless --server or $PURSER_SERVER names another.\n" {
		t.Errorf("the first log-in: %q", text)
	}
	o.ok("", "namespace", "create", "first")
	if text := login(other.r); text != "You are logged in to several registries, so commands need --server or $PURSER_SERVER. \"purser login "+other.r.URL+" --default\" lets them ask this one.\n" {
		t.Errorf("the second log-in: %q", text)
	}
	o.fails(o.r.URL+"  root\n", 2, "", "namespace", "list")
	o.fails(other.r.URL+"  root\n", 2, "", "namespace", "create", "nowhere")
	o.fails("none is the default", 2, "", "logout")
	if text := o.ok("", "namespace", "list", "-q", "--server", o.r.URL); !strings.Contains(text, "first\n") {
		t.Errorf("the first has %s", text)
	}
	before := o.stored()
	if text := o.ok("", "login", other.r.URL, "--default"); text != "Commands ask this registry unless --server or $PURSER_SERVER names another.\n" {
		t.Errorf("the choice: %q", text)
	}
	if !maps.Equal(tokensOf(before), tokensOf(o.stored())) {
		t.Error("the choice has changed a log-in")
	}
	if text := o.ok("", "namespace", "list", "-q"); strings.Contains(text, "first\n") {
		t.Errorf("the chosen one has %s", text)
	}
	o.fails("At "+other.r.URL+": Delete ", 3, "", "namespace", "delete", "acme")
	if text := login(o.r); text != "Commands ask "+other.r.URL+" unless --server or $PURSER_SERVER names another: this one is --server "+o.r.URL+", and \"purser login "+o.r.URL+" --default\" lets them ask it.\n" {
		t.Errorf("the log-in to another than the default: %q", text)
	}
	if text := login(o.r, "--default"); !strings.HasPrefix(text, "Commands ask this registry") {
		t.Errorf("a log-in that is the default: %q", text)
	}
	o.environ = append(o.environ, "PURSER_SERVER="+other.r.URL)
	if text := login(o.r); text != "Commands ask "+other.r.URL+", as $PURSER_SERVER says: this one is --server "+o.r.URL+".\n" {
		t.Errorf("with PURSER_SERVER: %q", text)
	}
	o.environ = o.environ[:1]
	o.ok("", "logout")
	if text := o.ok("", "namespace", "list", "-q"); strings.Contains(text, "first\n") { // the only one that is left
		t.Errorf("after the log-out: %s", text)
	}
}
