package auth

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/purser-registry/purser/bench/instance"
)

// registry is a registry with the image that is pulled.
type registry struct{ *instance.Registry }

// start starts a registry and pushes the image.
func start(ctx context.Context, purser, dir string, closed bool) (*registry, error) {
	r, err := instance.Start(ctx, purser, dir, closed,
		// The limits of failed log-ins would refuse the log-ins before they cost anything.
		"PURSER_AUTH_LOGIN_ACCOUNT_FAILURES=100000000", "PURSER_AUTH_LOGIN_ADDRESS_FAILURES=100000000")
	if err != nil {
		return nil, err
	}
	if err := r.Push(ctx, "bench/image", "v1", blob); err != nil {
		r.Stop()
		return nil, err
	}
	return &registry{r}, nil
}

// request is one that a pull consists of.
type request struct{ name, method, path string }

var (
	blob     = bytes.Repeat([]byte("blob"), 256)
	requests = []request{
		{"GET manifest", "GET", "/v2/bench/image/manifests/v1"},
		{"HEAD manifest", "HEAD", "/v2/bench/image/manifests/v1"},
		{"HEAD blob", "HEAD", "/v2/bench/image/blobs/" + instance.Digest(blob)},
		{"GET blob", "GET", "/v2/bench/image/blobs/" + instance.Digest(blob)},
	}
)

// token fetches a registry token for pulls.
func (r *registry) token(ctx context.Context) (string, error) {
	body, err := r.Want(ctx, http.StatusOK, "GET", "/token?scope=repository:bench/image:pull", nil)
	var answer struct{ Token string }
	if err == nil {
		err = json.Unmarshal(body, &answer)
	}
	return answer.Token, err
}

// load sends a request again and again over n connections; see instance.Load.
func (r *registry) load(ctx context.Context, q request, authorization string, n int, window, every time.Duration) ([]time.Duration, error) {
	return instance.Load(ctx, n, window, every, func() error {
		status, body, err := r.Send(ctx, q.method, q.path, nil, authorization)
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%s %s: status %d, %s", q.method, q.path, status, body)
		}
		return err
	})
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
			text := instance.Administrator + ":" + strings.Repeat("x", 8) + strconv.Itoa(i)
			status, _, err := r.Send(context.WithoutCancel(ctx), "GET", "/token", nil, "Basic "+base64.StdEncoding.EncodeToString([]byte(text)))
			if err != nil {
				status = 0
			}
			mu.Lock()
			defer mu.Unlock()
			statuses[status]++
		})
	}
}
