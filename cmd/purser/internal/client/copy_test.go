package client

import (
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/operatorfile"
	"github.com/purser-registry/purser/internal/upstream"
)

// TestSourceCA expects that --source-ca trusts what the authorities in the file have signed, besides what the
// system trusts, and refuses a file without one.
func TestSourceCA(t *testing.T) {
	t.Parallel()
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	path := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, trusted := range map[string]bool{path: true, "": false} {
		cfg, err := sourceTLS(t.Context(), file)
		if err != nil {
			t.Fatal(err)
		}
		transport := &http.Transport{TLSClientConfig: cfg}
		res, err := (&http.Client{Transport: transport}).Get(s.URL)
		if (err == nil) != trusted {
			t.Errorf("--source-ca %q: %v", file, err)
		}
		if err == nil {
			res.Body.Close() //nolint:errcheck // empty
		}
		transport.CloseIdleConnections()
	}
	if err := os.WriteFile(path, []byte("none"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := sourceTLS(t.Context(), path); !errors.Is(err, operatorfile.ErrNoCertificate) {
		t.Errorf("a file without a certificate: %v", err)
	}
}

// TestCopyLimits expects that --limit sets what it names, and that the documentation has the limits
// with their defaults.
func TestCopyLimits(t *testing.T) {
	t.Parallel()
	var l upstream.Limits
	f := &limitsFlag{&l}
	for _, text := range []string{"pages=1", "names=2", "list=3KiB", "depth=4", "manifests=5", "blob=6GiB", "redirects=7", "silence=8s", "rate=9"} {
		if err := f.Set(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	want := upstream.Limits{Pages: 1, Names: 2, ListBytes: 3 << 10, Depth: 4, Manifests: 5, BlobBytes: 6 << 30, Redirects: 7, Silence: 8 * time.Second, Rate: 9}
	if l != want {
		t.Errorf("%+v, want %+v", l, want)
	}
	for _, text := range []string{"", "pages", "pages=", "pages=0", "pages=-1", "list=0", "list=much", "list=1,5GB", "list=1.5GB", "blob=9223372036854775807", "silence=0s", "silence=1000h", "rate=0", "nothing=1"} {
		if err := f.Set(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	docs, err := os.ReadFile("../../../../docs/migrating.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range copyLimits {
		if !strings.Contains(string(docs), "| `"+c.name+"` | "+c.of) || !strings.Contains(string(docs), "| "+c.text(upstream.Limits{}.WithDefaults())+" |") {
			t.Errorf("docs/migrating.md has no %s with its default", c.name)
		}
	}
}

// TestCopyNamesWhoGetsCredentials expects that the command tells of another host that gets the credentials
// of the source.
func TestCopyNamesWhoGetsCredentials(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"token":"t"}`) //nolint:errcheck // in a test
	}))
	defer elsewhere.Close()
	there := strings.Replace(strings.TrimPrefix(elsewhere.URL, "http://"), "127.0.0.1", "localhost", 1)
	source := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer t" {
			io.WriteString(w, `{"name":"app","tags":[]}`) //nolint:errcheck // in a test
			return
		}
		w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+there+`/token",service="x"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer source.Close()
	host := strings.TrimPrefix(source.URL, "http://")
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	config := fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, host, base64.StdEncoding.EncodeToString([]byte("me:secret")))
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	o := newOffice(t)
	o.login("root")
	code, stdout, stderr := o.purser("", "copy", host+"/app", "acme/app", "--source-plain-http", "--trust-host", there)
	if !strings.Contains(stderr, host+"/app lets clients log in at "+there+": it gets the credentials") {
		t.Errorf("exit code %d\n%s%s\nthe host %s isn't named", code, stdout, stderr, there)
	}
	if strings.Contains(stdout+stderr, "secret") {
		t.Errorf("the secret is printed:\n%s%s", stdout, stderr)
	}
}
