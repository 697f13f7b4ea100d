package server_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// limited returns a function that a test passes to setup, and that calls `change` to set the
// limits in the registry's options. It also returns the Prometheus registry that gets the
// metrics of these limits.
func limited(t *testing.T, change func(*server.Limits)) (*prometheus.Registry, func(*servertest.Options)) {
	t.Helper()
	reg := prometheus.NewRegistry()
	m := limit.NewMetrics(reg)
	return reg, func(o *servertest.Options) {
		o.Server.Limits.Metrics = m
		change(&o.Server.Limits)
	}
}

// metric returns the sum of all values of a metric. If `label` isn't "", the sum has only the
// values whose first label has the value `label`.
func metric(t *testing.T, reg *prometheus.Registry, name, label string) (sum float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (label == "" || m.GetLabel()[0].GetValue() == label) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// unfinished sends the head and a part of the body of a request, and leaves the connection open
// until the test ends.
func (r *registry) unfinished(t *testing.T, head, body string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(r.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() }) //nolint:errcheck // it may be closed already
	if _, err := fmt.Fprintf(c, "%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\n%s", head, oci.MediaTypeImageManifest, body); err != nil {
		t.Fatal(err)
	}
	return c
}

func answerOn(t *testing.T, c net.Conn) *http.Response {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(time.Minute)) //nolint:errcheck // a socket has deadlines
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close() //nolint:errcheck
	return res
}

// TestBodiesHaveABudget: clients send manifests slowly. A manifest may use memory of the budget
// only for the bytes that have arrived. When the budget is used up, the registry must refuse
// the next manifest with 503 until a client disconnects. It must still accept small requests
// and pulls.
func TestBodiesHaveABudget(t *testing.T) {
	t.Parallel()
	reg, limits := limited(t, func(l *server.Limits) { l.Memory = limit.BudgetOptions{Total: 4 << 20, Share: 50} })
	r := setup(t, limits)
	payload := r.Simple(t, "a", 1, nil)
	r.Put(t, "a", "v1", payload)
	used := func() float64 { return metric(t, reg, "purser_body_memory_bytes", "") }
	eventually(t, "nothing held", func() bool { return used() == 0 })

	for range 20 { // none of their bytes has arrived
		r.unfinished(t, "PUT /v2/a/manifests/x", "Content-Length: 2000000\r\n\r\n")
	}
	eventually(t, "twenty first steps", func() bool { return used() == 20*2*8<<10 })
	part := strings.Repeat("x", 400_000)
	first := r.unfinished(t, "PUT /v2/a/manifests/x", "Content-Length: 500000\r\n\r\n"+part)
	eventually(t, "what has arrived", func() bool { return used() == 20*2*8<<10+2*500_000 })
	second := answerOn(t, r.unfinished(t, "PUT /v2/a/manifests/x", "Content-Length: 500000\r\n\r\n"+part))
	if second.StatusCode != 503 || second.Header.Get("Retry-After") == "" {
		t.Errorf("beyond the client's share: %s, %v", second.Status, second.Header)
	}
	if n := metric(t, reg, "purser_limit_refused_total", limit.ClientBodyMemory); n != 1 {
		t.Errorf("%v were counted as refused", n)
	}
	r.Do(t, "GET", "/v2/a/manifests/v1", "").Want(t, 200, "")
	r.Put(t, "a", "v2", payload)
	r.Push(t, "a", "small")
	first.Close() //nolint:errcheck
	eventually(t, "given back", func() bool { return used() == 20*2*8<<10 })
	r.Put(t, "a", "v3", r.Simple(t, "a", 3, object{"annotations": map[string]string{"l": strings.Repeat("x", 400_000)}}))
}

// TestUploadsHaveABudget: the memory budget is 100 KiB, and one client may use half of it. A
// client sends an upload of 60,000 bytes. An upload of this size is kept in memory until its
// body ends, so the registry must answer 503. The client must be able to continue behind the
// bytes that were saved. An upload of 3 MiB must succeed, since the registry writes its bytes
// to the store as they arrive.
func TestUploadsHaveABudget(t *testing.T) {
	t.Parallel()
	reg, limits := limited(t, func(l *server.Limits) { l.Memory = limit.BudgetOptions{Total: 100 << 10, Share: 50} })
	r := setup(t, limits)
	at := r.StartUpload(t, "a", "")
	content := pattern(1, 60_000)
	a := r.Do(t, "PATCH", at, content).Want(t, 503, oci.Unavailable, "Retry-After", "*")
	if !strings.Contains(string(a.Content), "memory") {
		t.Errorf("the answer is %s", a.Content)
	}
	rng := r.Do(t, "GET", at, "").Want(t, 204, "", "Range", "*").Header.Get("Range")
	var end int
	if _, err := fmt.Sscanf(rng, "0-%d", &end); err != nil || end < 1000 {
		t.Fatalf("the upload's range is %q", rng)
	}
	for end < len(content)-1 { // continue in pieces that fit
		piece := content[end+1 : min(end+1+20_000, len(content))]
		r.Do(t, "PATCH", at, piece).Want(t, 202, "")
		end += len(piece)
	}
	r.Do(t, "PUT", at+"?digest="+digest(content).String(), "").Want(t, 201, "")
	r.WantBlob(t, "a", digest(content), content)
	large := pattern(2, 3<<20)
	r.Push(t, "a", large)
	r.WantBlob(t, "a", digest(large), large)
	eventually(t, "nothing held", func() bool { return metric(t, reg, "purser_body_memory_bytes", "") == 0 })
}

