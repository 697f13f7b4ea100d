package main

import (
	"regexp"
	"testing"
)

// TestMutationsApply: each mutation still finds its text, once, so a statement isn't changed
// without a look at its mutations.
func TestMutationsApply(t *testing.T) {
	t.Chdir("../..")
	names := make(map[string]bool)
	for _, m := range mutations {
		if _, err := m.apply(); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		if _, err := regexp.Compile(m.run); err != nil || m.run == "" || names[m.name] {
			t.Errorf("%s: the tests are %q, %v; or the name is there twice", m.name, m.run, err)
		}
		names[m.name] = true
	}
}
