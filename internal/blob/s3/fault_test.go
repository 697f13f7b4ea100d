package s3_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/blob/blobtest"
	"github.com/purser-registry/purser/internal/blob/s3"
)

// transport is an HTTP transport that records the requests. A test can intercept them with the
// function `do`.
type transport struct {
	do func(*http.Request, func() (*http.Response, error)) (*http.Response, error)

	mu   sync.Mutex
	seen []string
}

func (tr *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	tr.mu.Lock()
	tr.seen = append(tr.seen, kind(r))
	tr.mu.Unlock()
	send := func() (*http.Response, error) { return http.DefaultTransport.RoundTrip(r) }
	if tr.do == nil {
		return send()
	}
	return tr.do(r, send)
}

// take returns the kinds of all S3 requests that were recorded since the last call of take,
// separated by spaces.
func (tr *transport) take() string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	seen := strings.Join(tr.seen, " ")
	tr.seen = nil
	return seen
}

// kind names the operation of a request.
func kind(r *http.Request) string {
	q := r.URL.Query()
	switch {
	case q.Has("uploads") && r.Method == http.MethodPost:
		return "create"
	case q.Has("uploads"):
		return "list-uploads"
	case q.Has("partNumber") && r.Header.Get("X-Amz-Copy-Source") != "":
		return "copy-part"
	case q.Has("partNumber"):
		return "part"
	case q.Has("uploadId") && r.Method == http.MethodPost:
		return "complete"
	case q.Has("uploadId"):
		return "abort"
	case q.Has("delete"):
		return "delete"
	case q.Has("list-type"):
		return "list"
	}
	return r.Method
}

const partSize = 5 << 20

// setup returns options for a store with a new bucket on the S3 server for tests.
func setup(t *testing.T) s3.Options {
	t.Helper()
	o := blobtest.S3Server(t)
	o.PartSize = partSize
	return o
}

func withTransport(o s3.Options, tr *transport) s3.Options {
	o.Transport = tr
	return o
}

// An older request to an upload sends CompleteMultipartUpload to S3. The test delays this
// until before, while or after a newer request to the upload saves. The late
// CompleteMultipartUpload must neither add bytes of the older request to the object nor lose
// bytes of the newer request.
func TestLateComplete(t *testing.T) {
	t.Parallel()
	o := setup(t)
	for _, when := range []string{"before the newer attempt", "before it saves", "after it saved", "after it finished"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			held, release := make(chan struct{}), make(chan struct{})
			slow := newStore(t, withTransport(o, &transport{
				do: func(r *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
					if kind(r) == "complete" {
						close(held)
						<-release
					}
					return send()
				},
			}))
			fast := newStore(t, o)
			u := blobtest.NewUpload()
			u.Append(t, fast, blobtest.Bytes(1, 2*partSize))

			late := u.Begin(t, slow)
			late.MustWrite(t, blobtest.Bytes(2, partSize+1))
			finished := make(chan error, 1)
			go func() { _, err := late.Writer.Finish(context.WithoutCancel(t.Context())); finished <- err }()
			<-held
			arrives := func(moment string) {
				if when == moment {
					close(release)
					<-finished // it may succeed or fail
				}
			}
			arrives("before the newer attempt")
			a := u.Begin(t, fast)
			a.MustWrite(t, blobtest.Bytes(3, partSize-7))
			arrives("before it saves")
			if err := a.Save(t.Context()); err != nil {
				t.Fatal(err)
			}
			arrives("after it saved")
			u.Append(t, fast, blobtest.Bytes(4, partSize+7))
			key := u.Complete(t, fast, blobtest.Bytes(5, 1000))
			arrives("after it finished")
			data, _ := u.Acked()
			blobtest.Equal(t, fast, key, data...)
			if err := fast.DeleteUpload(t.Context(), u.Base, key); err != nil {
				t.Fatal(err)
			}
			if keys := keysIn(t, o, u.Base); len(keys) != 1 {
				t.Fatalf("objects: %q", keys)
			}
		})
	}
}

