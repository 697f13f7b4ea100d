package prune

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/purser-registry/purser/bench/meter"
)

// pushing pushes small images over several connections at once. Each connection pushes one
// image after the other.
type pushing struct {
	stop  context.CancelFunc
	done  sync.WaitGroup
	began time.Time
	mu    sync.Mutex
	list  meter.Latencies
	err   error // the first
}

// pushes begins to push to repositories that are not pruned.
func (b *bench) pushes(ctx context.Context) *pushing {
	ctx, cancel := context.WithCancel(ctx)
	p := &pushing{stop: cancel, began: time.Now()}
	for i := range b.pushers {
		p.done.Go(func() {
			for ctx.Err() == nil {
				start := time.Now()
				err := b.push(fmt.Sprintf("pushed/r%d", i))
				p.mu.Lock()
				if p.list = append(p.list, time.Since(start)); p.err == nil {
					p.err = err
				}
				p.mu.Unlock()
			}
		})
	}
	return p
}

// end stops the pushes and returns their latencies, sorted, the number of images pushed per
// second, and the first error.
func (p *pushing) end() (meter.Latencies, float64, error) {
	p.stop()
	p.done.Wait()
	slices.Sort(p.list)
	return p.list, float64(len(p.list)) / time.Since(p.began).Seconds(), p.err
}

// push pushes an image of one blob.
func (b *bench) push(repository string) error {
	config := []byte(`{"x": "` + rand.Text() + `"}`)
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256(config))
	base := b.url + "/v2/" + repository
	err := send(http.MethodPost, base+"/blobs/uploads/?digest="+digest, "application/octet-stream", config)
	if err != nil {
		return err
	}
	manifest := fmt.Appendf(nil, `{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": %q, "size": %d}, "layers": []}`, digest, len(config))
	return send(http.MethodPut, base+"/manifests/"+digest[7:39], "application/vnd.oci.image.manifest.v1+json", manifest)
}

func send(method, url, kind string, body []byte) error {
	req, err := http.NewRequest(method, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", kind)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close() //nolint:errcheck // only read
	answer, _ := io.ReadAll(res.Body)
	if res.StatusCode != http.StatusCreated {
		return fmt.Errorf("%s %s: %s: %s", method, url, res.Status, answer)
	}
	return nil
}
