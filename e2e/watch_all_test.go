//go:build all

package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestWatcherOfKubernetes: "purser report kubernetes --watch" on a real API server, with the rights of
// the shipped role. What a pod begins to run is held within seconds, in whichever namespace of the
// cluster, also if the pod started while the API server or the registry was away, and stays held for
// the rest of the lease when the pod has ended.
func TestWatcherOfKubernetes(t *testing.T) {
	r, _ := startClosed(t)
	crane := toolClient(t, "crane")
	push := func(tag string) string {
		crane.Run("auth", "login", r.host, "-u", "writer", "-p", accountPassword)
		image := newImage(t, 1, 1<<10)
		crane.Run("push", writeImage(t, image, tag), r.Ref("acme/web", tag))
		return digestOf(t, image)
	}
	secret := reportingRobot(t, r)
	c, admin := startCluster(t)
	c.apply(admin, "../deploy/kubernetes/report.yaml")
	for _, n := range []string{"shop", "pay"} {
		c.do(admin, "POST", "/api/v1/namespaces", object{"metadata": object{"name": n}}, http.StatusCreated)
	}
	between := newRelay(t, strings.TrimPrefix(c.server, "https://"))
	front := newRelay(t, r.host) // the registry has another address after its restart
	cmd := exec.CommandContext(t.Context(), binary(), "report", "kubernetes", "prod-eu", "--watch", "--interval", "1h", "--registry", "r.example", "--namespace", "acme", "--lease", "3h")
	cmd.Env = childEnv("PURSER_SERVER=http://"+front.address(), "PURSER_TOKEN="+secret, "KUBECONFIG="+kubeconfig(t, "https://"+between.address(), c.reportingAccount(admin)))
	w, err := startProcess("watcher", cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer w.kill()
	var all []string
	runs := func(namespace, name, tag, digest string) {
		t.Helper()
		pod := podOf("r.example/acme/web:" + tag)
		pod["metadata"] = object{"name": name}
		c.do(admin, "POST", "/api/v1/namespaces/"+namespace+"/pods", pod, http.StatusCreated)
		if digest == "" { // its node hasn't said yet which image it pulled
			return
		}
		c.do(admin, "PATCH", "/api/v1/namespaces/"+namespace+"/pods/"+name+"/status", object{"status": object{"phase": "Running", "containerStatuses": []object{{"name": "main",
			"image": "docker.io/library/web:" + tag, "imageID": "docker.io/library/web@" + digest, "ready": true, "restartCount": 0,
			"state": object{"running": object{"startedAt": time.Now().UTC().Format(time.RFC3339)}}}}}}, http.StatusOK)
	}
	holds := func(what, digest string) {
		t.Helper()
		began := time.Now()
		eventually(t, time.Minute, func() error {
			if reporters := string(r.administer(t, "GET", "/holds?namespace=acme", "", http.StatusOK)); !strings.Contains(reporters, "prod-eu") {
				return fmt.Errorf("%s: nothing was reported: %s; the watcher says %s", what, reporters, w.out.tail(20))
			}
			if held := heldBy(t, r, "prod-eu"); !slices.Contains(held, digest) {
				return fmt.Errorf("%s: %s isn't among %v; the watcher says %s", what, digest, held, w.out.tail(20))
			}
			return nil
		})
		t.Logf("%s: held after %v", what, time.Since(began).Round(100*time.Millisecond))
		all = append(all, digest)
	}
	first := push("v1")
	runs("shop", "one", "v1", "")
	holds("a pod whose node says nothing", first)
	second := push("v1") // the tag moves
	runs("pay", "two", "v1", first)
	holds("a pod of the moved tag", second)
	third := push("v3")
	runs("pay", "three", "v1", third)
	holds("a pod that runs something else than its tag names", third)

	between.cut(true)
	fourth := push("v4")
	runs("shop", "four", "v4", fourth)
	between.cut(false)
	holds("a pod that started while the API server was away", fourth)

	r.Stop()
	runs("shop", "five", "v5", "sha256:"+strings.Repeat("ab", 32))
	r.Restart()
	front.to(r.host)
	holds("a pod that started while the registry was away", "sha256:"+strings.Repeat("ab", 32))

	sixth := push("v6")
	r.Stop()
	between.cut(true) // both at once
	runs("pay", "six", "v6", sixth)
	r.Restart()
	front.to(r.host)
	between.cut(false)
	holds("a pod that started while both were away", sixth)

	c.do(admin, "DELETE", "/api/v1/namespaces/shop/pods/four", object{"gracePeriodSeconds": 0}, http.StatusOK)
	seventh := push("v7")
	runs("shop", "seven", "v7", seventh)
	holds("a pod after another has ended", seventh)
	for _, digest := range all {
		if !slices.Contains(heldBy(t, r, "prod-eu"), digest) {
			t.Errorf("%s isn't held any more", digest)
		}
	}
	if err := w.signal(syscall.SIGTERM, stopWithin); err != nil {
		t.Errorf("the watcher ends with %v: %s", err, w.out.tail(20))
	}
}

// relay is a TCP proxy whose connections a test cuts, and whose target it changes.
type relay struct {
	l      net.Listener
	mu     sync.Mutex
	target string
	closed bool // connections are cut
	conns  map[net.Conn]bool
}

func newRelay(t *testing.T, target string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &relay{l: l, target: target, conns: map[net.Conn]bool{}}
	t.Cleanup(func() { l.Close(); p.cut(true) }) //nolint:errcheck // it is open
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(conn)
		}
	}()
	return p
}

func (p *relay) address() string { return p.l.Addr().String() }

// cut ends the connections and refuses others, or lets them pass again.
func (p *relay) cut(off bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = off
	if off {
		for c := range p.conns {
			c.Close() //nolint:errcheck // it is cut
		}
	}
}

// to sets the target of connections.
func (p *relay) to(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

func (p *relay) serve(from net.Conn) {
	defer from.Close() //nolint:errcheck // it has ended
	p.mu.Lock()
	target, off := p.target, p.closed
	p.conns[from] = true
	p.mu.Unlock()
	if off {
		return
	}
	to, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	go func() {
		io.Copy(to, from) //nolint:errcheck // it ends when one of them is closed
		to.Close()        //nolint:errcheck // it has ended
	}()
	io.Copy(from, to) //nolint:errcheck // it ends when one of them is closed
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, from)
}
