package check_test

import (
	"testing"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/check"
	"github.com/purser-registry/purser/internal/oci"
)

// Two manifests have wrong total sizes, as the first release stored them: a negative one and
// one that looks right. After both passes the total sizes must equal the stored sizes.
func TestSizesOfTheFirstRelease(t *testing.T) {
	catalogtest.AtBoth(t, func(t *testing.T, dsn string) {
		s := replica(t, dsn)
		config, layer := s.Push(t, "acme/app", "config"), s.Push(t, "acme/app", "a layer")
		one, two := catalogtest.Image(t, config, nil, nil), catalogtest.Image(t, config, []oci.Digest{layer, config}, nil)
		sizes := map[oci.Digest]int64{
			s.Put(t, "acme/app", one): int64(len(one) + len("config")),
			s.Put(t, "acme/app", two): int64(len(two) + len("config") + len("a layer")),
		}
		s.Exec(t, "UPDATE manifests SET total_size = -9223372036854775238 WHERE id % 2 = 0")
		s.Exec(t, "UPDATE manifests SET total_size = 123456 WHERE id % 2 = 1")
		s.Exec(t, "UPDATE manifest_size_corrections SET finished_at = NULL, due_at = now()")
		var corrected int64
		for passes := 0; passes < 2; {
			done, err := check.CorrectSizes(t.Context(), s.DB, 1)
			if err != nil {
				t.Fatal(err)
			}
			if corrected += done.Corrected; done.Compared == 0 {
				passes++
				if done.Over != (passes == 2) {
					t.Fatalf("after pass %d: %+v", passes, done)
				}
				s.Exec(t, "UPDATE manifest_size_corrections SET due_at = now()")
			}
		}
		if corrected != 2 {
			t.Errorf("%d corrected, want 2", corrected)
		}
		for d, want := range sizes {
			if m, err := s.DescribeManifest(t.Context(), "acme/app", d); err != nil || m.Size != want {
				t.Errorf("%s has %d bytes, want %d: %v", d, m.Size, want, err)
			}
		}
		if done, err := check.CorrectSizes(t.Context(), s.DB, 1); err != nil || !done.Over || done.Compared != 0 {
			t.Errorf("when all is over: %+v, %v", done, err)
		}
	})
}
