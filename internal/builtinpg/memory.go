package builtinpg

import "fmt"

const (
	minSharedBuffers = 128 << 20
	maxSharedBuffers = 4 << 30
)

// sharedBuffers returns the setting shared_buffers for a machine with so many bytes of memory:
// an eighth of the memory, within limits, since the registry and the kernel's page cache need
// memory too. It should hold the indexes: digests are random keys, so once the indexes are
// larger, almost every row costs a read from the kernel. The system allocates this memory only
// as PostgreSQL uses it.
func sharedBuffers(memory int64) string {
	size := min(max(memory/8, minSharedBuffers), maxSharedBuffers)
	return fmt.Sprintf("%dMB", size>>20)
}
