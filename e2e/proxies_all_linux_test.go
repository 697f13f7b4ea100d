//go:build all

package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gcr "github.com/google/go-containerregistry/pkg/v1"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

// The tests of this file run the configurations of deploy/proxies in front of two replicas. The
// replicas have the same ports, as in the configurations, and each has a loopback address of its
// own, which only Linux has without further settings.

// replicaHosts are the addresses of the replicas in deploy/proxies, and in the tests.
var replicaHosts = [2][2]string{{"10.0.0.11", "127.0.0.11"}, {"10.0.0.12", "127.0.0.12"}}

// clientHost is the address from which the tests' requests reach a proxy.
const clientHost = "127.0.0.7"

// proxyKind is a program for which there is a configuration in deploy/proxies.
type proxyKind struct {
	program string
	file    string
	args    func(s *proxyScene, config string) []string
	// replace has the texts of the configuration that the test replaces, besides the addresses of
	// the replicas. Each text must be in the configuration.
	replace func(s *proxyScene) [][2]string
	// temp has the directories, relative to the proxy's own, in which the program would store
	// bodies if it did.
	temp []string
	// repeatsShortPut is set if the program repeats a PUT or DELETE that it has sent.
	repeatsShortPut bool
}

var nginx = proxyKind{
	program: "nginx", file: "nginx.conf",
	args: func(s *proxyScene, config string) []string {
		return []string{"-c", config, "-p", s.dir, "-e", "stderr", "-g", "daemon off; error_log stderr; pid " + s.dir + "/pid;"}
	},
	replace: func(s *proxyScene) [][2]string {
		// Without these directories nginx would write to those of the system's nginx.
		own := "access_log off;"
		for _, name := range []string{"client_body", "proxy", "fastcgi", "scgi", "uwsgi"} {
			own += fmt.Sprintf(" %s_temp_path %s/%s;", name, s.dir, name)
		}
		return [][2]string{
			{"http {\n", "http {\n" + own + "\n"},
			{"listen 80;", "listen " + freeAddr(s.t) + ";"},
			{"listen 443 ", "listen " + s.addr + " "},
			{"/etc/nginx/registry.pem", s.cert},
			{"/etc/nginx/registry.key", s.key},
		}
	},
	temp:            []string{"client_body", "proxy"},
	repeatsShortPut: true,
}

// proxyScene is a proxy with a configuration of deploy/proxies, in front of two replicas.
type proxyScene struct {
	t         testing.TB
	kind      proxyKind
	dir       string // of the proxy's files
	addr      string // HOST:PORT of the proxy
	port      string // of the replicas
	debugPort string
	cert, key string // files
	p         *process
	replicas  [2]*registry
}

// newProxyScene chooses addresses and makes a certificate.
func newProxyScene(t testing.TB, kind proxyKind) *proxyScene {
	t.Helper()
	s := &proxyScene{t: t, kind: kind, dir: newDir(t), addr: freeAddr(t)}
	for _, port := range []*string{&s.port, &s.debugPort} {
		_, *port, _ = net.SplitHostPort(freeAddr(t))
	}
	s.cert, s.key = newCertificate(t)
	return s
}

