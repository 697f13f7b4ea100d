package command

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/internal/api"
)

func newLogins(t *testing.T) *Logins {
	t.Helper()
	l, err := (&Source{Environ: []string{"XDG_CONFIG_HOME=" + t.TempDir()}}).Logins()
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestLoginsPlace(t *testing.T) {
	t.Parallel()
	for environ, want := range map[string]string{
		"HOME=/home/ann":                           "/home/ann/.config/purser/credentials.json",
		"HOME=/home/ann XDG_CONFIG_HOME=/config":   "/config/purser/credentials.json",
		"HOME=/home/ann XDG_CONFIG_HOME=relative":  "/home/ann/.config/purser/credentials.json",
		"HOME=/home/ann XDG_CONFIG_HOME=":          "/home/ann/.config/purser/credentials.json",
		"XDG_CONFIG_HOME=/config":                  "/config/purser/credentials.json",
		"HOME=/home/ann HOME=/home/later UNUSED=1": "/home/later/.config/purser/credentials.json",
	} {
		l, err := (&Source{Environ: strings.Fields(environ)}).Logins()
		if err != nil || l.Path() != want {
			t.Errorf("%s: %v, %v, want %s", environ, l, err, want)
		}
	}
	if _, err := (&Source{}).Logins(); err == nil || !strings.Contains(err.Error(), "XDG_CONFIG_HOME") {
		t.Errorf("without a home: %v", err)
	}
}

// TestLoginsMode: only the owner can read the file and its directory, whatever the file's mode
// was before and whatever the process's umask. A file that others can read isn't used.
func TestLoginsMode(t *testing.T) {
	t.Parallel()
	l := newLogins(t)
	add := func() error {
		return l.Change(func(servers map[string]Login) { servers["https://a"] = Login{Name: "ann", Token: "secret"} })
	}
	if err := add(); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{l.Path(): 0o600, l.Path() + ".lock": 0o600, filepath.Dir(l.Path()): 0o700} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %04o, want %04o", path, got, want)
		}
	}
	for _, mode := range []os.FileMode{0o644, 0o640, 0o602} {
		if err := os.Chmod(l.Path(), mode); err != nil {
			t.Fatal(err)
		}
		for what, err := range map[string]error{"change": add(), "read": func() error { _, _, err := l.Of("https://a"); return err }()} {
			if err == nil || !strings.Contains(err.Error(), "chmod 600 "+l.Path()) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s with mode %04o: %v", what, mode, err)
			}
		}
	}
	if err := os.Chmod(l.Path(), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, ok, err := l.Of("https://a"); !ok || got.Token != "secret" || err != nil {
		t.Errorf("after chmod: %+v, %v, %v", got, ok, err)
	}
}

