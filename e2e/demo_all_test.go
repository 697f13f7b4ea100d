//go:build all

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// demoWithin limits how long a test waits for a step of "purser demo", which takes half a
// minute in all on an idle machine.
const demoWithin = 4 * time.Minute

// demo is a running "purser demo".
type demo struct {
	t    testing.TB
	p    *process
	temp string // directory for temporary files
}

// startDemo starts "purser demo". `change` may change the command before it starts.
func startDemo(t testing.TB, change func(cmd *exec.Cmd, temp string), args ...string) *demo {
	t.Helper()
	d := &demo{t: t, temp: newDir(t)}
	cmd := exec.Command(binary(), append([]string{"demo"}, args...)...)
	cmd.Env = childEnv("TMPDIR=" + d.temp)
	if change != nil {
		change(cmd, d.temp)
	}
	var err error
	if d.p, err = startProcess("purser demo", cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.p.kill)
	return d
}

// says waits until the demo has printed `text`.
func (d *demo) says(text string) {
	d.t.Helper()
	err := d.p.waitFor(d.t.Context(), demoWithin, func(context.Context) error {
		if !strings.Contains(d.p.out.String(), text) {
			return fmt.Errorf("it hasn't printed %q", text)
		}
		return nil
	})
	if err != nil {
		d.t.Fatal(err)
	}
}

// ends waits until the demo has ended. It fails the test unless the exit code is `code` and
// the demo has left neither a file nor a process.
func (d *demo) ends(code int) {
	d.t.Helper()
	select {
	case <-d.p.exited:
	case <-time.After(demoWithin):
		d.t.Fatalf("it still runs:\n%s", d.p.out.String())
	}
	if got := d.p.cmd.ProcessState.ExitCode(); got != code {
		d.t.Errorf("it exited with %d (%v), want %d:\n%s", got, d.p.err, code, d.p.out.String())
	}
	d.leavesNothing()
}

// leavesNothing fails the test if the demo has left a file or a process.
func (d *demo) leavesNothing() {
	d.t.Helper()
	left, err := os.ReadDir(d.temp)
	if err != nil {
		d.t.Fatal(err)
	}
	for _, entry := range left {
		d.t.Errorf("it has left %s", entry)
	}
	for _, process := range d.processes() {
		d.t.Errorf("it has left the process %s", process)
	}
}

// processes returns the processes that work in the demo's directory, as PostgreSQL does. It
// knows none on other systems than Linux.
func (d *demo) processes() (list []string) {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd") //nolint:errcheck // the pattern is right
	for _, link := range links {
		if dir, err := os.Readlink(link); err == nil && strings.HasPrefix(dir, d.temp+"/") {
			list = append(list, link+" -> "+dir)
		}
	}
	return list
}

// url returns the address that the demo has printed.
func (d *demo) url() string {
	d.t.Helper()
	found := regexp.MustCompile(`(?m)^  (http://\S+)/$`).FindStringSubmatch(d.p.out.String())
	if found == nil {
		d.t.Fatalf("it has printed no address:\n%s", d.p.out.String())
	}
	return found[1]
}

// blobs returns how many blobs the registry has, as the check at the end says.
func (d *demo) blobs() int {
	d.t.Helper()
	found := regexp.MustCompile(`with (\d+) blobs`).FindStringSubmatch(d.p.out.String())
	if found == nil {
		d.t.Fatalf("the check hasn't said how many blobs there are:\n%s", d.p.out.String())
	}
	n, err := strconv.Atoi(found[1])
	if err != nil {
		d.t.Fatal(err)
	}
	return n
}

// getText returns the body of a page.
func getText(t testing.TB, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %d, %v", url, resp.StatusCode, err)
	}
	return string(body)
}

// row returns the tags, manifests, blobs and bytes in a row of the table at the end.
func (d *demo) row(title string) (n [4]int) {
	d.t.Helper()
	found := regexp.MustCompile(`(?m)^  ` + title + ` +(\S+) +(\S+) +(\S+) +\S+ \S+ +(\S+)$`).FindStringSubmatch(d.p.out.String())
	if found == nil {
		d.t.Fatalf("there is no row %q:\n%s", title, d.p.out.String())
	}
	for i, text := range found[1:] {
		var err error
		if n[i], err = strconv.Atoi(strings.ReplaceAll(text, ",", "")); err != nil {
			d.t.Fatal(err)
		}
	}
	return n
}

