//go:build all

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

// TestContainerImage: the image of tools/image goes to a Purser and comes back, and a Purser runs
// from it as its user, with nothing else in its root directory, which it can't write to.
func TestContainerImage(t *testing.T) {
	beginOwn(t)
	tool, crane := toolClient(t, "image"), toolClient(t, "crane")
	out := filepath.Join(newDir(t), "image")
	tool.env = append(tool.env, "SOURCE_DATE_EPOCH=1700000000")
	const small = "main_test.go" // what is in the image doesn't matter here
	first := tool.Run("-o", out, "-version", "v1.2.3", "-binary", small)
	if again := tool.Run("-o", out, "-version", "v1.2.3", "-binary", small); again != first {
		t.Errorf("the same program gives another image: %s, then %s", first, again)
	}
	printed := tool.Run("-o", out, "-version", "v1.2.3", "-binary", binary())

	r := startRegistry(t, options{})
	ref := r.Ref("tools/purser", "v1.2.3")
	crane.Run("push", out, ref)
	if digest := crane.Run("digest", ref); !strings.Contains(printed, digest) {
		t.Errorf("pushed %s, but the registry has %s", printed, digest)
	}
	// An older skopeo writes the index anew, without members that it doesn't know; the image stays.
	platform := "linux/" + runtime.GOARCH
	image := crane.Run("digest", "--platform", platform, ref)
	systemClient(t, "skopeo").Run("copy", "--all", "--dest-tls-verify=false", "oci:"+out+":v1.2.3", "docker://"+ref)
	if digest := crane.Run("digest", "--platform", platform, ref); digest != image {
		t.Errorf("skopeo has copied the image %s, not %s", digest, image)
	}
	var config v1.ConfigFile
	if err := json.Unmarshal([]byte(crane.Run("config", ref)), &config); err != nil {
		t.Fatal(err)
	}
	if c := config.Config; c.User != "65532:65532" || c.Labels["org.opencontainers.image.version"] != "v1.2.3" {
		t.Errorf("user %q, labels %v", c.User, c.Labels)
	}

	root := newDir(t)
	exported := filepath.Join(newDir(t), "image.tar")
	crane.Run("export", ref, exported)
	if text, err := exec.Command("tar", "-x", "--same-permissions", "-C", root, "-f", exported).CombinedOutput(); err != nil {
		t.Fatalf("unpacking: %v\n%s", err, text)
	}
	inner := startContainer(t, root, config.Config)
	eventually(t, readyWithin, func() error {
		if status := getStatus(t.Context(), "http://"+inner.debug+"/readyz"); status != http.StatusOK {
			return fmt.Errorf("/readyz: status %d", status)
		}
		return nil
	})
	if status := getStatus(t.Context(), inner.URL()+"/v2/"); status != http.StatusUnauthorized {
		t.Errorf("status %d without a log-in, want 401", status)
	}
	crane.Run("auth", "login", inner.host, "-u", "admin", "-p", accountPassword)
	crane.Run("push", writeImage(t, newImage(t, 1, 1<<10), "v1"), inner.Ref("library/app", "v1"))
	crane.Run("validate", "--remote", inner.Ref("library/app", "v1"))
}

// libraries returns the directories of the libraries that the program is linked to; a released
// program has none. The tests mount them, since the tested program may have the race detector,
// and a static one takes minutes to build.
func libraries(program string) []string {
	out, err := exec.Command("ldd", program).Output()
	if err != nil {
		return nil // it is static
	}
	var dirs []string
	for _, path := range regexp.MustCompile(`/\S+\.so\S*`).FindAllString(string(out), -1) {
		if dir := filepath.Dir(path); !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// startContainer runs the image's command with the directory `root` as its root, as a container
// engine does: read-only, apart from the volume, with /proc, as the image's user. It ends with
// the test.
func startContainer(t *testing.T, root string, c v1.Config) *registry {
	t.Helper()
	database, err := pgx.ParseConfig(dbtest.EmptyDSN(t))
	if err != nil {
		t.Fatal(err)
	}
	// The server's socket is in a directory that the image's user may not enter.
	network, server := pgconn.NetworkAddress(database.Host, database.Port)
	address := forward(t, func() (net.Conn, error) { return net.Dial(network, server) })
	script := []string{"set -e", `mount --bind "$1" "$1"`, `mount --rbind /proc "$1/proc"`}
	mkdir(t, filepath.Join(root, "proc"))
	dsn := fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", database.User, address, database.Database)
	unshare := []string{"--mount"}
	userspec := "--userspec=" + c.User
	if os.Getuid() != 0 {
		unshare, userspec = append(unshare, "--map-root-user"), "--userspec=0:0" // root there is this user
	}
	for _, dir := range libraries(binary()) {
		mkdir(t, filepath.Join(root, dir))
		script = append(script, fmt.Sprintf(`mount --bind "%s" "$1%[1]s"`, dir))
	}
	for volume := range c.Volumes {
		script = append(script, fmt.Sprintf(`mount --bind "$1%s" "$1%[1]s"`, volume))
	}
	script = append(script, `mount -o remount,bind,ro "$1"`, `cd "$1"`, `root=$1; shift`, `exec chroot `+userspec+` "$root" "$@"`)
	args := slices.Concat(unshare, []string{"/bin/sh", "-c", strings.Join(script, "\n"), "sh", root}, c.Entrypoint, c.Cmd)

	cmd := exec.Command("unshare", args...)
	cmd.Env = append(slices.Clone(c.Env), "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "PURSER_HTTP_ADDR=0.0.0.0:0", "PURSER_HTTP_DEBUG_ADDR=127.0.0.1:0",
		"PURSER_DATABASE_MAIN="+dsn, "PURSER_AUTH_INITIAL_PASSWORD="+accountPassword)
	r := &registry{t: t}
	if r.p, err = startProcess("the image's purser", cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.p.signal(syscall.SIGTERM, stopWithin); err != nil {
			t.Errorf("stopping the image's purser: %v\n%s", err, r.p.out.tail(40))
			r.p.kill()
		}
	})
	if err := r.p.waitFor(context.Background(), readyWithin, func(context.Context) error { return r.readAddresses() }); err != nil {
		t.Fatal(err)
	}
	return r
}

// forward returns an address of this system. Connections to it lead where `dial` connects to.
func forward(t *testing.T, dial func() (net.Conn, error)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer from.Close()
				to, err := dial()
				if err != nil {
					return
				}
				go func() {
					defer to.Close()
					io.Copy(to, from) //nolint:errcheck // the ends notice
				}()
				io.Copy(from, to) //nolint:errcheck // the ends notice
			}()
		}
	}()
	return l.Addr().String()
}

func mkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}
