package s3_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/blob/s3"
)

// hanging is a store with a time limit, on a server that answers by `answer`, which may wait for `over`.
func hanging(t *testing.T, limit time.Duration, answer func(w http.ResponseWriter, r *http.Request, over <-chan struct{})) (*s3.Store, *atomic.Int64) {
	t.Helper()
	over, requests := make(chan struct{}), new(atomic.Int64)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		answer(w, r, over)
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(over) })
	s, err := s3.New(s3.Options{Endpoint: server.URL, Bucket: "b-test", Region: "us-east-1", PathStyle: true, AccessKey: "key", SecretKey: "secret", PartSize: 128 << 20, Timeout: limit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() }) //nolint:errcheck // it only closes connections
	return s, requests
}

// wait waits until the server hangs no more, or the client has gone.
func wait(r *http.Request, over <-chan struct{}) {
	select {
	case <-over:
	case <-r.Context().Done():
	}
}

// A service that hangs is given up after the time limit, and the request isn't repeated, whatever it is.
func TestHangingService(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(ctx context.Context, s *s3.Store) error{
		"reading": func(ctx context.Context, s *s3.Store) error {
			_, err := s.Open(ctx, "ab-0", 0, -1)
			return err
		},
		"looking":  func(ctx context.Context, s *s3.Store) error { _, err := s.Stat(ctx, "ab-0"); return err },
		"deleting": func(ctx context.Context, s *s3.Store) error { return s.Delete(ctx, []string{"ab-0"}) },
		"listing": func(ctx context.Context, s *s3.Store) error {
			for _, err := range s.List(ctx, "") {
				return err
			}
			return nil
		},
		"checking": func(ctx context.Context, s *s3.Store) error { return s.Check(ctx) },
		"identity": func(ctx context.Context, s *s3.Store) error { _, err := s.Identity(ctx); return err },
		"storing": func(ctx context.Context, s *s3.Store) error {
			return s.Put(ctx, "ab-0", 1<<20, bytes.NewReader(make([]byte, 1<<20)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, requests := hanging(t, 2*time.Second, func(_ http.ResponseWriter, r *http.Request, over <-chan struct{}) { wait(r, over) })
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := call(ctx, s); !errors.Is(err, s3.ErrHangs) || !s3.Temporary(err) || s3.TroubleOf(err) != blob.TroubleAway {
				t.Errorf("the error is %v", err)
			}
			if n := requests.Load(); n != 1 {
				t.Errorf("%d requests came, want 1", n)
			}
		})
	}
}

// An answer that stops in the middle is given up, and one that only a slow reader delays isn't.
func TestHangingAnswer(t *testing.T) {
	t.Parallel()
	const content, limit = "half of the content", 2 * time.Second
	s, _ := hanging(t, limit, func(w http.ResponseWriter, r *http.Request, over <-chan struct{}) {
		w.Header().Set("Content-Length", "38")
		w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
		w.Header().Set("ETag", `"e"`)
		io.WriteString(w, content) //nolint:errcheck // the test looks at what came
		if strings.HasSuffix(r.URL.Path, "whole") {
			io.WriteString(w, content) //nolint:errcheck // the same
			return
		}
		w.(http.Flusher).Flush()
		wait(r, over)
	})
	body, err := s.Open(t.Context(), "half", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	got, err := io.ReadAll(body)
	if string(got) != content || !errors.Is(err, s3.ErrHangs) {
		t.Errorf("%q, %v", got, err)
	}
	whole, err := s.Open(t.Context(), "whole", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer whole.Close()
	first := make([]byte, 5)
	if _, err := io.ReadFull(whole, first); err != nil {
		t.Fatal(err)
	}
	<-time.After(limit * 3 / 2) // the reader is slow, and not the service
	if rest, err := io.ReadAll(whole); err != nil || string(first)+string(rest) != content+content {
		t.Errorf("%q, %v", rest, err)
	}
}

// A service that takes a request slowly, but takes it, isn't given up. One that takes no more is.
func TestHangingRequest(t *testing.T) {
	t.Parallel()
	const size = 64 << 20 // more than the kernel buffers
	for name, taken := range map[string]int{"all of it, slowly": size, "a part of it": size / 4} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := hanging(t, 2*time.Second, func(w http.ResponseWriter, r *http.Request, over <-chan struct{}) {
				buf := make([]byte, size/16)
				for n := 0; n < taken; n += len(buf) {
					if _, err := io.ReadFull(r.Body, buf); err != nil {
						return
					}
					<-time.After(200 * time.Millisecond) // together longer than the limit
				}
				if taken < size {
					wait(r, over)
				}
				w.Header().Set("ETag", `"e"`)
			})
			err := s.Put(t.Context(), "ab-0", size, io.LimitReader(zeros{}, size))
			if taken == size && err != nil || taken < size && !errors.Is(err, s3.ErrHangs) {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

// A source of bytes that is slower than the limit isn't the service's fault.
func TestSlowSource(t *testing.T) {
	t.Parallel()
	const limit = 2 * time.Second
	s, _ := hanging(t, limit, func(w http.ResponseWriter, r *http.Request, _ <-chan struct{}) {
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			w.Header().Set("ETag", `"e"`)
		}
	})
	r, w := io.Pipe()
	go func() {
		for range 2 {
			<-time.After(limit * 3 / 2)
			w.Write(make([]byte, 1<<20)) //nolint:errcheck // the reader tells
		}
		w.Close()
	}()
	if err := s.Put(t.Context(), "ab-0", 2<<20, r); err != nil {
		t.Error(err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