// startProxy starts the proxy with its file of deploy/proxies, and waits until it answers.
func (s *proxyScene) startProxy() {
	s.t.Helper()
	path := systemProgram(s.t, s.kind.program)
	config := filepath.Join(s.dir, s.kind.file)
	if err := os.WriteFile(config, []byte(s.config()), 0o644); err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(path, s.kind.args(s, config)...)
	cmd.Env = childEnv("HOME="+s.dir, "XDG_DATA_HOME="+s.dir, "XDG_CONFIG_HOME="+s.dir)
	p, err := startProcess(s.kind.program, cmd)
	if err != nil {
		s.t.Fatal(err)
	}
	s.p = p
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Logf("the last that %s printed:\n%s", s.kind.program, p.out.tail(40))
		}
		p.signal(os.Interrupt, 10*time.Second) //nolint:errcheck // killed below
		p.kill()
	})
	err = p.waitFor(s.t.Context(), time.Minute, func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", s.addr)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// config returns the configuration with the test's addresses and files.
func (s *proxyScene) config() string {
	s.t.Helper()
	content, err := os.ReadFile(filepath.Join("../deploy/proxies", s.kind.file))
	if err != nil {
		s.t.Fatal(err)
	}
	text := string(content)
	replace := s.kind.replace(s)
	for _, host := range replicaHosts {
		replace = append(replace, [2]string{host[0] + ":5000", host[1] + ":" + s.port})
	}
	for _, r := range replace {
		if !strings.Contains(text, r[0]) {
			s.t.Fatalf("deploy/proxies/%s doesn't contain %q any more", s.kind.file, r[0])
		}
		text = strings.ReplaceAll(text, r[0], r[1])
	}
	return text
}

// replicaEnv returns the settings of the replicas that have to do with the proxy.
func (s *proxyScene) replicaEnv() []string {
	return []string{"PURSER_AUTH_ENABLED=false", "PURSER_HTTP_TRUSTED_PROXIES=127.0.0.1", "PURSER_HTTP_EXTERNAL_URL=https://" + s.addr}
}

// newReplica returns a replica at one of the addresses, which isn't started yet.
func (s *proxyScene) newReplica(i int, env []string) *registry {
	s.t.Helper()
	r := &registry{t: s.t, opt: options{dataDir: newDir(s.t), env: append(s.replicaEnv(), env...), args: []string{
		"--addr", net.JoinHostPort(replicaHosts[i][1], s.port), "--debug-addr", net.JoinHostPort(replicaHosts[i][1], s.debugPort)}}}
	s.t.Cleanup(r.cleanup)
	return r
}

// startProxied starts two replicas, which share an empty database and a directory, and the proxy.
func startProxied(t testing.TB, kind proxyKind) *proxyScene {
	t.Helper()
	systemProgram(t, kind.program) // before the replicas, which take longer
	s := newProxyScene(t, kind)
	env := append(storages["filesystem"](t), "PURSER_DATABASE_MAIN="+dbtest.EmptyDSN(t))
	var wg sync.WaitGroup
	errs := make([]error, 2)
	for i := range s.replicas {
		s.replicas[i] = s.newReplica(i, env)
		wg.Go(func() { errs[i] = s.replicas[i].tryStart() })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	s.startProxy()
	return s
}

// API returns a client of the proxy. Its requests come from clientHost.
func (s *proxyScene) API() *api {
	s.t.Helper()
	roots := x509.NewCertPool()
	content, err := os.ReadFile(s.cert)
	if err != nil || !roots.AppendCertsFromPEM(content) {
		s.t.Fatalf("the certificate: %v", err)
	}
	a := newAPI(s.t, "https://"+s.addr)
	transport := a.client.Transport.(*http.Transport)
	transport.TLSClientConfig = &tls.Config{RootCAs: roots}
	transport.DialContext = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(clientHost)}}).DialContext
	return a
}

// Ref returns the reference that clients of the proxy use.
func (s *proxyScene) Ref(repo, tag string) string { return s.addr + "/" + repo + ":" + tag }

// crane returns a crane that trusts the proxy's certificate.
func (s *proxyScene) crane() *client {
	s.t.Helper()
	c := toolClient(s.t, "crane")
	c.env = append(c.env, "SSL_CERT_FILE="+s.cert)
	return c
}

// stored returns an error if the proxy's processes have a file open in which they store bodies.
func (s *proxyScene) stored() error {
	for _, pid := range descendants(s.p.cmd.Process.Pid) {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		if err != nil {
			return err
		}
		for _, file := range files {
			// nginx deletes such a file when it has opened it.
			name, _ := os.Readlink(file)
			for _, temp := range s.kind.temp {
				if strings.HasPrefix(name, filepath.Join(s.dir, temp)+"/") {
					return fmt.Errorf("%s stores a body in %s", s.kind.program, name)
				}
			}
		}
	}
	return nil
}

// descendants returns a process and the processes that it and its children have started.
func descendants(pid int) []int {
	list := []int{pid}
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range files {
		text, _ := os.ReadFile(file)
		for _, field := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(field); err == nil {
				list = append(list, descendants(child)...)
			}
		}
	}
	return list
}

