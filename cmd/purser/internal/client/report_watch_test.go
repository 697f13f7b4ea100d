package client

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestReportWatch: a pod starts, and the watcher reports it at once although its interval is an hour.
// It ends without an error when it is told to.
func TestReportWatch(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.login("root")
	root := o.r.With(servertest.As("root"))
	one, two := image(t, root, "v1", "one"), image(t, root, "v2", "two")
	pod := func(name, digest string) string {
		return fmt.Sprintf(`{"metadata":{"namespace":"shop","name":%q,"uid":%[1]q},"spec":{"containers":[{"name":"c","image":"r.example/acme/app@%s"}]},"status":{"phase":"Running"}}`, name, digest)
	}
	var pods atomic.Value
	pods.Store(pod("a", one))
	started, watching := make(chan string), make(chan struct{}, 10)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Query().Get("watch") == "true":
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			watching <- struct{}{}
			select {
			case p := <-started:
				fmt.Fprintf(w, `{"type":"ADDED","object":%s}`, p)
				w.(http.Flusher).Flush()
				<-r.Context().Done()
			case <-r.Context().Done():
			}
		case r.URL.Path == "/api/v1":
			fmt.Fprint(w, `{"resources":[{"name":"pods"}]}`)
		case r.URL.Path == "/api/v1/pods":
			fmt.Fprintf(w, `{"metadata":{"resourceVersion":"1"},"items":[%s]}`, pods.Load())
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	path := filepath.Join(t.TempDir(), "config")
	config := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"k"}}],"clusters":[{"name":"k","cluster":{"server":%q}}]}`, s.URL)
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	src := &command.Source{Environ: o.environ}
	cmd := command.NewRoot(src, Commands(src)...)
	Complete(src, cmd)
	ctx, stop := context.WithCancel(t.Context())
	code, out := make(chan int, 1), new(bytes.Buffer)
	go func() {
		code <- command.Execute(ctx, cmd, []string{"report", "kubernetes", "prod", "--watch", "--interval", "1h", "--registry", "r.example", "--namespace", "acme", "--kubeconfig", path}, out, out)
	}()
	<-watching
	pods.Store(pod("a", one) + "," + pod("b", two))
	began := time.Now()
	started <- pod("b", two)
	for held := ""; !strings.Contains(held, two); {
		held = string(root.Manage(t, "GET", "/holds/prod/digests?namespace=acme", "").Content)
		if time.Since(began) > time.Minute {
			t.Fatalf("the pod isn't held: %s", held)
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Logf("held after %s", time.Since(began))
	stop()
	if c := <-code; c != 0 {
		t.Errorf("exit code %d: %s", c, out)
	}
}
