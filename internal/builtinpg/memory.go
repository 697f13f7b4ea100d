package builtinpg

import "fmt"

const (
	minSharedBuffers = 128 << 20
	maxSharedBuffers = 4 << 30
)

// sharedBuffers returns the setting shared_buffers for a machine with so many bytes of
// memory: an eighth of it, since the registry and the kernel's page cache need memory
// too. Digests are random keys, so once the indexes exceed shared_buffers, almost every
// row costs a read from the kernel. The system allocates the memory only as pages are
// used.
func sharedBuffers(memory int64) string {
	size := min(max(memory/8, minSharedBuffers), maxSharedBuffers)
	return fmt.Sprintf("%dMB", size>>20)
}
