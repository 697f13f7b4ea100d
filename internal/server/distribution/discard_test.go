package distribution_test

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
)

// storedBytes returns how many bytes lie in the store.
func (r *registry) storedBytes(t *testing.T) (n int64) {
	t.Helper()
	err := filepath.WalkDir(r.Dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return fmt.Errorf("%s: %w", e.Name(), err)
		}
		n += info.Size()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestWrongDigestsLeaveNothing: an upload that is hashed by sha256 is finished again and again with a
// wrong digest, of sha512 above all, which isn't known to be wrong before all bytes are read. The
// store has no more bytes than the quota counts, and the right digest still finishes the upload.
func TestWrongDigestsLeaveNothing(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1000, catalog.MaxTail, catalog.MaxTail + 1} {
		for _, last := range []int{0, 1000} {
			t.Run(fmt.Sprintf("%d+%d", n, last), func(t *testing.T) {
				t.Parallel()
				r := setup(t)
				content := pattern(1, n+last)
				at := r.StartUpload(t, "acme/app", "")
				r.Do(t, "PATCH", at, content[:n]).Want(t, 202, "")
				before := r.storedBytes(t)
				for range 5 {
					for _, wrong := range []oci.Digest{digest512("wrong"), digest("wrong")} {
						r.Do(t, "PUT", at+"?digest="+wrong.String(), content[n:]).Want(t, 400, oci.DigestInvalid)
					}
				}
				if after := r.storedBytes(t); after > before+int64(last) {
					t.Errorf("the store has %d bytes, %d before", after, before)
				}
				right := digest512(content)
				r.Do(t, "PUT", at+"?digest="+right.String(), content[n:]).Want(t, 201, "")
				r.WantBlob(t, "acme/app", right, content)
			})
		}
	}
}
