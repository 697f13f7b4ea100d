package builtinpg

import "testing"

func TestSharedBuffers(t *testing.T) {
	t.Parallel()
	for memory, want := range map[int64]string{
		0:         "128MB",
		512 << 20: "128MB",
		8 << 30:   "1024MB",
		24 << 30:  "3072MB",
		1 << 40:   "4096MB",
	} {
		if got := sharedBuffers(memory); got != want {
			t.Errorf("%d MiB of memory: shared_buffers is %s, want %s", memory>>20, got, want)
		}
	}
}
