package builtinpg

import "fmt"

const (
	minSharedBuffers = 128 << 20
	maxSharedBuffers = 4 << 30
)

// sharedBuffers returns the value of PostgreSQL's setting shared_buffers for a machine with
// `memory` bytes: an eighth of them, within limits, since the registry and the kernel's page
// cache need memory too. Shared buffers should have room for the database indexes: digests are
// random keys, so once the indexes are larger, almost every row costs a read from the kernel.
// The system allocates shared buffers only as PostgreSQL uses them.
func sharedBuffers(memory int64) string {
	size := min(max(memory/8, minSharedBuffers), maxSharedBuffers)
	return fmt.Sprintf("%dMB", size>>20)
}