func TestBrokenLogins(t *testing.T) {
	t.Parallel()
	l := newLogins(t)
	if err := os.MkdirAll(filepath.Dir(l.Path()), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(l.Path(), []byte(`{"servers": "secret"`), 0o600); err != nil {
		t.Fatal(err)
	}
	err := l.Change(func(map[string]Login) { t.Error("a broken file was read") })
	if err == nil || !strings.Contains(err.Error(), l.Path()) || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
	if raw, err := os.ReadFile(l.Path()); err != nil || string(raw) != `{"servers": "secret"` {
		t.Errorf("the broken file was changed: %s, %v", raw, err)
	}
}

// TestConcurrentLogins: several processes log in and out at once, and readers see only whole
// files. No log-in is lost.
func TestConcurrentLogins(t *testing.T) {
	t.Parallel()
	const processes, each = 4, 25
	if dir := os.Getenv("TEST_LOGINS"); dir != "" { // this process is one of them
		l, err := (&Source{Environ: []string{"XDG_CONFIG_HOME=" + dir}}).Logins()
		if err != nil {
			t.Fatal(err)
		}
		writeLogins(t, l, os.Getenv("TEST_LOGINS_NAME"), each)
		return
	}
	l := newLogins(t)
	var wg sync.WaitGroup
	for i := range processes {
		name := fmt.Sprint(i)
		if i%2 == 0 {
			wg.Go(func() { writeLogins(t, l, name, each) })
			continue
		}
		wg.Go(func() {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestConcurrentLogins$")
			cmd.Env = append(os.Environ(), "TEST_LOGINS="+filepath.Dir(filepath.Dir(l.Path())), "TEST_LOGINS_NAME="+name)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("process %s: %v\n%s", name, err, out)
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for most := 0; ; {
		servers, err := l.Servers()
		if err != nil || len(servers) < most {
			t.Fatalf("%d log-ins, %d before: %v", len(servers), most, err)
		}
		most = len(servers)
		select {
		case <-done:
			servers, err := l.Servers()
			if err != nil || len(servers) != processes*each {
				t.Fatalf("%d log-ins, want %d: %v", len(servers), processes*each, err)
			}
			entries, err := os.ReadDir(filepath.Dir(l.Path()))
			if err != nil || len(entries) != 2 { // the file and its lock
				t.Fatalf("left over: %v, %v", entries, err)
			}
			return
		default:
		}
	}
}

func writeLogins(t *testing.T, l *Logins, name string, n int) {
	t.Helper()
	for i := range n {
		err := l.Change(func(servers map[string]Login) {
			servers[fmt.Sprintf("https://%s-%d", name, i)] = Login{Name: name, Token: strings.Repeat(name, 1000)}
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestClientToken: the environment's token has priority over its file's, and that over the
// log-in. A log-in to one registry isn't used for another one.
func TestClientToken(t *testing.T) {
	t.Parallel()
	var got []string
	registry := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header["Authorization"] }))
	t.Cleanup(registry.Close)
	dir := t.TempDir()
	base := []string{"XDG_CONFIG_HOME=" + dir, "PURSER_SERVER=" + registry.URL}
	src := &Source{Environ: base}
	l, err := src.Logins()
	if err != nil {
		t.Fatal(err)
	}
	err = l.Change(func(servers map[string]Login) {
		servers[registry.URL] = Login{Name: "ann", Token: "stored"}
		servers["http://127.0.0.1:1"] = Login{Name: "ann", Token: "of-another"}
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "token")
	if err := os.WriteFile(file, []byte("from-file\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, []byte("\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		environ   []string
		want, err string
	}{
		{nil, "Bearer stored", ""},
		{[]string{"PURSER_TOKEN_FILE=" + file}, "Bearer from-file", ""},
		{[]string{"PURSER_TOKEN_FILE=" + file, "PURSER_TOKEN=from-environment"}, "Bearer from-environment", ""},
		{[]string{"PURSER_TOKEN="}, "Bearer stored", ""},
		{[]string{"XDG_CONFIG_HOME=" + t.TempDir()}, "", ""},
		{[]string{"PURSER_TOKEN_FILE=" + empty}, "", empty + " is empty"},
		{[]string{"PURSER_TOKEN_FILE=" + dir + "/none"}, "", "no such file"},
		{[]string{"PURSER_TOKEN=two words"}, "", "PURSER_TOKEN: a token has only visible"},
	} {
		got = nil
		src := &Source{Environ: append(base[:2:2], tc.environ...)}
		c, err := src.Client(&cobra.Command{})
		if err == nil {
			err = c.Get(t.Context(), "/user", nil, nil)
		}
		if strings.Join(got, ",") != tc.want || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%v: sent %q, %v; want %q, %q", tc.environ, got, err, tc.want, tc.err)
		}
		if err != nil && strings.Contains(err.Error(), "words") {
			t.Errorf("the error has the token: %v", err)
		}
	}
	if _, err := (&Source{Environ: append(base[:2:2], "HOME="+dir, "PURSER_TOKEN=x", api.TokenFileVariable+"=y")}).Load(&cobra.Command{}); err != nil {
		t.Errorf("the variables are taken for settings: %v", err)
	}
}

// TestNextServer: without a flag, commands ask the registry that the environment names, else the one that the user is
// logged in to or has chosen of several. Of several without a choice, none is asked. A token of the environment
// isn't sent to a registry that happens to be among the log-ins.
func TestNextServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	src := func(more ...string) *Source {
		return &Source{Environ: append([]string{"XDG_CONFIG_HOME=" + dir}, more...)}
	}
	l, err := src().Logins()
	if err != nil {
		t.Fatal(err)
	}
	const one, two = "https://one.example", "https://two.example"
	in := func(names ...string) {
		t.Helper()
		err := l.Change(func(servers map[string]Login) {
			clear(servers)
			for _, name := range names {
				servers[name] = Login{Name: "ann", Token: "x"}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	next := func(want string, s *Source) {
		t.Helper()
		server, _, err := s.NextServer()
		c, clientErr := s.Server(&cobra.Command{}, "")
		if server != want || err != nil || clientErr != nil || api.ServerKey(c.Server()) != want {
			t.Errorf("%v: commands ask %q, %v, %v; want %s", s.Environ, server, err, clientErr, want)
		}
	}
	next(api.DefaultServer, src())
	in(one)
	next(one, src())
	next(two, src("PURSER_SERVER="+two))
	next(api.DefaultServer, src("PURSER_TOKEN=x"))
	next(api.DefaultServer, src("PURSER_TOKEN_FILE=x"))
	in(one, two)
	_, err = src().Server(&cobra.Command{}, "")
	if err == nil || !strings.Contains(err.Error(), "several registries, and none is the default") || !strings.Contains(err.Error(), one+"  ann") || !strings.Contains(err.Error(), two+"  ann") {
		t.Errorf("of two: %v", err)
	}
	if c, err := src().Server(&cobra.Command{}, two); err != nil || c.Server().String() != two {
		t.Errorf("an argument: %v", err)
	}
	next(one, src("PURSER_SERVER="+one))
	if err := l.SetDefault(two); err != nil {
		t.Fatal(err)
	}
	next(two, src())
	if err := l.Change(func(servers map[string]Login) { servers["https://three.example"] = Login{Name: "ann", Token: "x"} }); err != nil {
		t.Fatal(err)
	}
	next(two, src())
	in(one) // the default's log-in has ended
	next(one, src())
	in(one, two)
	if _, _, err := src().NextServer(); err == nil {
		t.Error("a log-in that comes back is the default again")
	}

	in(one)
	cmd := &cobra.Command{}
	if _, err := src().Server(cmd, ""); err != nil {
		t.Fatal(err)
	}
	if err := Confirm(cmd, false, "Delete it?"); err == nil || !strings.HasPrefix(err.Error(), "At "+one+": Delete it?") {
		t.Errorf("the question doesn't say where: %v", err)
	}
}
