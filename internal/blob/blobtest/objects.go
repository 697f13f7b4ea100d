package blobtest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/blob"
)

// ranges opens parts of an object.
func ranges(t *testing.T, b Backend) {
	s := b.Open(t)
	data := Bytes(1, 100_000)
	key := NewUpload().Complete(t, s, data)
	for _, r := range [][2]int64{
		{0, 100_000}, {0, 1}, {0, 0}, {5, 0}, {99_999, 1}, {100_000, 0}, {500, 70_000}, {1, 99_999},
		{0, -1}, {1, -1}, {99_999, -1}, {100_000, -1},
	} {
		want := data[r[0]:]
		if r[1] >= 0 {
			want = want[:r[1]]
		}
		if got := Read(t, s, key, r[0], r[1]); !bytes.Equal(got, want) {
			t.Errorf("range %d: %d bytes, want %d", r, len(got), len(want))
		}
		o, err := s.Open(t.Context(), key, r[0], r[1])
		if err != nil {
			t.Fatal(err)
		}
		var copied bytes.Buffer
		if n, err := io.Copy(&copied, o); err != nil || n != int64(len(want)) || !bytes.Equal(copied.Bytes(), want) {
			t.Errorf("copying range %d: %d, %v", r, n, err)
		}
		o.Close()
	}
	for _, r := range [][2]int64{{0, 100_001}, {99_999, 2}, {100_000, 1}, {200_000, 7}} {
		o, err := s.Open(t.Context(), key, r[0], r[1])
		if err == nil {
			_, err = io.Copy(io.Discard, o)
			o.Close()
		}
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("range %d beyond the end: %v", r, err)
		}
	}
}

func notFound(t *testing.T, b Backend) {
	s := b.Open(t)
	for _, r := range [][2]int64{{0, -1}, {0, 10}, {5, -1}, {5, 5}, {0, 0}} {
		if _, err := s.Open(t.Context(), blob.NewBase()+"-0", r[0], r[1]); !errors.Is(err, blob.ErrNotFound) {
			t.Errorf("range %d: %v", r, err)
		}
	}
}

// deletes calls Delete once for existing and missing objects, more of them than one S3 request
// can name.
func deletes(t *testing.T, b Backend) {
	s := b.Open(t)
	kept := NewUpload().Complete(t, s, []byte("kept"))
	var keys, made []string // made are those of objects
	for i := range 1100 {
		keys = append(keys, blob.NewBase()+"-3")
		if i%300 == 0 {
			made = append(made, NewUpload().Complete(t, s, []byte{byte(i)}))
			keys = append(keys, made[len(made)-1])
		}
	}
	for range 2 {
		if err := s.Delete(t.Context(), keys); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range made {
		if len(b.Keys(t, key[:32])) != 0 {
			t.Fatalf("object %s is still there", key)
		}
	}
	Equal(t, s, kept, []byte("kept"))
	if err := s.Delete(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var failed *blob.DeleteError
	if err := s.Delete(ctx, []string{kept}); !errors.As(err, &failed) || failed.Key != kept {
		t.Fatalf("deleting with a context that ended: %v", err)
	}
}

func deleteUpload(t *testing.T, b Backend) {
	s := b.Open(t)
	if err := s.DeleteUpload(t.Context(), blob.NewBase(), ""); err != nil {
		t.Fatalf("deleting nothing: %v", err)
	}
	other := NewUpload()
	otherKey := other.Complete(t, s, Bytes(9, 1000))
	u := NewUpload()
	u.Append(t, s, Bytes(1, b.Part+2000))
	a := u.Begin(t, s)
	a.MustWrite(t, Bytes(2, b.Part+2000))
	for range 2 {
		if err := s.DeleteUpload(t.Context(), u.Base, ""); err != nil {
			t.Fatal(err)
		}
	}
	a.Close()
	// A request that Close has broken off may still be at work in the server, which the sweeper's
	// second deletion is for. So one look without objects is enough: such a request may come after it.
	for end := time.Now().Add(10 * time.Second); ; {
		left := b.Keys(t, u.Base)
		if len(left) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("objects of the deleted upload: %q", left)
		}
		if err := s.DeleteUpload(t.Context(), u.Base, ""); err != nil {
			t.Fatal(err)
		}
	}
	only(t, b, other.Base, otherKey)
	// DeleteUpload has deleted the acknowledged bytes too; the next request to the upload must
	// get ErrLost.
	a, err := u.Attempt(t.Context(), s)
	if err == nil {
		a.Write(Bytes(3, b.Part+2000))
		_, err = a.Finish(t.Context())
		a.Close()
	}
	if !errors.Is(err, blob.ErrLost) {
		t.Fatalf("continuing a deleted upload: %v", err)
	}
}

func badArguments(t *testing.T, b Backend) {
	s := b.Open(t)
	claim := func(context.Context) (int64, error) { return 0, nil }
	numbers := func(context.Context, int) (int64, error) { return 0, errors.New("no numbers") }
	for _, base := range []string{"", "..", "a/b", "ABCDEF0123456789ABCDEF0123456789", blob.NewBase() + "-1"} {
		if _, err := s.Resume(t.Context(), base, nil, 0, claim, numbers); err == nil {
			t.Errorf("Resume took base %q", base)
		}
		if err := s.DeleteUpload(t.Context(), base, ""); err == nil {
			t.Errorf("DeleteUpload took base %q", base)
		}
	}
	if _, err := s.Resume(t.Context(), blob.NewBase(), nil, 5, claim, numbers); err == nil {
		t.Error("Resume took acknowledged bytes without a state")
	}
	if _, err := s.Resume(t.Context(), blob.NewBase(), blob.State(`{"next":4}`), 0, claim, numbers); err == nil {
		t.Error("Resume took a counter that went backwards")
	}
	key := NewUpload().Complete(t, s, []byte("data"))
	for _, r := range [][2]int64{{-1, 1}, {0, -2}} {
		if _, err := s.Open(t.Context(), key, r[0], r[1]); err == nil {
			t.Errorf("Open took range %d", r)
		}
	}
}

func presign(t *testing.T, b Backend) {
	s := b.Open(t)
	data := Bytes(1, 5000)
	key := NewUpload().Complete(t, s, data)
	url, err := s.Presign(t.Context(), key, blob.PresignOptions{TTL: time.Minute, ContentType: "text/x-blob"})
	if err != nil {
		t.Fatal(err)
	}
	if url == "" {
		return // the store can't presign
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Range", "bytes=10-19")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Equal(got, data[10:20]) || resp.Header.Get("Content-Type") != "text/x-blob" {
		t.Fatalf("GET of the presigned URL: %s, %v, %q", resp.Status, err, got)
	}
}

func check(t *testing.T, b Backend) {
	if err := b.Open(t).Check(t.Context()); err != nil {
		t.Fatal(err)
	}
}
