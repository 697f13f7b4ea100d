package auth

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/purser-registry/purser/bench/meter"
)

// registry is a registry that this program has started.
type registry struct {
	url   string
	basic string // the Authorization header of the administrator
	cmd   *exec.Cmd
	meter *meter.Meter
}

const administrator, password = "admin", "bench-of-access-control"

// start starts a registry and waits until it answers.
func start(ctx context.Context, purser, dir string, closed bool) (*registry, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		return nil, err
	}
	cmd := exec.Command(purser, "serve")
	cmd.Env = append(os.Environ(), "PURSER_DATA_DIR="+dir, "PURSER_HTTP_ADDR="+addr, "PURSER_HTTP_DEBUG_ADDR=off",
		"PURSER_AUTH_ENABLED="+strconv.FormatBool(closed), "PURSER_AUTH_INITIAL_PASSWORD="+password,
		// The limits of failed log-ins would refuse the log-ins before they cost anything.
		"PURSER_AUTH_LOGIN_ACCOUNT_FAILURES=100000000", "PURSER_AUTH_LOGIN_ADDRESS_FAILURES=100000000")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r := &registry{url: "http://" + addr, cmd: cmd, meter: meter.New(meter.Proc{Root: "/proc"}, []int{cmd.Process.Pid})}
	if closed {
		r.basic = "Basic " + base64.StdEncoding.EncodeToString([]byte(administrator+":"+password))
	}
	for deadline := time.Now().Add(time.Minute); ; {
		if status, _, err := r.send(ctx, "GET", "/v2/", nil, r.basic); err == nil && status == http.StatusOK {
			return r, nil
		} else if time.Now().After(deadline) || ctx.Err() != nil {
			r.stop()
			return nil, fmt.Errorf("the registry doesn't answer: status %d, %w", status, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// stop ends the registry.
func (r *registry) stop() {
	r.cmd.Process.Signal(syscall.SIGTERM) //nolint:errcheck // it may have ended
	r.cmd.Wait()                          //nolint:errcheck // its status is of no interest
}

var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}, Timeout: time.Minute}

// send sends a request and returns the status and the body of the answer.
func (r *registry) send(ctx context.Context, method, path string, body []byte, authorization string) (int, []byte, error) {
	q, err := http.NewRequestWithContext(ctx, method, r.url+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if authorization != "" {
		q.Header.Set("Authorization", authorization)
	}
	a, err := client.Do(q)
	if err != nil {
		return 0, nil, err
	}
	defer a.Body.Close() //nolint:errcheck // read to its end
	content, err := io.ReadAll(a.Body)
	return a.StatusCode, content, err
}

// request is one that a pull consists of.
type request struct{ name, method, path string }

var (
	blob     = bytes.Repeat([]byte("blob"), 256)
	requests = []request{
		{"GET manifest", "GET", "/v2/bench/image/manifests/v1"},
		{"HEAD manifest", "HEAD", "/v2/bench/image/manifests/v1"},
		{"HEAD blob", "HEAD", "/v2/bench/image/blobs/" + digest(blob)},
		{"GET blob", "GET", "/v2/bench/image/blobs/" + digest(blob)},
	}
)

func digest(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

// push puts an image with one blob of 1 KiB into the registry.
func (r *registry) push(ctx context.Context) error {
	status, body, err := r.send(ctx, "POST", "/v2/bench/image/blobs/uploads/?digest="+digest(blob), blob, r.basic)
	if err != nil || status != http.StatusCreated {
		return fmt.Errorf("pushing a blob: status %d, %s, %w", status, body, err)
	}
	manifest := fmt.Sprintf(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",
		"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"%s","size":%d},"layers":[]}`, digest(blob), len(blob))
	status, body, err = r.send(ctx, "PUT", requests[0].path, []byte(manifest), r.basic)
	if err != nil || status != http.StatusCreated {
		return fmt.Errorf("pushing a manifest: status %d, %s, %w", status, body, err)
	}
	return nil
}

// token fetches a registry token for pulls.
func (r *registry) token(ctx context.Context) (string, error) {
	status, body, err := r.send(ctx, "GET", "/token?scope=repository:bench/image:pull", nil, r.basic)
	var answer struct{ Token string }
	if err == nil {
		err = json.Unmarshal(body, &answer)
	}
	if err != nil || status != http.StatusOK {
		return "", fmt.Errorf("fetching a token: status %d, %w", status, err)
	}
	return answer.Token, nil
}

// load sends a request again and again over n connections for the time `window`, and returns
// how long each took. `every` is the time from the start of one to the start of the next on a
// connection; 0: at once.
func (r *registry) load(ctx context.Context, q request, authorization string, n int, window, every time.Duration) ([]time.Duration, error) {
	var mu sync.Mutex
	var all []time.Duration
	var failed error
	var wg sync.WaitGroup
	end := time.Now().Add(window)
	for range n {
		wg.Go(func() {
			var took []time.Duration
			var err error
			for begin := time.Now(); begin.Before(end) && err == nil; begin = time.Now() {
				var status int
				var body []byte
				status, body, err = r.send(ctx, q.method, q.path, nil, authorization)
				took = append(took, time.Since(begin))
				if err == nil && status != http.StatusOK {
					err = fmt.Errorf("%s %s: status %d, %s", q.method, q.path, status, body)
				}
				if rest := every - time.Since(begin); rest > 0 {
					time.Sleep(rest)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if all = append(all, took...); err != nil {
				failed = err
			}
		})
	}
	wg.Wait()
	return all, failed
}

// guess sends n log-ins per second until ctx ends, each with another wrong password. It returns
// how many got which status.
func (r *registry) guess(ctx context.Context, n int) map[int]int {
	var mu sync.Mutex
	var wg sync.WaitGroup
	statuses := map[int]int{}
	tick := time.NewTicker(time.Second / time.Duration(n))
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			wg.Wait()
			return statuses
		case <-tick.C:
		}
		wg.Go(func() {
			text := administrator + ":" + strings.Repeat("x", 8) + strconv.Itoa(i)
			status, _, err := r.send(context.WithoutCancel(ctx), "GET", "/token", nil, "Basic "+base64.StdEncoding.EncodeToString([]byte(text)))
			if err != nil {
				status = 0
			}
			mu.Lock()
			defer mu.Unlock()
			statuses[status]++
		})
	}
}
