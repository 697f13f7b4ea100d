//go:build all

package e2e

import (
	"bytes"
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// fault is a way in which a request to the store fails.
type fault int

const (
	faultNone         fault = iota
	faultUnavailable        // 503, nothing done
	faultInternal           // 500, nothing done
	faultInternalDone       // 500, and done
	faultReset              // the connection is reset, and the request isn't carried out
	faultResetDone          // the connection is reset after the request was carried out
	faultCut                // carried out, and the answer ends in the middle
	faultHang               // nothing happens until the client gives up
	faultHangDone           // carried out after the client has given up
	faultLate               // carried out at once, answered after the client has given up
	faults
)

// longestHang is how long the proxy leaves a request without an answer if its client doesn't
// give up sooner.
const longestHang = 20 * time.Second

// faultyStore is a proxy in front of an S3 server that makes requests fail at random.
type faultyStore struct {
	server *httptest.Server
	target string // HOST:PORT
	bucket string // its directory, where objects are files
	client *http.Transport
	window troubles

	mu     sync.Mutex
	rng    *rand.Rand
	share  float64 // share of requests that fail
	wrong  int     // number of requests that are failing at this moment
	counts [faults + 1]int
}

func startFaultyStore(t testing.TB, target, bucket string, seed uint64) *faultyStore {
	p := &faultyStore{target: target, bucket: bucket, rng: rand.New(rand.NewPCG(seed, 1)),
		client: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}}
	p.server = httptest.NewServer(p)
	t.Cleanup(func() {
		p.server.CloseClientConnections()
		p.server.Close()
		p.client.CloseIdleConnections()
	})
	return p
}

// fail makes the given share of requests fail from now on; 0 means none.
func (p *faultyStore) fail(share float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.share = share
	if share > 0 {
		p.window.begin()
	}
	p.settle()
}

// settle records the end of the period of trouble, if no further request is to fail and the
// last failing request has ended.
func (p *faultyStore) settle() {
	if p.share == 0 && p.wrong == 0 {
		p.window.end()
	}
}

// quiet returns whether the proxy makes no requests fail, and no failing request is running.
func (p *faultyStore) quiet() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.share == 0 && p.wrong == 0
}

// answers returns, for each fault, how many requests have failed in this way so far. Index 0
// counts requests without a fault. The last number counts requests to delete many objects of
// which the proxy executed only a part.
func (p *faultyStore) answers() [faults + 1]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts
}

func (p *faultyStore) choose() fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := faultNone
	if p.rng.Float64() < p.share {
		f = 1 + fault(p.rng.IntN(int(faults)-1))
		if f >= faultHang && p.rng.IntN(2) == 0 { // these faults take long
			f = 1 + fault(p.rng.IntN(int(faultHang)-1))
		}
		p.wrong++
	}
	p.counts[f]++
	return f
}

func (p *faultyStore) over() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wrong--
	p.settle()
}

// ServeHTTP either makes a request fail, or forwards it to the S3 server. It forwards the
// request unchanged, even the header Host, since the request's signature covers it.
func (p *faultyStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	f := p.choose()
	if f == faultNone {
		p.answer(w, p.send(r.Context(), r, body), false)
		return
	}
	defer p.over()
	if r.URL.Query().Has("delete") && f%2 == 1 {
		p.deleteSome(w, body)
		return
	}
	p.goWrong(w, r, body, f)
}

func (p *faultyStore) goWrong(w http.ResponseWriter, r *http.Request, body []byte, f fault) {
	gaveUp, cancel := context.WithTimeout(r.Context(), longestHang)
	defer cancel()
	switch f {
	case faultUnavailable:
		refuse(w, http.StatusServiceUnavailable, "SlowDown")
	case faultInternal:
		refuse(w, http.StatusInternalServerError, "InternalError")
	case faultInternalDone:
		p.done(r, body)
		refuse(w, http.StatusInternalServerError, "InternalError")
	case faultReset:
		reset(w)
	case faultResetDone:
		p.done(r, body)
		reset(w)
	case faultCut:
		p.answer(w, p.send(r.Context(), r, body), true)
	case faultHang:
		<-gaveUp.Done()
		reset(w)
	case faultHangDone:
		<-gaveUp.Done()
		time.Sleep(time.Duration(len(body)%5000) * time.Millisecond)
		p.done(r, body)
		reset(w)
	case faultLate:
		p.done(r, body)
		<-gaveUp.Done()
		reset(w)
	}
}

// send sends the request to the S3 server and returns the answer, or nil if there is none.
func (p *faultyStore) send(ctx context.Context, r *http.Request, body []byte) *http.Response {
	out := r.Clone(ctx)
	out.URL.Scheme, out.URL.Host, out.Host, out.RequestURI = "http", p.target, r.Host, ""
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	if len(body) == 0 {
		out.Body = http.NoBody
	}
	res, err := p.client.RoundTrip(out)
	if err != nil {
		return nil
	}
	return res
}

// done lets the S3 server execute the request, even if the client has closed its connection.
func (p *faultyStore) done(r *http.Request, body []byte) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), longestHang)
	defer cancel()
	if res := p.send(ctx, r, body); res != nil {
		io.Copy(io.Discard, res.Body) //nolint:errcheck // the answer's content doesn't matter
		res.Body.Close()
	}
}

// answer forwards the S3 server's answer to the client. If `half` is true, it forwards only
// half of the body and then breaks the connection.
func (p *faultyStore) answer(w http.ResponseWriter, res *http.Response, half bool) {
	if res == nil {
		panic(http.ErrAbortHandler)
	}
	defer res.Body.Close()
	for name, values := range res.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(res.StatusCode)
	if half {
		io.CopyN(w, res.Body, res.ContentLength/2) //nolint:errcheck // it is to be short
		panic(http.ErrAbortHandler)
	}
	if _, err := io.Copy(w, res.Body); err != nil {
		panic(http.ErrAbortHandler)
	}
}

func refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code><Message>at random</Message></Error>", code)
}

// reset ends the connection without an answer.
func reset(w http.ResponseWriter) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		tcp.SetLinger(0) //nolint:errcheck // then the connection ends in another way
	}
	conn.Close()
}

// deleteSome answers a request to delete many objects. Of each three objects it deletes two,
// and reports success only for one of them and errors for the others.
func (p *faultyStore) deleteSome(w http.ResponseWriter, body []byte) {
	var asked struct {
		Object []struct{ Key string }
	}
	if err := xml.Unmarshal(body, &asked); err != nil {
		panic(http.ErrAbortHandler)
	}
	p.mu.Lock()
	p.counts[faults]++
	p.mu.Unlock()
	var text strings.Builder
	text.WriteString("<DeleteResult>")
	for i, o := range asked.Object {
		if i%3 != 0 && os.Remove(filepath.Join(p.bucket, filepath.FromSlash(o.Key))) == nil && i%3 == 1 {
			fmt.Fprintf(&text, "<Deleted><Key>%s</Key></Deleted>", o.Key)
			continue
		}
		fmt.Fprintf(&text, "<Error><Key>%s</Key><Code>InternalError</Code></Error>", o.Key)
	}
	text.WriteString("</DeleteResult>")
	w.Header().Set("Content-Type", "application/xml")
	io.WriteString(w, text.String()) //nolint:errcheck // the client is gone, and knows
}
