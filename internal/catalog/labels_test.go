package catalog

import (
	"bytes"
	"context"
	"io"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
)

// heldReader is a store whose reads end when a test lets them.
type heldReader struct {
	content []byte
	begun   chan string // gets the account of each read
	end     chan struct{}
}

func (h *heldReader) Open(ctx context.Context, _ string, _, _ int64) (io.ReadCloser, error) {
	h.begun <- audit.SourceOf(ctx).Actor
	<-h.end
	return io.NopCloser(bytes.NewReader(h.content)), nil
}

// TestLabelReadsAreShared: one account's pushes read more labels than are read at once. Another
// account's read must not wait for all of them.
func TestLabelReadsAreShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const many = 5 * labelReads
		content := []byte(`{}`)
		store := &heldReader{content: content, begun: make(chan string, many+1), end: make(chan struct{})}
		c := &Catalog{opt: Options{Store: store}, labelReads: limit.NewQueue(labelReads, labelReadsWaiting)}
		key := "configuration"
		image := labelSource{digest: oci.Compute(oci.SHA256, content).Bytes(), key: &key, size: int64(len(content))}
		push := func(account string) {
			ctx := audit.WithSource(t.Context(), audit.Source{Actor: account})
			go func() {
				if _, problem := c.readConfiguration(ctx, image); problem != "" {
					t.Errorf("%s: %s", account, problem)
				}
			}()
			synctest.Wait()
		}
		for range many {
			push("many")
		}
		push("one")
		for range many + 1 {
			store.end <- struct{}{}
			synctest.Wait()
		}
		var order []string
		for range many + 1 {
			order = append(order, <-store.begun)
		}
		if i := slices.Index(order, "one"); i > labelReads+1 {
			t.Errorf("%d reads began before the other account's", i)
		}
	})
}
