package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

func TestUploadResumesAfterDroppedConnection(t *testing.T) {
	for name, storage := range storages {
		t.Run(name, func(t *testing.T) {
			beginOwn(t)
			r := startRegistry(t, options{env: storage(t)})
			ctx, content := t.Context(), randomBytes(20<<20)
			u, err := r.API().startUpload(ctx, "resume/app")
			if err != nil {
				t.Fatal(err)
			}
			sendAndDrop(t, r, u.location, content, 11<<20)
			// The client asks for the number of bytes that the registry has, and continues
			// there. The registry may still be saving bytes of the broken request. Then it
			// refuses the client's next request, and the client asks again.
			eventually(t, time.Minute, func() error {
				u.offset = 0
				if err := r.API().status(ctx, u); err != nil {
					return err
				}
				if u.offset > 11<<20 {
					t.Fatalf("the registry has %d bytes of %d that were sent", u.offset, 11<<20)
				}
				return r.API().patch(ctx, u, content[u.offset:15<<20])
			})
			want := descriptor(v1.MediaTypeImageLayer, content)
			if err := r.API().finish(ctx, u, content[15<<20:], want.Digest); err != nil {
				t.Fatal(err)
			}
			if err := r.API().pullBlob(ctx, "resume/app", want); err != nil {
				t.Error(err)
			}
		})
	}
}

// sendAndDrop begins a PATCH whose body is `content`, and closes the connection after n bytes.
func sendAndDrop(t testing.TB, r *registry, location string, content []byte, n int) {
	t.Helper()
	u, err := url.Parse(location)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", r.host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = fmt.Fprintf(conn, "PATCH %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n",
		u.RequestURI(), r.host, len(content))
	if err == nil {
		_, err = conn.Write(content[:n])
	}
	if err != nil {
		t.Fatalf("sending half of a chunk: %v", err)
	}
}

func TestSIGTERMDrainsSlowRequest(t *testing.T) {
	beginOwn(t)
	r := startRegistry(t, options{})
	ctx, content := t.Context(), randomBytes(1<<20)
	api := r.API()
	u, err := api.startUpload(ctx, "drain/app")
	if err != nil {
		t.Fatal(err)
	}
	reader, writer := io.Pipe()
	answered := make(chan error, 1)
	go func() {
		_, err := api.do(ctx, request{method: "PUT", stream: reader, want: 201,
			path: u.finishing(descriptor("", content).Digest)})
		answered <- err
	}()
	if _, err := writer.Write(content[:512<<10]); err != nil {
		t.Fatal(err)
	}
	// The test waits until the server has begun to answer the request, since at SIGTERM the
	// server closes connections without a running request at once.
	eventually(t, time.Minute, func() error { return r.inFlight(ctx, 1) })
	if err := r.p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, func() error { return refusesConnections(ctx, r.host) })
	if !r.p.running() {
		t.Fatalf("purser ended with a request in flight\n%s", r.p.out.tail(20))
	}
	if _, err := writer.Write(content[512<<10:]); err != nil {
		t.Fatalf("sending the rest after SIGTERM: %v", err)
	}
	writer.Close()
	if err := <-answered; err != nil {
		t.Errorf("the request that was in flight: %v", err)
	}
	select {
	case <-r.p.exited:
		if r.p.err != nil {
			t.Errorf("after SIGTERM: %v, want exit status 0", r.p.err)
		}
	case <-time.After(stopWithin):
		t.Errorf("purser still runs %v after its last request", stopWithin)
	}
	r.Restart()
	if err := r.API().pullBlob(ctx, "drain/app", descriptor("", content)); err != nil {
		t.Error(err)
	}
}

// inFlight returns an error unless the registry is answering exactly n requests at this
// moment, according to its metrics.
func (r *registry) inFlight(ctx context.Context, n int) error {
	req, err := http.NewRequestWithContext(ctx, "GET", "http://"+r.debug+"/metrics", nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if want := fmt.Sprintf("\npurser_http_requests_in_flight %d\n", n); !strings.Contains(string(text), want) {
		return fmt.Errorf("not %d requests are in flight", n)
	}
	return nil
}

func refusesConnections(ctx context.Context, addr string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil
	}
	conn.Close()
	return errors.New("new connections are accepted after SIGTERM")
}
