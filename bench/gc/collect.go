package gc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// collect measures the time from the first deletion of an image until a server's blob store
// has none of the objects of the deleted images any more. In each round it measures every
// server once without and once with concurrent pushes and pulls. It prints the times.
func (m massDelete) collect(ctx context.Context, dir string) error {
	servers, stop, err := m.start(ctx, dir)
	defer stop()
	if err != nil {
		return err
	}
	for round := range m.rounds {
		for i := range servers {
			r := servers[(round+i)%len(servers)]
			for _, live := range []bool{false, true} {
				if err := m.collectOnce(ctx, r, live); err != nil {
					return fmt.Errorf("%s: %w", r.binary, err)
				}
			}
		}
	}
	for _, r := range servers {
		for _, live := range []bool{false, true} {
			took := r.collected[live]
			slices.Sort(took)
			middle := took[len(took)/2]
			fmt.Fprintf(m.out, "%s: live pushes %t: %d images, the store is without them after %.1f s (%.1f to %.1f), %.0f images a second\n", r.binary, live,
				m.images, middle.Seconds(), took[0].Seconds(), took[len(took)-1].Seconds(), float64(m.images)/middle.Seconds())
		}
		if r.last != nil {
			fmt.Fprintf(m.out, "  the last failure of a push or pull: %v\n", r.last)
		}
	}
	return nil
}

func (m massDelete) collectOnce(ctx context.Context, r *registry, live bool) error {
	before, err := r.storedObjects()
	if err != nil {
		return err
	}
	if err := r.fill(ctx, "deleted", m.images); err != nil {
		return err
	}
	left, err := r.storedObjects()
	if err != nil {
		return err
	}
	for name := range before {
		delete(left, name)
	}
	if want := 2 * m.images; len(left) < want {
		return fmt.Errorf("%d objects were stored for %d images, want at least %d", len(left), m.images, want)
	}
	pause(ctx, m.after) // for work that the filling has deferred
	if live {
		stop := r.mix(ctx, &r.beside, m.pushRate, m.pullRate)
		defer stop()
	}
	began := time.Now()
	if err := m.deleteAll(ctx, r); err != nil {
		return err
	}
	if err := r.waitWithout(ctx, left); err != nil {
		return err
	}
	if r.collected == nil {
		r.collected = make(map[bool][]time.Duration)
	}
	r.collected[live] = append(r.collected[live], time.Since(began))
	return nil
}

// waitWithout waits until the store has none of the files in `objects` any more. It returns an
// error after 10 minutes.
func (r *registry) waitWithout(ctx context.Context, objects map[string]bool) error {
	deadline := time.Now().Add(10 * time.Minute)
	for len(objects) > 0 {
		if time.Now().After(deadline) {
			return fmt.Errorf("%d objects are still stored after 10 minutes", len(objects))
		}
		for name := range objects {
			if _, err := os.Stat(name); err == nil {
				break // the other objects are checked after this one is deleted
			} else if !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			delete(objects, name)
		}
		pause(ctx, 20*time.Millisecond)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// storedObjects returns the paths of all files in the blob store's directory.
func (r *registry) storedObjects() (map[string]bool, error) {
	objects := make(map[string]bool)
	return objects, filepath.WalkDir(r.objects, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			objects[path] = true
		}
		return err
	})
}
