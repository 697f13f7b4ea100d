package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"html"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/testtool"
)

// shownCommands is a registry with http or https, and a shell in which commands run as its pages
// show them.
type shownCommands struct {
	t    testing.TB
	r    *registry
	http *http.Client
	addr string // where the registry listens; "": on loopback
	url  string
	bin  string // directory with the clients
	env  []string
}

// newShown starts a registry, which is open unless the environment says otherwise. Over https it
// has a certificate that the clients trust.
func newShown(t testing.TB, scheme string, env ...string) *shownCommands {
	t.Helper()
	return newShownAt(t, scheme, "", env...)
}

// newShownAt is like newShown, for an address at which the registry listens.
func newShownAt(t testing.TB, scheme, addr string, env ...string) *shownCommands {
	t.Helper()
	home := newDir(t)
	s := &shownCommands{t: t, bin: newDir(t), http: &http.Client{}, addr: addr}
	s.env = []string{"HOME=" + home, "XDG_CONFIG_HOME=" + home, "XDG_CACHE_HOME=" + home, "XDG_DATA_HOME=" + home, "XDG_RUNTIME_DIR=" + home,
		"DOCKER_CONFIG=" + home, "TMPDIR=" + home, "PATH=" + s.bin + ":" + os.Getenv("PATH")}
	auth := filepath.Join(home, "config.json")
	if err := os.WriteFile(auth, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.env = append(s.env, "REGISTRY_AUTH_FILE="+auth)
	if len(env) == 0 {
		env = []string{"PURSER_AUTH_ENABLED=false"}
	}
	if scheme == "https" {
		cert, key := newCertificate(t)
		env = append(env, "PURSER_HTTP_TLS_CERT="+cert, "PURSER_HTTP_TLS_KEY="+key)
		s.env = append(s.env, "SSL_CERT_FILE="+cert)
		text, err := os.ReadFile(cert)
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(text)
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
		t.Cleanup(transport.CloseIdleConnections)
		s.http.Transport = transport
	}
	args := []string{}
	if s.addr != "" {
		args = []string{"--addr", s.addr}
	}
	s.r = startRegistry(t, options{env: env, args: args})
	s.url = scheme + "://" + s.r.host
	return s
}

// tool makes the commands find a tool of tools/versions.
func (s *shownCommands) tool(name string) {
	s.t.Helper()
	path, err := testtool.Path(name)
	if err != nil {
		lacking(s.t, "no %s: %v", name, err)
	}
	s.program(name, path)
}

// program makes the commands find a program, with arguments that keep it in directories of the test.
func (s *shownCommands) program(name, path string, args ...string) {
	s.t.Helper()
	script := "#!/bin/sh\nexec '" + path + "'"
	for _, a := range args {
		script += " '" + a + "'"
	}
	if err := os.WriteFile(filepath.Join(s.bin, name), []byte(script+" \"$@\"\n"), 0o755); err != nil {
		s.t.Fatal(err)
	}
}

// podman makes the commands find podman.
func (s *shownCommands) podman() {
	c := podman(s.t)
	s.program("podman", c.path, c.args...)
}

// run runs a command in a new directory, and returns the names of the files that it has made there.
// The command must succeed.
func (s *shownCommands) run(command string) (made []string) {
	s.t.Helper()
	dir := newDir(s.t)
	if err := s.try(dir, command); err != nil {
		s.t.Error(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		s.t.Error(err)
	}
	for _, f := range files {
		made = append(made, f.Name())
	}
	return made
}

// try runs a command in a directory.
func (s *shownCommands) try(dir, command string) error {
	cmd := exec.CommandContext(s.t.Context(), "sh", "-euc", command)
	cmd.Dir, cmd.Env = dir, childEnv(s.env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", command, err, out)
	}
	return nil
}

var shownClient = regexp.MustCompile(`<tr><th scope="row">([^<]+)</th><td class="break"><code>([^<]*)</code>`)

// on returns the commands that a page shows, by the names of their clients.
func (s *shownCommands) on(path string) map[string]string {
	s.t.Helper()
	found := map[string]string{}
	for _, m := range shownClient.FindAllStringSubmatch(s.get(path), -1) {
		found[m[1]] = html.UnescapeString(m[2])
	}
	return found
}

// get returns a page.
func (s *shownCommands) get(path string) string {
	s.t.Helper()
	res, err := s.http.Get(s.url + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		s.t.Fatalf("%s: %d %v", path, res.StatusCode, err)
	}
	return string(text)
}

// runAll runs the commands of a page, which must be those of certain clients, except for the
// clients that the caller skips.
func (s *shownCommands) runAll(path string, clients []string, skip ...string) {
	s.t.Helper()
	found := s.on(path)
	for _, name := range clients {
		command, ok := found[name]
		if delete(found, name); !ok {
			s.t.Errorf("%s has no command of %s", path, name)
		} else if !slices.Contains(skip, name) {
			made := s.run(command)
			if len(made) == 0 && name != "docker" && name != "podman" { // these two keep images elsewhere
				s.t.Errorf("%s: it has pulled nothing", command)
			}
		}
	}
	if len(found) > 0 {
		s.t.Errorf("%s has more commands, which no test runs: %v", path, found)
	}
}

var imageClients = []string{"docker", "podman", "crane", "skopeo", "regctl"}

// TestShownCommands: the commands by which pages say that one pulls an image do that as they are
// copied, over http and over https.
func TestShownCommands(t *testing.T) {
	beginOwn(t)
	for _, scheme := range []string{"http", "https"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			s := newShown(t, scheme)
			s.tool("crane")
			s.tool("regctl")
			s.podman()
			img := newImage(t, 1, 4<<10)
			s.run("crane push " + writeImage(t, img, "v1") + " " + s.r.Ref("shown/app", "v1"))
			// cosign attaches a signature after the image; nobody pulls a signature.
			attached := strings.Replace(digestOf(t, img), ":", "-", 1)
			s.run("crane tag " + s.r.Ref("shown/app", "v1") + " " + attached + ".sig")
			if t.Failed() {
				return
			}
			for _, path := range []string{"", "/-/tags/v1", "/-/manifests/" + digestOf(t, img)} {
				skip := []string{"docker"} // TestShownCommandsOfDocker runs it
				s.runAll("/ui/repositories/shown/app"+path, imageClients, skip...)
			}
			if command := s.on("/ui/repositories/shown/app")["crane"]; !strings.Contains(command, "app:v1 ") {
				t.Errorf("the repository's page pulls %s", command)
			}
		})
	}
}
