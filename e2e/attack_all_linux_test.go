//go:build all

package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// An attacker sends 2,000 PUTs of manifests of 2 MB and stops each after a quarter. The server
// must not use more memory than the memory limit for bodies allows. Meanwhile metrics,
// readiness and pulls must work, and another client must be able to push.
func TestUnfinishedManifests(t *testing.T) {
	beginOwn(t)
	r := startRegistry(t, options{env: []string{"PURSER_HTTP_BODY_MEMORY=64MiB", "PURSER_LOG_ACCESS=false"}})
	repo := orasRepository(t, r, "attacked/app")
	image := pack(t, repo, testArtifact, "hello", nil)
	before := r.peak(t)

	const attackers = 2000
	head := "PUT /v2/attacked/app/manifests/x HTTP/1.1\r\nHost: " + r.host +
		"\r\nContent-Type: application/vnd.oci.image.manifest.v1+json\r\nContent-Length: 2000000\r\n\r\n"
	part := []byte(head + strings.Repeat("x", 500_000))
	var conns sync.WaitGroup
	stop, turns := make(chan struct{}), make(chan struct{}, 64)
	defer conns.Wait()
	defer close(stop)
	var sent sync.WaitGroup
	for range attackers {
		sent.Add(1)
		conns.Go(func() {
			turns <- struct{}{}
			c, err := net.Dial("tcp", r.host)
			if err == nil {
				defer c.Close()                                     //nolint:errcheck // it is an attacker's
				c.SetWriteDeadline(time.Now().Add(5 * time.Second)) //nolint:errcheck
				c.Write(part)                                       //nolint:errcheck // it may be refused
			}
			<-turns
			sent.Done()
			<-stop
		})
	}
	other := &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext,
	}}
	defer other.CloseIdleConnections()
	pulled, pushed := 0, 0
	all := make(chan struct{})
	go func() { sent.Wait(); close(all) }()
	for ended := false; !ended; {
		select {
		case <-all:
			ended = true // and once more
		default:
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		for _, url := range []string{"http://" + r.debug + "/readyz", "http://" + r.debug + "/metrics",
			r.URL() + "/v2/attacked/app/manifests/" + image.Digest.String()} {
			if status := getStatus(ctx, url); status != http.StatusOK {
				t.Errorf("%s answers %d during the attack", url, status)
			}
		}
		cancel()
		pulled++
		manifest := fmt.Sprintf(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[],"annotations":{"n":"%d"}}`, pushed)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, r.URL()+"/v2/other/app/manifests/v1", strings.NewReader(manifest))
		if err != nil {
			t.Fatal(err)
		}
		res, err := other.Do(req)
		if err != nil {
			t.Fatalf("another client's push: %v", err)
		}
		text, _ := io.ReadAll(res.Body)
		res.Body.Close() //nolint:errcheck
		if res.StatusCode != http.StatusCreated {
			t.Errorf("another client's push: %s %s", res.Status, text)
		}
		pushed++
	}
	peak := r.peak(t)
	t.Logf("the most memory: %d MiB before, %d MiB under attack; %d rounds of pulls and of another client's pushes", before>>20, peak>>20, pulled)
	most := int64(256 << 20)
	if raceEnabled {
		most *= 2 // the race detector needs memory for each access
	}
	if peak-before > most {
		t.Errorf("the process grew from %d MiB to %d MiB with a budget of 64 MiB", before>>20, peak>>20)
	}
}

// peak returns the most memory that the registry's process has used so far, in bytes.
func (r *registry) peak(t testing.TB) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}
