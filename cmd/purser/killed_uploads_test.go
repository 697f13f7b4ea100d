package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// asProgram is an environment variable that makes the test's binary the program itself.
const asProgram = "PURSER_TEST_AS_PROGRAM"

// process starts the program with `serve` as a process of its own, which a test may kill, and returns it
// with the registry's URL.
func process(t *testing.T, environ []string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0], "serve")
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "PURSER_") || strings.HasPrefix(entry, "PURSER_POSTGRES_BIN=") {
			cmd.Env = append(cmd.Env, entry)
		}
	}
	cmd.Env = append(append(cmd.Env, environ...), asProgram+"=yes", "PURSER_HTTP_ADDR=127.0.0.1:0", "PURSER_HTTP_DEBUG_ADDR=off",
		"PURSER_DATA_DIR="+t.TempDir())
	said := new(servetest.Log)
	cmd.Stderr = said
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kill(cmd) })
	registry := ""
	for lines := bufio.NewScanner(out); lines.Scan(); {
		key, value, _ := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		switch key {
		case "registry":
			registry = strings.TrimSpace(value)
		case "push":
			go io.Copy(io.Discard, out) //nolint:errcheck // it ends with the process
			return cmd, registry
		}
	}
	t.Fatalf("the process isn't ready: %s", said)
	return nil, ""
}

// kill kills the process by SIGKILL.
func kill(cmd *exec.Cmd) {
	cmd.Process.Kill() //nolint:errcheck // it has ended already
	cmd.Wait()         //nolint:errcheck // it was killed
}

// uploader sends uploads to a registry, which is given with each request, since several share the
// uploads.
type uploader struct{ t *testing.T }

// send sends a request with a body of n bytes, or without a length if n is negative, and returns the
// status and the Location. The body is sent only if the registry wants it.
func (u uploader) send(method, url string, body io.Reader, n int64) (status int, location string) {
	u.t.Helper()
	req, err := http.NewRequestWithContext(u.t.Context(), method, url, body)
	if err != nil {
		u.t.Error(err)
		return 0, ""
	}
	req.ContentLength = n
	req.Header.Set("Expect", "100-continue")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close() //nolint:errcheck // nothing is read
	return resp.StatusCode, resp.Header.Get("Location")
}

// begin starts an upload and returns its path.
func (u uploader) begin(registry string) string {
	u.t.Helper()
	status, location := u.send("POST", registry+"/v2/acme/app/blobs/uploads/", http.NoBody, 0)
	if status != 202 {
		u.t.Fatalf("starting an upload: %d", status)
	}
	return strings.TrimPrefix(location, registry)
}

// patch appends n bytes to an upload, which must have the status `want`. It returns the upload's path.
func (u uploader) patch(registry, path string, n, want int) string {
	u.t.Helper()
	status, location := u.send("PATCH", registry+path, strings.NewReader(strings.Repeat("x", n)), int64(n))
	if status != want {
		u.t.Errorf("%d bytes more: %d, want %d", n, status, want)
	}
	return cmp.Or(strings.TrimPrefix(location, registry), path)
}

// TestKilledServerGivesRoomBack: a process is killed by SIGKILL while two clients send to it under a
// quota, one with a length and one without. Nobody gets the room that it had promised until the promise
// is over; then others get all of it but what was acknowledged, and no more than the limit.
func TestKilledServerGivesRoomBack(t *testing.T) {
	t.Parallel()
	const limit = 1_000_000
	dsn := dbtest.DSN(t)
	d := dbtest.Open(t, dsn)
	environ := onStore(t, dsn, t.TempDir())
	other := start(t, servetest.Config(t, environ...)).Registry
	u := uploader{t}
	admin := &shop{t, other}
	admin.send("POST", "/api/v1/organization/", "application/json", `{"name":"acme"}`, 201)
	admin.send("POST", "/api/v1/organization/acme/quota", "application/json", fmt.Sprintf(`{"limit_bytes":%d}`, limit), 201)
	servetest.WaitFor(t, "the quota is counted", func() (ok bool) {
		return d.Pool.QueryRow(t.Context(), "SELECT counted FROM namespacequotas").Scan(&ok) == nil && ok
	})
	if _, err := d.Pool.Exec(t.Context(), "UPDATE namespacequotas SET hard_percent = 100"); err != nil { // the slots are closed still
		t.Fatal(err)
	}
	cmd, dying := process(t, environ)

	known := u.patch(dying, u.begin(dying), 100_000, 202)
	for i, request := range []struct {
		path   string
		length int64
	}{{known, 400_000}, {u.begin(dying), -1}} {
		body, rest := io.Pipe()
		t.Cleanup(func() { rest.Close() }) //nolint:errcheck // it never fails
		go u.send("PATCH", dying+request.path, body, request.length)
		go rest.Write(make([]byte, 200_000)) //nolint:errcheck // the process is killed meanwhile
		servetest.WaitFor(t, "room is promised", func() bool {
			var n int
			return d.Pool.QueryRow(t.Context(), "SELECT count(*) FROM uploads WHERE promised_until > now()").Scan(&n) == nil && n == i+1
		})
	}
	kill(cmd)
	u.patch(other, u.begin(other), 850_000, 409) // it is promised to the dead process
	servetest.WaitFor(t, "the promises to the dead process are over", func() bool {
		// The database may still get to a statement that the process had sent, and promise the room again.
		if _, err := d.Pool.Exec(t.Context(), "UPDATE uploads SET promised_until = promised_until - interval '31 seconds'"); err != nil {
			t.Fatal(err)
		}
		status, _ := u.send("PATCH", other+u.begin(other), strings.NewReader(strings.Repeat("x", 850_000)), 850_000)
		return status == 202
	})
	u.patch(other, u.begin(other), 100_000, 409)
	known = u.patch(other, known, 50_000, 202)
	known = u.patch(other, known, 1, 409)
	var used int64
	err := d.Pool.QueryRow(t.Context(), `SELECT q.bytes + s.bytes + purser_quota_uploads(q.namespace_id, '00000000-0000-0000-0000-000000000000')
		FROM namespacequotas q CROSS JOIN LATERAL purser_quota_slots(q.namespace_id) s`).Scan(&used)
	if err != nil || used > limit {
		t.Errorf("%d bytes are used or promised, of %d: %v", used, limit, err)
	}
	whole := oci.Compute(oci.SHA256, []byte(strings.Repeat("x", 150_000)))
	if status, _ := u.send("PUT", other+known+"?digest="+whole.String(), http.NoBody, 0); status != 201 {
		t.Errorf("the dead process' client goes on elsewhere: %d", status)
	}
}
