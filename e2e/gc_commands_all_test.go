//go:build all

package e2e

import (
	"testing"
)

// No server runs. The test expects that the commands start the built-in PostgreSQL and stop it
// again, so that the server can start afterwards.
func TestGCCommandsWithoutServer(t *testing.T) {
	beginOwn(t)
	r := startRegistry(t, options{env: []string{"PURSER_GC_REVIEW_AFTER=100h"}})
	if _, err := r.API().pushImage(t.Context(), "library/app", "v1", randomBytes(1<<10)); err != nil {
		t.Fatal(err)
	}
	r.Stop()
	o := operator{t, r}
	o.says([]string{"manifests  0    0        0", "blobs      0    2        0"}, "status")
	o.says([]string{"reviewed 0 blobs", "Nothing is left to do now."}, "run")
	r.Restart()
}
