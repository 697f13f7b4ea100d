package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// containerdConfig makes containerd write only below one directory. It disables the plugins
// that serve Kubernetes and those that use programs in /opt.
const containerdConfig = `version = 2
root = "%[1]s/root"
state = "%[1]s/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]
[grpc]
  address = "%[1]s/sock"
  uid = %[2]d
  gid = %[3]d
[ttrpc]
  address = "%[1]s/ttrpc"
  uid = %[2]d
  gid = %[3]d
`

// startContainerd starts a containerd and returns the path of its socket. At the end of the
// test containerd is stopped. It needs no root rights, since it neither mounts file systems
// nor runs containers.
func startContainerd(t testing.TB) string {
	t.Helper()
	dir := newDir(t)
	path := systemProgram(t, "containerd")
	config := writeFile(t, "config.toml", fmt.Sprintf(containerdConfig, dir, os.Getuid(), os.Getgid()))
	socket := filepath.Join(dir, "sock")
	startEngine(t, "containerd", exec.Command(path, "--config", config), socket)
	return socket
}

// startEngine starts a server program that listens on a socket, and stops it at the end of the
// test.
func startEngine(t testing.TB, name string, cmd *exec.Cmd, socket string) {
	t.Helper()
	cmd.Env = childEnv("HOME=" + newDir(t))
	p, err := startProcess(name, cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.signal(syscall.SIGTERM, stopWithin); p.running() {
			t.Errorf("stopping at the end of the test: %v", err)
			p.kill()
		}
	})
	err = p.waitFor(t.Context(), time.Minute, func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
}

// systemProgram returns the path of a server program that is installed on the system, also in
// a directory that only root has in PATH.
func systemProgram(t testing.TB, name string) string {
	t.Helper()
	for _, candidate := range []string{name, "/usr/sbin/" + name} {
		if path, err := exec.LookPath(candidate); err == nil {
			return path
		}
	}
	lacking(t, "%s isn't installed (tools/packages installs it)", name)
	return ""
}

// containerdPuller returns a client that pulls with containerd, as a node of Kubernetes does.
func containerdPuller(t testing.TB, r *registry) puller {
	ctr := systemClient(t, "ctr", "--address", startContainerd(t))
	return puller{
		asks:   true,
		pull:   func(repo, reference string) { ctr.Run("content", "fetch", "--plain-http", r.Ref(repo, reference)) },
		forget: func(repo, tag, _ string) { ctr.Run("images", "rm", "--sync", r.Ref(repo, tag)) },
	}
}

// docker is a Docker engine that pulls images but runs no containers.
type docker struct {
	t      testing.TB
	http   *http.Client
	ctr    *client // of the containerd where it keeps manifests
	socket string  // of its API
}

// startDocker starts a Docker engine with a configuration, which is stopped at the end of the test. The engine
// doesn't change the machine's network, and has a mount namespace of its own. Only root who
// may mount file systems can run it. Without this right the test is skipped even in CI: the
// tests with containerd, which any user can run, send the registry the same requests.
func startDocker(t testing.TB, config string) *docker {
	t.Helper()
	try := exec.Command("true")
	ownMounts(try)
	if err := try.Run(); os.Getuid() != 0 || err != nil {
		t.Skipf("only root who may mount can run dockerd: %v", err)
	}
	path := systemProgram(t, "dockerd")
	dir, containerd := newDir(t), startContainerd(t)
	socket := filepath.Join(dir, "sock")
	cmd := exec.Command(path, "--host", "unix://"+socket, "--containerd", containerd,
		"--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"), "--pidfile", filepath.Join(dir, "pid"),
		"--config-file", writeFile(t, "daemon.json", config), "--storage-driver", "vfs",
		"--bridge", "none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false", "--userland-proxy=false")
	ownMounts(cmd)
	startEngine(t, "dockerd", cmd, socket)
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &docker{t, &http.Client{Transport: transport, Timeout: 3 * time.Minute},
		systemClient(t, "ctr", "--address", containerd, "--namespace", "moby"), socket}
}

// dockerPuller pulls as "docker pull" does.
func dockerPuller(t testing.TB, r *registry) puller {
	d := startDocker(t, "{}")
	return puller{
		asks: true,
		pull: func(repo, reference string) {
			t.Helper()
			// The parameter tag of Docker's API may be a tag or a digest.
			d.call("POST", "/images/create?fromImage="+url.QueryEscape(r.host+"/"+repo)+"&tag="+url.QueryEscape(reference))
		},
		forget: func(repo, tag, digest string) {
			t.Helper()
			d.ctr.Run("content", "rm", digest) // the engine deletes the manifest only later
			d.call("DELETE", "/images/"+r.Ref(repo, tag))
		},
	}
}

// call sends a request to the engine and waits until the engine has executed it. If the
// request fails, the test fails.
func (d *docker) call(method, path string) {
	d.t.Helper()
	req, err := http.NewRequestWithContext(d.t.Context(), method, "http://docker"+path, nil)
	if err != nil {
		d.t.Fatal(err)
	}
	res, err := d.http.Do(req)
	if err != nil {
		d.t.Fatalf("docker: %s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = errors.New(res.Status)
	}
	if err == nil && method == "POST" {
		err = failedProgress(string(body))
	}
	if err != nil {
		d.t.Fatalf("docker: %s %s: %v\n%s", method, path, err, body)
	}
}

// failedProgress returns the error in a stream of progress messages, nil if there is none.
func failedProgress(text string) error {
	for d := json.NewDecoder(strings.NewReader(text)); ; {
		var message struct{ Error string }
		if err := d.Decode(&message); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if message.Error != "" {
			return errors.New(message.Error)
		}
	}
}
