package backup

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
)

// chunkWriter divides a table into files at the ends of lines, and chunkReader joins them.
func TestChunks(t *testing.T) {
	t.Parallel()
	target := newTarget(t)
	w := newChunkWriter(t.Context(), target, "backups/x/", "table", func(int64, int64) {})
	w.size = 100
	var want bytes.Buffer
	for i := range 100 {
		line := fmt.Sprintf("line %d of %s\n", i, strings.Repeat("x", i))
		want.WriteString(line)
		for _, part := range []string{line[:3], line[3:]} {
			if _, err := io.WriteString(w, part); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.flush(); err != nil {
		t.Fatal(err)
	}
	if len(w.files) < 20 || w.lines != 100 {
		t.Errorf("%d files, %d lines", len(w.files), w.lines)
	}
	got, err := io.ReadAll(newChunkReader(t.Context(), target, "backups/x/", w.files))
	if err != nil || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%d bytes instead of %d, %v", len(got), want.Len(), err)
	}
}
