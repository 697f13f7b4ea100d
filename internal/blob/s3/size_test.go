package s3

import (
	"context"
	"testing"
)

// TestPartSizes simulates, without sending any bytes, an upload in one request that uses all
// part numbers. The parts together must have room for 1 TiB and stay within S3's limits, and
// the first parts must be small.
func TestPartSizes(t *testing.T) {
	t.Parallel()
	given, calls := int64(0), 0
	w := &writer{
		s:     &Store{partSize: 8 << 20},
		block: 1,
		numbers: func(_ context.Context, n int) (int64, error) {
			given, calls = given+int64(n), calls+1
			return given - int64(n), nil
		},
	}
	at, err := w.number(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.st.Multipart = &multipart{At: at}
	total, reported := int64(0), false
	for {
		limit := w.partLimit()
		n, err := w.partNumber(t.Context())
		if err != nil {
			break
		}
		if limit > 5<<30 || limit < minPartSize {
			t.Fatalf("part %d has %d bytes", n, limit)
		}
		if limit > 16<<20 && 2*limit > total*3/1000 {
			t.Fatalf("two buffers of %d bytes after %d", limit, total)
		}
		total += limit
		if total > 20<<30 && !reported {
			reported = true
			if limit > 16<<20 || calls > 50 {
				t.Fatalf("at 20 GiB: parts of %d bytes, numbers asked for %d times", limit, calls)
			}
		}
	}
	if total < 1<<40 {
		t.Fatalf("only %d GiB fit in an upload", total>>30)
	}
}
