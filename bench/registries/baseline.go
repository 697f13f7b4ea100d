package registries

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// A child process, which runs this same program, serves the baselines. So their CPU time can
// be measured in the same way as that of a registry.
const (
	childEnv = "PURSER_BENCH_BASELINES" // set in the child: the directory of its files

	pathFixed = "/fixed" // a manifest of 1 KiB from memory, by a bare handler
	pathFile  = "/file"  // the blob of get-1MiB, by http.ServeContent
	pathLimit = "/limit" // POST hashes and writes a file, DELETE removes it

	nameFixed = "(net/http)"
	nameFile  = "(ServeContent)"
	nameLimit = "(sha256+write)"
)

// startBaselines starts the child process, which keeps its files in `dir`. `stop` ends the
// process, which then removes its files. The child also ends when this process ends, since its
// standard input is then closed.
func startBaselines(dir string, stderr io.Writer) (t *target, stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, fmt.Errorf("finding this program to run it for the baselines: %w", err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	var said bytes.Buffer
	cmd.Stderr = &said
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, fmt.Errorf("starting the baselines: %w", err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, fmt.Errorf("starting the baselines: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, fmt.Errorf("starting the baselines: %w", err)
	}
	stop = func() {
		stdin.Close()
		if err := cmd.Wait(); err != nil || said.Len() > 0 {
			fmt.Fprintf(stderr, "the baselines' process: %v\n%s", err, &said)
		}
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		stop()
		return nil, nil, fmt.Errorf("starting the baselines: reading their address: %w", err)
	}
	t = &target{name: "baselines", pids: []int{cmd.Process.Pid}, baseline: true}
	if err := t.setURL("http://"+strings.TrimSpace(line), false); err != nil {
		stop()
		return nil, nil, err
	}
	return t, stop, nil
}

// openBaseline prepares the requests to the baseline with which the workload `w` is compared.
// `t` is the child process that serves the baseline.
func (b *bench) openBaseline(ctx context.Context, w workload, t *target) (*session, error) {
	manifest, big := b.fixture.hot[0].manifest, b.fixture.big
	switch w.baseline {
	case pathFixed:
		p := probe{path: pathFixed, accept: "Accept: " + mediaManifest, size: int64(len(manifest.data)), digest: manifest.digest}
		return openReads(ctx, b.options, t, w.method, []probe{p})
	case pathFile:
		p := probe{path: pathFile, accept: "Accept: */*", size: int64(len(big.data)), digest: big.digest}
		return openReads(ctx, b.options, t, w.method, []probe{p})
	case pathLimit:
		p := newPusher(t, b.options)
		path := pathLimit + "?mib=" + strconv.FormatInt(b.layerMiB, 10)
		return &session{
			conns: []*conn{p.conn},
			ops: []operation{oneTime(func(ctx context.Context) error {
				_, err := p.exchange(ctx, http.MethodPost, path, nil, http.StatusCreated)
				return err
			})},
			after: func(ctx context.Context) error {
				_, err := p.exchange(ctx, http.MethodDelete, pathLimit, nil, http.StatusNoContent)
				return err
			},
		}, nil
	}
	return nil, fmt.Errorf("workload %s has no baseline", w.name)
}

// serveBaselines is what the child process runs: it prints its address to stdout, and serves
// the baselines until stdin is closed.
func serveBaselines(dir string, stdin io.Reader, stdout io.Writer) (err error) {
	signal.Ignore(os.Interrupt) // the parent's to handle; it ends this process
	tmp, err := os.MkdirTemp(dir, "purser-bench-")
	if err != nil {
		return fmt.Errorf("making a directory for the baselines (-dir): %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	handler, err := newBaselines(tmp)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listening for the baselines: %w", err)
	}
	srv := &http.Server{Handler: handler}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	if _, err := fmt.Fprintln(stdout, ln.Addr()); err != nil {
		return errors.Join(err, srv.Close(), <-served)
	}
	if _, err := io.Copy(io.Discard, stdin); err != nil {
		return errors.Join(err, srv.Close(), <-served)
	}
	if err := srv.Close(); err != nil {
		return fmt.Errorf("ending the baselines: %w", err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving the baselines: %w", err)
	}
	return nil
}

// baselines are the handlers of the child.
type baselines struct {
	dir    string
	source *layerSource // content of the files written; pathLimit is for one client
}

func newBaselines(dir string) (http.Handler, error) {
	source, err := newLayerSource(chunkSize)
	if err != nil {
		return nil, err
	}
	b := &baselines{dir: dir, source: source}
	f := newFixture(1)
	file := filepath.Join(dir, "blob")
	if err := os.WriteFile(file, f.big.data, 0o600); err != nil {
		return nil, fmt.Errorf("writing the file of a baseline: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc(pathFixed, serveFixed(f.hot[0].manifest))
	mux.HandleFunc(pathFile, serveFile(file, f.big.digest))
	mux.HandleFunc("POST "+pathLimit, b.write)
	mux.HandleFunc("DELETE "+pathLimit, b.remove)
	return mux, nil
}

// serveFixed answers every request with the manifest m and the headers that a registry sends
// with a manifest.
func serveFixed(m blob) http.HandlerFunc {
	length, etag := strconv.Itoa(len(m.data)), `"`+m.digest+`"`
	return func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Content-Type", mediaManifest)
		h.Set("Content-Length", length)
		h.Set("Docker-Content-Digest", m.digest)
		h.Set("Etag", etag)
		w.Write(m.data) //nolint:errcheck // the client detects a short body
	}
}

func serveFile(path, digest string) http.HandlerFunc {
	etag := `"` + digest + `"`
	return func(w http.ResponseWriter, r *http.Request) {
		f, err := os.Open(path)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		defer f.Close()
		h := w.Header()
		h.Set("Content-Type", "application/octet-stream")
		h.Set("Docker-Content-Digest", digest)
		h.Set("Etag", etag)
		http.ServeContent(w, r, "", time.Time{}, f)
	}
}

func (b *baselines) limitFile() string { return filepath.Join(b.dir, "limit") }

// write does the least that a registry must do to store a layer durably: it hashes the bytes,
// writes them to a file and calls fsync. The form value mib is the size in MiB.
func (b *baselines) write(w http.ResponseWriter, r *http.Request) {
	mib, err := strconv.ParseInt(r.FormValue("mib"), 10, 32)
	if err == nil {
		l := layer{layerSource: &layerSource{size: mib << 20, block: b.source.block}}
		err = hashAndWrite(b.limitFile(), l, sha256.New())
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusCreated)
}

func hashAndWrite(path string, l layer, h hash.Hash) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	err = l.each(func(b []byte) error { return errors.Join(writeAll(h, b), writeAll(f, b)) })
	if err != nil {
		return err
	}
	return f.Sync()
}

func (b *baselines) remove(w http.ResponseWriter, _ *http.Request) {
	if err := os.Remove(b.limitFile()); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
