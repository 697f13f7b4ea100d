package command

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func TestAsk(t *testing.T) {
	t.Parallel()
	for answer, yes := range map[string]bool{"y\n": true, "YES\n": true, "y": true, "n\n": false, "\n": false, "": false, "yesterday\n": false} {
		var out bytes.Buffer
		err := ask(strings.NewReader(answer), &out, "Sure?")
		if yes != (err == nil) || !yes && !errors.Is(err, errDeclined) || out.String() != "Sure? [y/N] " {
			t.Errorf("%q: %v, %q", answer, err, out.String())
		}
	}
}
