package command

import (
	"bytes"
	"fmt"
	"testing"
	"time"
)

func TestProgressLine(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := &ProgressLine{out: &out, width: func() int { return 60 }, Every: time.Hour}
	p.Tell("[#####---------------]  25% ", "reviewed 3,000, 9,000 left; deleted 5 blobs")
	p.Tell("[#####---------------]  25% ", "too early")
	fmt.Fprint(p, "a line of the log\n")
	fmt.Fprint(p, "another\n")
	p.Clear()
	want := "\r[#####---------------]  25% reviewed 3,000, 9,000 left; del\x1b[K" + "\r\x1b[K" + "a line of the log\nanother\n"
	if out.String() != want {
		t.Errorf("it drew %q, want %q", out.String(), want)
	}
}