// The tour prunes the tags that its policies select, and says truly what was deleted: the
// numbers of what was stored, deleted and left, which come from different sources, agree. What
// it pushes are images that clients can pull. It ends with a check, and leaves nothing.
func TestDemo(t *testing.T) {
	beginOwn(t)
	d := startDemo(t, nil)
	d.says("Policies, and what")
	if len(d.processes()) == 0 && runtime.GOOS == "linux" {
		t.Error("no PostgreSQL works in the demo's directory")
	}
	if got := getStatus(t.Context(), d.url()+"/v2/"); got != http.StatusOK {
		t.Errorf("GET /v2/: %d, want 200", got)
	}
	for path, want := range map[string]string{ // what the registry of the teams has to look at
		"/ui/": "asks whether to delete", "/ui/namespaces/data": "96", "/ui/namespaces/shop/-/policies": "observe", "/ui/holds": "production",
		"/ui/repositories/shop/cart/-/tags/v3.24": "Pulls",
	} {
		if page := getText(t, d.url()+path); !strings.Contains(page, want) {
			t.Errorf("the page %s lacks %q:\n%s", path, want, page)
		}
	}
	ref, err := name.ParseReference(strings.TrimPrefix(d.url(), "http://")+"/demo/web:latest", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	index, err := remote.Index(ref, remote.WithContext(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	d.ends(0)
	stored, deleted, left := d.row("stored"), d.row("deleted"), d.row("left")
	for i, column := range []string{"tags", "manifests", "blobs", "bytes"} {
		if deleted[i] == 0 || left[i] == 0 || stored[i]-deleted[i] != left[i] {
			t.Errorf("of %d %s, %d were deleted and %d are left", stored[i], column, deleted[i], left[i])
		}
	}
	if want := [2]int{23, 51}; deleted[0] != want[0] || deleted[1] != want[1] {
		t.Errorf("%v tags and manifests were deleted, want %v", deleted[:2], want)
	}
	for _, want := range []string{
		fmt.Sprintf("pushed %d tags, %d manifests, %d blobs", stored[0], stored[1], stored[2]),
		"pulled 13 images", "the statistics count 13",
		fmt.Sprintf("compared %d objects", left[2]), "all is well.", "Stopped the registry and removed " + d.temp,
	} {
		if !strings.Contains(d.p.out.String(), want) {
			t.Errorf("it hasn't printed %q:\n%s", want, d.p.out.String())
		}
	}
}

// With --keep the registry goes on after the tour, until an interrupt. The check finds lost
// blobs and objects without an owner, and the exit code says so. Run as root, the test runs the
// demo as another user.
func TestDemoFindsDamageAndKeeps(t *testing.T) {
	beginOwn(t)
	d := startDemo(t, func(cmd *exec.Cmd, temp string) { unprivileged(t, cmd, temp) }, "--keep")
	d.says("Policies, and what")
	files, err := filepath.Glob(filepath.Join(d.temp, "purser-demo-*", "blobs", "objects", "*", "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d objects were found: %v", len(files), err)
	}
	stranger := filepath.Join(filepath.Dir(files[0]), filepath.Base(filepath.Dir(files[0]))+strings.Repeat("0", 30)+"-0")
	if err := os.Rename(files[0], stranger); err != nil {
		t.Fatal(err)
	}
	for _, file := range files[1:] {
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	d.says("until you interrupt it")
	lost := fmt.Sprintf("not all is well. Problems: %d, and objects that nothing owns: 1\n", d.blobs())
	if out := d.p.out.String(); !strings.Contains(out, lost) || !strings.Contains(out, "  missing  ") {
		t.Errorf("the check hasn't found everything:\n%s", out)
	}
	if got := getStatus(t.Context(), d.url()+"/v2/"); got != http.StatusOK {
		t.Errorf("GET /v2/ after the tour: %d, want 200", got)
	}
	d.signal(syscall.SIGINT)
	d.ends(4)
}

func (d *demo) signal(s syscall.Signal) {
	d.t.Helper()
	if err := d.p.cmd.Process.Signal(s); err != nil {
		d.t.Fatal(err)
	}
}

// A demo that is interrupted, or whose terminal is closed, leaves nothing, whatever it is
// doing.
func TestDemoLeavesNothing(t *testing.T) {
	for after, s := range map[string]syscall.Signal{"Starting": syscall.SIGHUP, "Pushing": syscall.SIGINT, "Pruning": syscall.SIGTERM} {
		t.Run(after, func(t *testing.T) {
			beginOwn(t)
			if s == syscall.SIGHUP && signal.Ignored(s) { // as in tests under nohup
				s = syscall.SIGTERM
			}
			d := startDemo(t, nil)
			d.says(after)
			d.signal(s)
			d.ends(1)
			if out := d.p.out.String(); !strings.Contains(out, "purser: interrupted\n") || !strings.Contains(out, "Stopped the registry and removed") {
				t.Errorf("it says nothing of the interrupt and what it has removed:\n%s", out)
			}
		})
	}
}

// If nobody reads the output any more, as in "purser demo | head -1", the demo ends and leaves
// nothing.
func TestDemoWithoutReader(t *testing.T) {
	beginOwn(t)
	d := &demo{t: t, temp: newDir(t)}
	ctx, cancel := context.WithTimeout(t.Context(), demoWithin)
	defer cancel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd, said := exec.CommandContext(ctx, binary(), "demo"), new(strings.Builder)
	cmd.Env, cmd.Stdout, cmd.Stderr = childEnv("TMPDIR="+d.temp), w, said
	err = errors.Join(cmd.Start(), w.Close())
	if err == nil {
		_, err = r.Read(make([]byte, 1))
	}
	if err = errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(said.String(), "broken pipe") {
		t.Errorf("it exited with %d (%v), want 1 and an error about the pipe:\n%s", code, err, said)
	}
	d.leavesNothing()
}
