package main

import (
	"bytes"
	"errors"
	"flag"
	"strings"
	"testing"
)

// The test expects that the command lists every scenario, that every scenario prints its flags
// with -h, and that the command refuses an unknown scenario.
func TestScenarios(t *testing.T) {
	t.Parallel()
	var list bytes.Buffer
	if err := run(t.Context(), nil, &list, &list); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("without arguments it ends with %v", err)
	}
	for _, s := range scenarios {
		if !strings.Contains(list.String(), "  "+s.name+" ") {
			t.Errorf("%s isn't listed:\n%s", s.name, list.String())
		}
		var out bytes.Buffer
		if err := run(t.Context(), []string{s.name, "-h"}, &out, &out); !errors.Is(err, flag.ErrHelp) || !strings.Contains(out.String(), "  -") {
			t.Errorf("%s -h ends with %v and says %s", s.name, err, out.String())
		}
	}
	if err := run(t.Context(), []string{"nonsense"}, &list, &list); err == nil || !strings.Contains(err.Error(), `"nonsense"`) {
		t.Errorf("a scenario that isn't there: %v", err)
	}
}
