package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/report"
	"github.com/purser-registry/purser/cmd/purser/internal/report/kube"
	"github.com/purser-registry/purser/internal/api"
)

// TestReportRenewsInTime: the lease is shorter than the interval, by the registry's answer alone. Reports
// come before the holds end.
func TestReportRenewsInTime(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		watch   bool
		reports int
	}{
		"watch": {true, 3}, // the second comes since the watch begins
		"often": {false, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			taken, sent := reportsFor(t, 3*time.Second)
			server, err := url.Parse(taken)
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			cmd := &cobra.Command{}
			cmd.SetContext(ctx)
			cmd.SetOut(io.Discard)
			cmd.SetErr(io.Discard)
			r := addReporting(cmd, "kubernetes")
			r.hosts, r.interval, r.shortest = []string{"r.example"}, time.Hour, 3*time.Second
			o := kube.Options{Kubeconfig: newTestCluster(t, "uid", testPod("a", "r.example/acme/app@sha256:1111111111111111111111111111111111111111111111111111111111111111")).config}
			ended := r.begin(cmd, server, o, c.watch)
			for n := range c.reports {
				select {
				case <-sent:
				case <-time.After(time.Minute):
					t.Fatalf("only %d reports came", n)
				}
			}
			stop()
			if err := <-ended; err != nil {
				t.Errorf("it ends with %v", err)
			}
		})
	}
}

// TestReportDue: the next report comes after the interval, and at most after a third of the lease, by the
// flag and by the answer.
func TestReportDue(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, c := range []struct {
		lease          string
		left           time.Duration // until the holds end; 0: unknown
		interval, want time.Duration
	}{
		{"", 0, time.Hour, time.Hour},
		{"", 24 * time.Hour, 24 * time.Hour, 8 * time.Hour},
		{"", 24 * time.Hour, time.Hour, time.Hour},
		{"5m", 0, 5 * time.Minute, 100 * time.Second},
		{"1h", 30 * 24 * time.Hour, time.Hour, 20 * time.Minute}, // the holds of an earlier, longer lease
		{"7d", time.Hour, 24 * time.Hour, 20 * time.Minute},
		{"", time.Minute, time.Hour, 20 * time.Second},
		{"", 59 * time.Second, time.Hour, 20 * time.Second}, // the clocks differ, here and below
		{"", time.Second, time.Hour, 20 * time.Second},
		{"", -time.Hour, time.Hour, 20 * time.Second},
		{"", time.Second, 5 * time.Second, 5 * time.Second},
	} {
		r := reporting{lease: c.lease}
		if c.left != 0 {
			r.ends = now.Add(c.left)
		}
		if got := r.due(c.interval, now); got != c.want {
			t.Errorf("lease %q, %s left, interval %s: %s, want %s", c.lease, c.left, c.interval, got, c.want)
		}
	}
}

// TestReportThatHangs: the kubeconfig's command for credentials doesn't end, and nothing ends it. The
// command that reports ends with an error that says so, also if it would report again.
func TestReportThatHangs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		watch    bool
		interval time.Duration
	}{"once": {false, 0}, "often": {false, time.Second}, "watch": {true, time.Second}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "config")
			// It ends with the kubeconfig, so that it isn't left when the test is over.
			config := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"k","user":"u"}}],
				"clusters":[{"name":"k","cluster":{"server":"https://127.0.0.1:1"}}],"users":[{"name":"u","user":{"exec":{"apiVersion":"client.authentication.k8s.io/v1",
				"interactiveMode":"Never","command":"sh","args":["-c","while [ -e \"$0\" ]; do sleep 0.1; done",%q]}}}]}`, path)
			if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
				t.Fatal(err)
			}
			taken, sent := reportsTo(t)
			server, err := url.Parse(taken)
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			cmd := &cobra.Command{}
			cmd.SetContext(t.Context())
			cmd.SetOut(&out)
			cmd.SetErr(&out)
			r := addReporting(cmd, "kubernetes")
			r.hosts, r.interval = []string{"r.example"}, c.interval
			r.whole, r.ending = 300*time.Millisecond, 300*time.Millisecond
			o := kube.Options{Kubeconfig: path}
			ended := r.begin(cmd, server, o, c.watch)
			select {
			case err := <-ended:
				const want = "the report was given up after 300ms: a command for credentials in the kubeconfig may hang"
				if !errors.Is(err, errStuck) || !strings.HasPrefix(err.Error(), want) || len(sent) > 0 {
					t.Errorf("it ends with %v, want %s; %d reports", err, want, len(sent))
				}
			case <-time.After(time.Minute):
				t.Error("it doesn't end")
			}
		})
	}
}

// begin lets a reporter report, once and again or as a watcher, and returns the error with which it ends.
func (r *reporting) begin(cmd *cobra.Command, server *url.URL, o kube.Options, watch bool) <-chan error {
	read := func(ctx context.Context) (report.Deployed, error) { return kube.Read(ctx, o) }
	ended := make(chan error, 1)
	go func() {
		if watch {
			ended <- r.watch(cmd, api.NewClient(server), "prod", o, read)
		} else {
			ended <- r.run(cmd, api.NewClient(server), "prod", read)
		}
	}()
	return ended
}
