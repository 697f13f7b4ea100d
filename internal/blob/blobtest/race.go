package blobtest

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/purser-registry/purser/internal/blob"
)

// race lets four clients write to one upload at the same time, each through a replica of its
// own. At random, each request ends without saving, saves, or finishes the upload, until one
// request commits. The committed object must have exactly the bytes that the upload's row
// acknowledged.
func race(t *testing.T, b Backend) {
	const clients, rounds = 4, 12
	for range 3 {
		seed := rand.Uint64()
		u := NewUpload()
		s := b.Open(t)
		var wg sync.WaitGroup
		for c := range clients {
			wg.Go(func() {
				replica := b.Open(t)
				r := rand.New(rand.NewPCG(seed, uint64(c)))
				for range rounds {
					if err := raceOnce(t, b, u, replica, r); err != nil {
						t.Errorf("seed %d, client %d: %v", seed, c, err)
					}
				}
			})
		}
		wg.Wait()
		data, key := u.Acked()
		if key == "" {
			key = u.Complete(t, s, []byte("end"))
			data, _ = u.Acked()
		}
		if err := s.DeleteUpload(t.Context(), u.Base, key); err != nil {
			t.Fatal(err)
		}
		Equal(t, s, key, data...)
		only(t, b, u.Base, key)
	}
}

// raceOnce makes one client's request in race. It returns nil if a newer request takes
// over the upload, or if another request is still writing to the upload.
func raceOnce(t *testing.T, b Backend, u *Upload, s blob.Store, r *rand.Rand) error {
	a, err := u.Attempt(t.Context(), s)
	if err != nil {
		return tolerate(err)
	}
	defer a.Close()
	for range r.IntN(4) {
		if _, err := a.Write(Bytes(r.Uint64(), raceSize(b, r))); err != nil {
			return tolerate(err)
		}
	}
	switch r.IntN(12) {
	case 0, 1, 2: // the client disconnects, and its request isn't saved
		return nil
	case 3: // it finishes, and the process dies before the commit
		_, err = a.Finish(t.Context())
	case 4:
		var key string
		if key, err = a.Finish(t.Context()); err == nil {
			err = a.Commit(key)
		}
	default:
		err = a.Save(t.Context())
	}
	return tolerate(err)
}

func raceSize(b Backend, r *rand.Rand) int {
	if r.IntN(3) == 0 {
		return 1 + r.IntN(b.Part*5/4)
	}
	return 1 + r.IntN(b.Part/50)
}

// tolerate returns nil for ErrFenced and ErrBusy, which a client must expect when other
// clients write to the same upload, and any other error unchanged.
func tolerate(err error) error {
	if errors.Is(err, blob.ErrFenced) || errors.Is(err, blob.ErrBusy) {
		return nil
	}
	return err
}
