package gc

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// registry is a server that this process has started.
type registry struct {
	binary, url   string
	objects       string // the directory of its store
	cmd           *exec.Cmd
	dsn           string
	client        *http.Client
	stored        []imageOf
	deletable     []imageOf
	still, beside mixed
	rates         []float64                // deletions a second
	collected     map[bool][]time.Duration // from the first deletion until the store has none of the images; the key says whether pushes ran
	last          error
}

// imageOf is an image in a repository: its tag, the digest of its manifest, and the digests of
// its blobs.
type imageOf struct {
	repository, tag, digest string
	blobs                   []string
}

func startRegistry(ctx context.Context, binary, base string) (*registry, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	l.Close() //nolint:errcheck // the server takes the port
	r := &registry{binary: binary, url: "http://" + addr, objects: filepath.Join(base, "data", "blobs", "objects"), client: &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: time.Minute}}
	log, err := os.Create(filepath.Join(base, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close() //nolint:errcheck // the server has its own
	r.cmd = exec.CommandContext(ctx, binary, "serve", "--addr", addr, "--debug-addr", "off", "--data-dir", filepath.Join(base, "data"))
	r.cmd.Env = append(os.Environ(), "PURSER_GC_REVIEW_AFTER=1s")
	r.cmd.Stdout, r.cmd.Stderr = log, log
	r.cmd.Cancel = func() error { return r.cmd.Process.Signal(syscall.SIGTERM) }
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	for range 600 {
		if res, err := r.client.Get(r.url + "/v2/"); err == nil {
			res.Body.Close() //nolint:errcheck // nothing is read
			if res.StatusCode == http.StatusOK {
				out, err := exec.CommandContext(ctx, binary, "postgres", "url", "--data-dir", filepath.Join(base, "data")).Output()
				r.dsn = strings.TrimSpace(string(out))
				return r, err
			}
		}
		pause(ctx, 100*time.Millisecond)
	}
	r.stop()
	text, _ := os.ReadFile(log.Name()) //nolint:errcheck // it is for the message
	return nil, fmt.Errorf("%s doesn't start: %s", binary, text)
}

func (r *registry) stop() {
	r.cmd.Process.Signal(syscall.SIGTERM) //nolint:errcheck // it has ended then
	r.cmd.Wait()                          //nolint:errcheck // nothing depends on how it ended
}

// sample asks PostgreSQL 50 times per second, until ctx ends, for which events PostgreSQL's
// processes are waiting. It counts these events in to.waits.
func (r *registry) sample(ctx context.Context, to *mixed) error {
	conn, err := pgx.Connect(ctx, r.dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it only reads
	if to.waits == nil {
		to.waits = make(map[string]int)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		rows, err := conn.Query(ctx, `
			SELECT CASE WHEN backend_type = 'client backend' THEN application_name ELSE backend_type END || ' '
				|| CASE WHEN wait_event IS NULL THEN 'on a core' ELSE wait_event_type || ':' || wait_event END
			FROM pg_stat_activity
			WHERE pid <> pg_backend_pid() AND (state = 'active' OR backend_type = 'autovacuum worker'
				OR state LIKE 'idle in%')`)
		if err != nil {
			continue // the end of ctx
		}
		list, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			continue
		}
		to.samples++
		for _, what := range list {
			to.waits[what]++
		}
	}
}

// push pushes an image with a configuration and a layer that no other image has.
func (r *registry) push(ctx context.Context, repository, name string) error {
	_, err := r.pushed(ctx, repository, name)
	return err
}

func (r *registry) pushed(ctx context.Context, repository, name string) (i imageOf, err error) {
	i = imageOf{repository: repository, tag: name}
	for _, content := range []string{`{"x": "` + name + `"}`, strings.Repeat(name, 80)} {
		d := digestOf([]byte(content))
		if err := r.do(ctx, http.MethodPost, repository, "blobs/uploads/?digest="+d, "application/octet-stream", []byte(content)); err != nil {
			return i, err
		}
		i.blobs = append(i.blobs, d)
	}
	const media = "application/vnd.oci.image."
	manifest := fmt.Appendf(nil, `{"schemaVersion": 2, "mediaType": %q, "config": {"mediaType": %q, "digest": %q, "size": %d},
		"layers": [{"mediaType": %q, "digest": %q, "size": %d}]}`, media+"manifest.v1+json", media+"config.v1+json", i.blobs[0],
		len(name)+9, media+"layer.v1.tar", i.blobs[1], 80*len(name))
	i.digest = digestOf(manifest)
	return i, r.do(ctx, http.MethodPut, repository, "manifests/"+name, media+"manifest.v1+json", manifest)
}

// pull pulls the image's manifest by its tag, and then all blobs of the image.
func (r *registry) pull(ctx context.Context, i imageOf) error {
	if err := r.do(ctx, http.MethodGet, i.repository, "manifests/"+i.tag, "", nil); err != nil {
		return err
	}
	for _, d := range i.blobs {
		if err := r.do(ctx, http.MethodGet, i.repository, "blobs/"+d, "", nil); err != nil {
			return err
		}
	}
	return nil
}

func (r *registry) delete(ctx context.Context, i imageOf) error {
	return r.do(ctx, http.MethodDelete, i.repository, "manifests/"+i.digest, "", nil)
}

func digestOf(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

func (r *registry) do(ctx context.Context, method, repository, path, kind string, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, method, r.url+"/v2/"+repository+"/"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	res, err := r.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close() //nolint:errcheck // only read
	answer, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, req.URL.Path, res.Status, answer)
	}
	return err
}