// A newer request to an upload has completed the multipart upload that an older request began.
// When the older request writes, it must get ErrFenced and not ErrLost.
func TestFencedIsNotLost(t *testing.T) {
	t.Parallel()
	s := newStore(t, setup(t))
	u := blobtest.NewUpload()
	u.Append(t, s, blobtest.Bytes(1, 2*partSize))
	slow := u.Begin(t, s)
	slow.MustWrite(t, blobtest.Bytes(2, 2*partSize)) // this also leaves it an unused number
	u.Append(t, s, blobtest.Bytes(3, partSize))
	_, err := slow.Write(blobtest.Bytes(4, partSize))
	if err == nil {
		err = slow.Save(t.Context())
	}
	if !errors.Is(err, blob.ErrFenced) || errors.Is(err, blob.ErrLost) {
		t.Fatalf("a fenced attempt got: %v", err)
	}
	u.Complete(t, s, nil)
}

// The service completes the multipart upload, but its answer is lost. The store must find that
// the object exists, and must not fail.
func TestCompleteAnswerLost(t *testing.T) {
	t.Parallel()
	o := setup(t)
	var once sync.Once
	s := newStore(t, withTransport(o, &transport{
		do: func(r *http.Request, send func() (*http.Response, error)) (resp *http.Response, err error) {
			resp, err = send()
			if kind(r) == "complete" && err == nil {
				once.Do(func() {
					resp.Body.Close()
					resp, err = nil, errors.New("connection reset by peer")
				})
			}
			return resp, err
		},
	}))
	blobtest.NewUpload().Complete(t, s, blobtest.Bytes(1, partSize+1))
}

// The service refuses the first try of each request, or breaks the connection in the middle of
// a body. The store must repeat the requests and succeed.
func TestRetries(t *testing.T) {
	t.Parallel()
	o := setup(t)
	var mu sync.Mutex
	failed := map[string]bool{}
	s := newStore(t, withTransport(o, &transport{
		do: func(r *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
			mu.Lock()
			first := !failed[r.Method+r.URL.String()]
			failed[r.Method+r.URL.String()] = true
			mu.Unlock()
			if !first {
				return send()
			}
			if r.Body != nil {
				io.CopyN(io.Discard, r.Body, 100_000)
				r.Body.Close()
			}
			return &http.Response{
				Status: "503 Service Unavailable", StatusCode: http.StatusServiceUnavailable, Request: r,
				Header: http.Header{}, Body: io.NopCloser(strings.NewReader("<Error><Code>SlowDown</Code></Error>")),
			}, nil
		},
	}))
	u := blobtest.NewUpload()
	u.Append(t, s, blobtest.Bytes(1, 2*partSize+9))
	key := u.Complete(t, s, blobtest.Bytes(2, 11))
	if err := s.Delete(t.Context(), []string{key}); err != nil {
		t.Fatal(err)
	}
}

// TestRequests checks which S3 requests each kind of push and pull makes.
func TestRequests(t *testing.T) {
	t.Parallel()
	o := setup(t)
	tr := &transport{}
	s := newStore(t, withTransport(o, tr))
	step := func(what, want string) {
		t.Helper()
		if got := tr.take(); got != want {
			t.Errorf("%s: requests %q, want %q", what, got, want)
		}
	}
	small := blobtest.NewUpload()
	small.Append(t, s, blobtest.Bytes(1, 10_000))
	step("small blob, written", "PUT")
	a := small.Begin(t, s)
	key, err := a.Finish(t.Context())
	if err != nil || a.Leftovers() {
		t.Fatalf("finishing: %v, leftovers %v", err, a.Leftovers())
	}
	step("small blob, finished in a later request", "")
	for _, r := range [][2]int64{{0, -1}, {0, 10}, {50, 100}, {0, 0}} {
		blobtest.Read(t, s, key, r[0], r[1])
		tr.mu.Lock()
		n := len(tr.seen)
		tr.mu.Unlock()
		if got := tr.take(); n != 1 {
			t.Errorf("opening range %d: %q", r, got)
		}
	}
	large := blobtest.NewUpload()
	large.Append(t, s, blobtest.Bytes(1, 2*partSize+10))
	step("large blob, written", "create part part PUT")
	a = large.Begin(t, s)
	if _, err = a.Finish(t.Context()); err != nil || !a.Leftovers() {
		t.Fatalf("finishing: %v, leftovers %v", err, a.Leftovers())
	}
	step("large blob, finished in a later request", "GET part complete")
	a = blobtest.NewUpload().Begin(t, s)
	a.MustWrite(t, blobtest.Bytes(1, partSize+10))
	if _, err = a.Finish(t.Context()); err != nil || a.Leftovers() {
		t.Fatalf("finishing: %v, leftovers %v", err, a.Leftovers())
	}
	step("large blob in one request", "create part part complete")
}

