package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// objectFiles returns the paths of the files of all stored objects below a data directory, by
// the digest of their content.
func objectFiles(t testing.TB, dataDir string) map[string]string {
	t.Helper()
	files := make(map[string]string)
	err := filepath.WalkDir(filepath.Join(dataDir, "blobs", "objects"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		sum := sha256.Sum256(content)
		files["sha256:"+hex.EncodeToString(sum[:])] = path
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// checkFindings runs "purser check -o json", and fails the test unless the command exits with
// `code`. It returns the findings in the command's order, each as "problem object".
func checkFindings(t testing.TB, dataDir string, code int, args ...string) []string {
	t.Helper()
	got, out := purser(t, nil, slices.Concat([]string{"check", "--data-dir", dataDir, "-o", "json"}, args)...)
	if got != code {
		t.Fatalf("purser check %v exited with %d, want %d:\n%s", args, got, code, out)
	}
	findings := []string{}
	complete := false
	for line := range strings.Lines(out) {
		var v struct {
			Finding *struct {
				Problem, Key string
				Repaired     bool
			}
			Summary *struct{ Complete bool }
		}
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			continue // the log of the built-in PostgreSQL
		}
		if f := v.Finding; f != nil {
			text := f.Problem + " " + f.Key
			if f.Repaired {
				text += " repaired"
			}
			findings = append(findings, text)
		}
		complete = complete || v.Summary != nil && v.Summary.Complete
	}
	if !complete {
		t.Fatalf("purser check %v doesn't say that it is complete:\n%s", args, out)
	}
	slices.Sort(findings)
	return findings
}

func wantFindings(t testing.TB, got []string, want ...string) {
	t.Helper()
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("found:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// The test damages the store of a running registry in every way that a check detects. Then a
// check with repairs and another push must restore the registry.
func TestCheck(t *testing.T) {
	beginOwn(t)
	r, crane := startRegistry(t, options{}), toolClient(t, "crane")
	dir := r.opt.dataDir
	img := newImage(t, 4, 100<<10)
	digest, layout := digestOf(t, img), writeImage(t, img, "v1")
	crane.Run("push", layout, r.Ref("team/app", "v1"))
	crane.Run("copy", r.Ref("team/app", "v1"), r.Ref("team/copy", "v1"))
	wantFindings(t, checkFindings(t, dir, 0, "--deep"))
	r.API().checkWhole(t, "team/app", "v1", digest) // fills the caches with the image

	files := objectFiles(t, dir)
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	var digests, keys []string
	for _, l := range layers[:3] {
		d := digestOf(t, l)
		digests, keys = append(digests, d), append(keys, filepath.Base(files[d]))
	}
	content, err := os.ReadFile(files[digests[2]])
	if err != nil {
		t.Fatal(err)
	}
	content[len(content)/2] ^= 1
	stray := strings.Repeat("0123456789abcdef", 2) + "-0"
	strayFile := filepath.Join(dir, "blobs", "objects", stray[:2], stray)
	long := time.Now().Add(-24 * time.Hour)
	if err := errors.Join(os.Remove(files[digests[0]]), os.Truncate(files[digests[1]], 10),
		os.WriteFile(files[digests[2]], content, 0o600), os.WriteFile(strayFile, []byte("stray"), 0o600),
		os.Chtimes(strayFile, long, long)); err != nil {
		t.Fatal(err)
	}
	shallow := []string{"missing " + keys[0], "wrong-size " + keys[1], "unowned " + stray}
	wantFindings(t, checkFindings(t, dir, 4), shallow...)
	wantFindings(t, checkFindings(t, dir, 4, "--deep"), append(shallow, "damaged "+keys[2])...)
	_, text := purser(t, nil, "check", "--data-dir", dir)
	for _, want := range []string{"1 blob missing", digests[0], "team/app, team/copy", "--repair", "1 object in the store that nothing owns", stray} {
		if !strings.Contains(text, want) {
			t.Errorf("the text says nothing of %q:\n%s", want, text)
		}
	}
	wantFindings(t, checkFindings(t, dir, 4, "--deep", "--repair"), "missing "+keys[0]+" repaired",
		"wrong-size "+keys[1]+" repaired", "damaged "+keys[2]+" repaired", "unowned "+stray+" repaired")
	wantFindings(t, checkFindings(t, dir, 4), "lost "+keys[0], "lost "+keys[1], "lost "+keys[2])
	for _, d := range digests {
		for _, repo := range []string{"team/app", "team/copy"} {
			eventually(t, time.Minute, func() error {
				_, err := r.API().do(t.Context(), request{method: "HEAD", path: "/v2/" + repo + "/blobs/" + d, want: http.StatusNotFound})
				return err
			})
		}
	}

	// crane pushes under another tag. Under the old tag it would find the manifest and push
	// nothing.
	crane.Run("push", layout, r.Ref("team/app", "again"))
	crane.Run("validate", "--remote", r.Ref("team/copy", "v1"))
	crane.Run("pull", "--format", "oci", r.Ref("team/copy", "v1"), newDir(t)+"/pulled")
	wantFindings(t, checkFindings(t, dir, 0, "--deep"))
	// Without a registry.
	r.Stop()
	code, out := purser(t, nil, "check", "--data-dir", dir, "--deep")
	if code != 0 || !strings.Contains(out, "All is well.") {
		t.Errorf("purser check beside no registry exited with %d:\n%s", code, out)
	}
	r.Restart()
	r.API().checkWhole(t, "team/copy", "v1", digest)
	// The sweeper must delete the damaged objects at once. The object without an owner must
	// stay, since it is deleted only after a day.
	eventually(t, time.Minute, func() error {
		if left := objectFiles(t, dir); len(left) != len(files)+1 {
			return fmt.Errorf("%d objects, want %d and the stray", len(left), len(files))
		}
		return nil
	})
	if now, err := os.ReadFile(strayFile); err != nil || string(now) != "stray" {
		t.Errorf("the stray is gone at once: %v", err)
	}
}