// TestSlowBodies: a client sends a body more slowly than MinBodyRate allows. The registry must
// refuse the request with 408. It must accept a request whose client is fast enough.
func TestSlowBodies(t *testing.T) {
	t.Parallel()
	reg, limits := limited(t, func(l *server.Limits) { l.MinBodyRate, l.MinBodyRateWindow = 1000, time.Second })
	r := setup(t, limits)
	r.Put(t, "a", "v1", r.Simple(t, "a", 1, nil))
	c := r.unfinished(t, "PUT /v2/a/manifests/x", "Content-Length: 100000\r\n\r\n{")
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for tick := time.NewTicker(20 * time.Millisecond); ; {
			select {
			case <-stop:
				return
			case <-tick.C:
				c.Write([]byte(" ")) //nolint:errcheck // until it is closed
			}
		}
	}()
	if res := answerOn(t, c); res.StatusCode != 408 || !res.Close {
		t.Errorf("a dripped body: %s, closed %v", res.Status, res.Close)
	}
	if n := metric(t, reg, "purser_limit_refused_total", limit.BodyRate); n != 1 {
		t.Errorf("%v were counted", n)
	}
}

// TestClientThatDoesNotRead: a client asks for a blob and reads nothing of the answer. The
// registry must close the connection after AnswerIdleTimeout.
func TestClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	reg, limits := limited(t, func(l *server.Limits) { l.AnswerIdleTimeout = time.Second })
	r := setup(t, limits)
	content := pattern(3, 48<<20)
	d := r.Push(t, "a", content)
	r.unfinished(t, "GET /v2/a/blobs/"+d.String(), "\r\n")
	eventually(t, "cut off", func() bool { return metric(t, reg, "purser_limit_refused_total", limit.AnswerIdle) == 1 })
	// A client that reads slowly, but steadily, gets the whole blob.
	res, err := servertest.Client.Get(r.URL + "/v2/a/blobs/" + d.String())
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck
	n, buf := 0, make([]byte, 4<<20)
	for {
		m, err := io.ReadFull(res.Body, buf)
		if n += m; err != nil {
			break
		}
		time.Sleep(20 * time.Millisecond) // the client is slow
	}
	if n != len(content) {
		t.Errorf("%d of %d bytes came", n, len(content))
	}
}

// TestRequestLimit: a client has as many unfinished requests as ClientRequests allows. The
// registry must refuse the client's next request with 503 until one of the unfinished requests
// ends.
func TestRequestLimit(t *testing.T) {
	t.Parallel()
	reg, limits := limited(t, func(l *server.Limits) { l.ClientRequests = 2 })
	r := setup(t, limits)
	inFlight := func() float64 { return metric(t, r.Metrics.Registry, "purser_http_requests_in_flight", "") }
	eventually(t, "no requests", func() bool { return inFlight() == 0 })
	one := r.unfinished(t, "PUT /v2/a/manifests/x", "Content-Length: 10\r\n\r\n")
	r.unfinished(t, "PUT /v2/a/manifests/x", "Content-Length: 10\r\n\r\n")
	eventually(t, "two requests", func() bool { return inFlight() == 2 })
	r.Do(t, "GET", "/v2/a/tags/list", "").Want(t, 503, oci.Unavailable, "Retry-After", "*")
	one.Close() //nolint:errcheck
	eventually(t, "one has ended", func() bool { return inFlight() == 1 })
	r.Do(t, "GET", "/v2/", "").Want(t, 200, "")
	if n := metric(t, reg, "purser_limit_refused_total", limit.ClientRequests); n != 1 {
		t.Errorf("%v were counted", n)
	}
}

// TestUnreadBodies: a client sends a DELETE with a Content-Length, but never sends the body,
// which no handler reads. The registry must answer nevertheless, and then close the connection.
func TestUnreadBodies(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.unfinished(t, "DELETE /v2/a/manifests/x", "Content-Length: 100\r\n\r\n")
	if res := answerOn(t, c); res.StatusCode != 404 {
		t.Errorf("%s", res.Status)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	closed := make(chan error, 1)
	go func() {
		_, err := c.Read(make([]byte, 1))
		closed <- err
	}()
	select {
	case err := <-closed:
		if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && err == nil {
			t.Errorf("%v", err)
		}
	case <-ctx.Done():
		t.Error("the connection is still open")
	}
}
