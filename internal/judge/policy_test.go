package judge_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/judge"
)

func TestAttachedTo(t *testing.T) {
	t.Parallel()
	hex := strings.Repeat("0123456789abcdef", 4)
	for _, algorithm := range []string{"sha256", "sha512"} { // of a sha512 the first half
		for _, suffix := range []string{"", ".sig", ".att", ".sbom"} {
			image, ok := judge.AttachedTo(algorithm + "-" + hex + suffix)
			if !ok || image.String() != algorithm+":"+hex {
				t.Errorf("%s, suffix %q: image %q, %v", algorithm, suffix, image, ok)
			}
		}
	}
	for _, tag := range []string{
		"", "latest", "sha256-", "sha256-" + hex[1:], "sha256-" + hex[1:] + ".sig", "sha256-" + hex + ".SIG", "sha256-" + hex + ".sigs",
		"sha256-" + strings.ToUpper(hex) + ".sig", "sha512-" + hex + hex, "sha512-" + hex[1:], "sha384-" + hex, "sha512-" + hex + "0.sig", "xsha256-" + hex + ".sig", "sha256:" + hex, "sha256-" + hex + "0",
		"sha256-" + hex[:63] + "g",
	} {
		if image, ok := judge.AttachedTo(tag); ok {
			t.Errorf("%q belongs to %s", tag, image)
		}
	}
}

func TestCombine(t *testing.T) {
	t.Parallel()
	list := func(ids ...string) (list []judge.Applied) {
		for _, id := range ids {
			list = append(list, judge.Applied{ID: id})
		}
		return list
	}
	for _, tt := range []struct {
		defaults, namespace, repository []judge.Applied
		off                             bool
		want                            string
	}{
		{list("d"), nil, nil, false, "[d]"},
		{list("d"), nil, nil, true, "[]"},
		{list("d"), list("n"), nil, false, "[n]"},
		{list("d"), list("n", "m"), list("r"), false, "[n m r]"},
		{list("d"), nil, list("r"), false, "[d r]"},
		{list("d"), nil, list("r"), true, "[r]"},
		{list("d"), list("n"), nil, true, "[n]"},
		{nil, nil, nil, false, "[]"},
	} {
		got := []string{}
		for _, applied := range judge.Combine(tt.defaults, tt.namespace, tt.repository, tt.off) {
			got = append(got, applied.ID)
		}
		if fmt.Sprint(got) != tt.want {
			t.Errorf("%v, %v, %v, off %v: %v, want %s", tt.defaults, tt.namespace, tt.repository, tt.off, got, tt.want)
		}
	}
}