func TestNginx(t *testing.T) {
	beginOwn(t)
	testProxy(t, nginx)
}

// testProxy: clients push and pull through the proxy, which stores no bodies, spreads requests over
// the replicas, tells Purser the clients' addresses, and goes on when a replica is killed.
func testProxy(t *testing.T, kind proxyKind) {
	s := startProxied(t, kind)
	a := s.API()
	img := newImage(t, 2, 1<<20)
	s.clientsWork(img)
	s.otherPagesPass(a)
	s.uploadsOverBothReplicas(a)
	s.streamsBodies(a)
	s.clientsAreKnown(a)
	s.goesOnWithoutReplica(a, digestOf(t, img))
}

// clientsWork pushes and pulls with crane.
func (s *proxyScene) clientsWork(img gcr.Image) {
	s.t.Helper()
	crane := s.crane()
	crane.Run("push", writeImage(s.t, img, "v1"), s.Ref("proxied/app", "v1"))
	if got, want := crane.Run("digest", s.Ref("proxied/app", "v1")), digestOf(s.t, img); got != want {
		s.t.Errorf("crane digest: %s, want %s", got, want)
	}
	crane.Run("copy", s.Ref("proxied/app", "v1"), s.Ref("proxied/copy", "v1"))
	crane.Run("validate", "--remote", s.Ref("proxied/copy", "v1"))
}

// otherPagesPass: the web UI, the management API and Docker's header pass the proxy.
func (s *proxyScene) otherPagesPass(a *api) {
	s.t.Helper()
	for _, path := range []string{"/ui/", "/api/v1/system"} {
		if _, err := a.do(s.t.Context(), request{method: "GET", path: path, want: http.StatusOK}); err != nil {
			s.t.Error(err)
		}
	}
	res, err := a.do(s.t.Context(), request{method: "GET", path: "/v2/", want: http.StatusOK})
	if err != nil {
		s.t.Fatal(err)
	}
	if got := res.header.Get("Docker-Distribution-Api-Version"); got != "registry/2.0" {
		s.t.Errorf("Docker-Distribution-Api-Version is %q through the proxy", got)
	}
}

// logged returns how many lines of a replica's log contain all of the words.
func logged(r *registry, words ...string) (n int) {
	for line := range strings.Lines(r.p.out.String()) {
		if tells(line, words...) == nil {
			n++
		}
	}
	return n
}

// uploadsOverBothReplicas: the chunks of one upload go to both replicas.
func (s *proxyScene) uploadsOverBothReplicas(a *api) {
	s.t.Helper()
	ctx, content := s.t.Context(), []byte{}
	u, err := a.startUpload(ctx, "proxied/chunks")
	if err != nil {
		s.t.Fatal(err)
	}
	patches := func(r *registry) int {
		return logged(r, `"http.request.method":"PATCH"`, "proxied/chunks", `"http.response.status_code":202`)
	}
	for patches(s.replicas[0]) == 0 || patches(s.replicas[1]) == 0 {
		if len(content) > 10<<20 {
			s.t.Fatalf("%d chunks went to one replica, %d to the other", patches(s.replicas[0]), patches(s.replicas[1]))
		}
		chunk := randomBytes(300 << 10)
		if err := a.patch(ctx, u, chunk); err != nil {
			s.t.Fatal(err)
		}
		content = append(content, chunk...)
	}
	want := descriptor(v1.MediaTypeImageLayer, content)
	if err := a.finish(ctx, u, nil, want.Digest); err != nil {
		s.t.Fatal(err)
	}
	if err := a.pullBlob(ctx, "proxied/chunks", want); err != nil {
		s.t.Error(err)
	}
}