// A request to an upload gets a number above S3's highest part number. The store must return
// ErrTooManyParts, whose text says what the client can do.
func TestTooManyParts(t *testing.T) {
	t.Parallel()
	s := newStore(t, setup(t))
	given := int64(0)
	w, err := s.Resume(t.Context(), blob.NewBase(), nil, 0,
		func(context.Context) (int64, error) { return 0, nil },
		func(_ context.Context, n int) (int64, error) { given += 10001; return given - 10001, nil })
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	_, err = w.Write(blobtest.Bytes(1, 8*partSize))
	if err == nil {
		_, err = w.Finish(t.Context())
	}
	if !errors.Is(err, blob.ErrTooManyParts) {
		t.Fatalf("writing: %v", err)
	}
}

// The service's answer to a deletion doesn't mention one of the objects. The store must return
// an error that names this object.
func TestDeleteNotConfirmed(t *testing.T) {
	t.Parallel()
	o := setup(t)
	s := newStore(t, withTransport(o, &transport{
		do: func(r *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
			if kind(r) != "delete" {
				return send()
			}
			body, _ := io.ReadAll(r.Body)
			answer := "<DeleteResult>"
			if bytes.Contains(body, []byte("-1<")) {
				answer += "<Deleted><Key>registry/a-1</Key></Deleted>"
			}
			answer += "<Error><Key>registry/a-2</Key><Code>AccessDenied</Code></Error></DeleteResult>"
			return &http.Response{
				Status: "200 OK", StatusCode: http.StatusOK, Request: r, Header: http.Header{},
				Body: io.NopCloser(strings.NewReader(answer)),
			}, nil
		},
	}))
	err := s.Delete(t.Context(), []string{"a-1", "a-2", "a-3"})
	if err == nil {
		t.Fatal("Delete reported success")
	}
	text := err.Error()
	if strings.Contains(text, "a-1") || !strings.Contains(text, "a-2: ") || !strings.Contains(text, "a-3: ") {
		t.Fatalf("Delete: %v", err)
	}
}

func TestCheckSaysWhatToDo(t *testing.T) {
	t.Parallel()
	o := setup(t)
	for _, test := range []struct {
		name, want string
		change     func(*s3.Options)
	}{
		{"no bucket", "create it", func(o *s3.Options) { o.Bucket = "not-there-" + o.Bucket[:8] }},
		{"wrong secret", "credentials are wrong", func(o *s3.Options) { o.SecretKey = "wrong" }},
		{"nobody listens", "can it be reached", func(o *s3.Options) { o.Endpoint = "http://127.0.0.1:1" }},
	} {
		o := o
		test.change(&o)
		if err := newStore(t, o).Check(t.Context()); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]s3.Options{
		"no bucket":         {Endpoint: "localhost"},
		"path in endpoint":  {Endpoint: "http://localhost/path", Bucket: "b"},
		"other scheme":      {Endpoint: "ftp://localhost", Bucket: "b"},
		"half a credential": {Endpoint: "localhost", Bucket: "b", AccessKey: "a"},
		"small parts":       {Endpoint: "localhost", Bucket: "b", PartSize: 1 << 20},
	} {
		if _, err := s3.New(o); err == nil {
			t.Errorf("%s: New took it", name)
		}
	}
	if _, err := s3.New(s3.Options{Bucket: "bucket", Region: "eu-central-1"}); err != nil {
		t.Errorf("a bucket and a region: %v", err)
	}
}
