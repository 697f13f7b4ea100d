package distribution_test

import (
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/catalog"
)

// orphans returns the names of the store's objects that belong to no row of the tables blobs,
// uploads and gc_doomed_objects. No worker would ever delete such objects.
func (r *registry) orphans(t *testing.T) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(filepath.Join(r.Dir, "objects"), func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		base, _, _ := strings.Cut(e.Name(), "-")
		var n int
		if err := r.DB.Pool.QueryRow(t.Context(), `SELECT
			(SELECT count(*) FROM blobs WHERE storage_key = $1) + (SELECT count(*) FROM uploads WHERE storage_key = $2) +
			(SELECT count(*) FROM gc_doomed_objects WHERE storage_key IN ($1, $2))`, e.Name(), base).Scan(&n); err != nil {
			return err
		}
		if n == 0 {
			list = append(list, e.Name())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestAttackUploadRememberedTooLong: two processes serve a registry. A client cancels an upload
// through process two, while process one still remembers the upload. Garbage collection has
// already deleted the upload's objects and won't look for others. Then the client sends bytes
// of the upload to process one. This request must fail and leave no object in the store, since
// no worker would ever delete the object.
func TestAttackUploadRememberedTooLong(t *testing.T) {
	t.Parallel()
	one := setup(t)
	two := replica(t, one.DSN, one.Dir)
	for _, n := range []int{1000, catalog.MaxTail + 1} {
		content := pattern(7, n)
		for _, method := range []string{"PATCH", "PUT"} {
			at := one.StartUpload(t, "a", "")
			two.Do(t, "DELETE", at, "").Want(t, 204, "")
			// Both sweeps are over.
			if _, err := one.DB.Pool.Exec(t.Context(), "DELETE FROM gc_doomed_objects"); err != nil {
				t.Fatal(err)
			}
			a := one.Do(t, method, at+"?digest="+digest(content).String(), content)
			if a.StatusCode != 404 && a.StatusCode != 416 {
				t.Errorf("%s to an upload that is gone: %d %s", method, a.StatusCode, a.Content)
			}
			if list := one.orphans(t); len(list) > 0 {
				t.Errorf("%s of %d bytes: nobody owns %v", method, n, list)
			}
		}
	}
}

// TestAttackUploadThroughTwoReplicas: a client sends the chunks of one upload to two replicas
// alternately. Each replica keeps a copy of the upload's row in memory, which is outdated once
// the other replica has saved a chunk. Both replicas must accept the chunks all the same.
func TestAttackUploadThroughTwoReplicas(t *testing.T) {
	t.Parallel()
	one := setup(t)
	two := replica(t, one.DSN, one.Dir)
	for _, n := range []int{10, catalog.MaxTail - 1, catalog.MaxTail + 1, 200_000} {
		for _, m := range []int{10, 100_000} {
			first, second := pattern(1, n), pattern(2, m)
			at := one.StartUpload(t, "a", "")
			two.Do(t, "PATCH", at, first).Want(t, 202, "")
			a := one.Do(t, "PATCH", at, second)
			if a.StatusCode != 202 {
				t.Errorf("%d bytes through one replica, then %d through the other: %d %s", n, m, a.StatusCode, a.Content)
				continue
			}
			content := first + second
			two.Do(t, "PUT", at+"?digest="+digest(content).String(), "").Want(t, 201, "")
			one.WantBlob(t, "a", digest(content), content)
		}
		// The last chunk may come with the PUT.
		first, last := pattern(3, n), pattern(4, 150_000)
		at := one.StartUpload(t, "a", "")
		two.Do(t, "PATCH", at, first).Want(t, 202, "")
		if a := one.Do(t, "PUT", at+"?digest="+digest(first+last).String(), last); a.StatusCode != 201 {
			t.Errorf("%d bytes through one replica, then a PUT with more through the other: %d %s", n, a.StatusCode, a.Content)
		}
	}
	if list := one.orphans(t); len(list) > 0 {
		t.Errorf("nobody owns %v", list)
	}
}

// TestAttackAnswerOfCommitLost: a client sends the PUT that finishes an upload, doesn't receive
// the answer, and therefore sends the same PUT again. The registry must answer the second PUT
// as the first, and store nothing twice.
func TestAttackAnswerOfCommitLost(t *testing.T) {
	t.Parallel()
	r := setup(t)
	content := pattern(5, 1000)
	at := r.StartUpload(t, "a", "")
	r.Do(t, "PUT", at+"?digest="+digest(content).String(), content).Want(t, 201, "") // assume that this answer was lost
	r.Do(t, "PUT", at+"?digest="+digest(content).String(), content).Want(t, 201, "")
	r.Do(t, "HEAD", "/v2/a/blobs/"+digest(content).String(), "").Want(t, 200, "")
	if list := r.orphans(t); len(list) > 0 {
		t.Errorf("nobody owns %v", list)
	}
}