// streamsBodies: a large upload that pauses has reached a replica, and a large download that pauses
// isn't read ahead to the proxy's disk.
func (s *proxyScene) streamsBodies(a *api) {
	s.t.Helper()
	ctx, content := s.t.Context(), randomBytes(48<<20)
	want := descriptor(v1.MediaTypeImageLayer, content)
	u, err := a.startUpload(ctx, "proxied/large")
	if err != nil {
		s.t.Fatal(err)
	}
	reader, writer := io.Pipe()
	answered := make(chan error, 1)
	go func() {
		_, err := a.do(ctx, request{method: "PUT", path: u.finishing(want.Digest), stream: reader, want: http.StatusCreated})
		reader.CloseWithError(errors.Join(err, io.ErrClosedPipe)) // so that no write waits for a request that has ended
		answered <- err
	}()
	if _, err := writer.Write(content[:24<<20]); err != nil {
		s.t.Fatalf("sending the first half: %v", err)
	}
	eventually(s.t, 20*time.Second, func() error {
		if n := s.replicas[0].metric("purser_http_requests_in_flight") + s.replicas[1].metric("purser_http_requests_in_flight"); n != 1 {
			return fmt.Errorf("%d requests have reached the replicas while an upload pauses, want 1", n)
		}
		return nil
	})
	if err := s.stored(); err != nil {
		s.t.Errorf("an upload pauses: %v", err)
	}
	if _, err := writer.Write(content[24<<20:]); err != nil {
		s.t.Fatalf("sending the second half: %v", err)
	}
	writer.Close()
	if err := <-answered; err != nil {
		s.t.Fatal(err)
	}
	s.downloadPauses(a, "/v2/proxied/large/blobs/"+want.Digest.String(), content)
}

func (s *proxyScene) downloadPauses(a *api, path string, want []byte) {
	s.t.Helper()
	res, err := a.client.Get(a.base + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(res.Body, got[:1<<20]); err != nil {
		s.t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond) // meanwhile a proxy that reads ahead would do so
	if err := s.stored(); err != nil {
		s.t.Errorf("a download pauses: %v", err)
	}
	if _, err := io.ReadFull(res.Body, got[1<<20:]); err != nil || !bytes.Equal(got, want) {
		s.t.Errorf("downloading %d bytes: %v, equal: %t", len(want), err, bytes.Equal(got, want))
	}
}

// clientsAreKnown: Purser's log has the client's address, whatever address the client claims.
func (s *proxyScene) clientsAreKnown(a *api) {
	s.t.Helper()
	for name, value := range map[string]string{"X-Forwarded-For": "203.0.113.9", "Forwarded": "for=203.0.113.9"} {
		agent := "claims-" + name
		_, err := a.do(s.t.Context(), request{method: "GET", path: "/v2/proxied/app/tags/list", want: http.StatusOK,
			header: map[string]string{name: value, "User-Agent": agent}})
		if err != nil {
			s.t.Fatal(err)
		}
		eventually(s.t, 10*time.Second, func() error {
			for _, r := range s.replicas {
				if logged(r, agent, `"client.address":"`+clientHost, `"network.peer.address":"127.0.0.1"`) > 0 {
					return nil
				}
			}
			return fmt.Errorf("no replica has logged %s with the client %s and its proxy", agent, clientHost)
		})
	}
}

// goesOnWithoutReplica: while a replica is killed, no read fails, and afterwards no push does.
func (s *proxyScene) goesOnWithoutReplica(a *api, digest string) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	var wg sync.WaitGroup
	var reads atomic.Int64
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				for _, method := range []string{"GET", "HEAD"} {
					q := request{method: method, path: "/v2/proxied/app/manifests/" + digest, want: http.StatusOK, header: map[string]string{"Accept": manifestTypes}}
					if _, err := a.do(context.WithoutCancel(ctx), q); err != nil {
						s.t.Errorf("while a replica is killed: %v", err)
					}
					reads.Add(1)
				}
			}
		})
	}
	more := func(n int64) {
		until := reads.Load() + n
		eventually(s.t, time.Minute, func() error {
			if reads.Load() < until {
				return fmt.Errorf("%d reads", reads.Load())
			}
			return nil
		})
	}
	more(50)
	s.replicas[0].Kill9()
	more(100)
	cancel()
	wg.Wait()
	for i := range 4 {
		if _, err := a.pushImage(s.t.Context(), "proxied/survivor", fmt.Sprint("v", i), randomBytes(100<<10)); err != nil {
			s.t.Errorf("a push while one replica is away: %v", err)
		}
	}
}
