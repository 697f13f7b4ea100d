package builtinpg

import "fmt"

const (
	minSharedBuffers = 128 << 20
	maxSharedBuffers = 4 << 30
)

// sharedBuffers is the setting shared_buffers for a machine with so many bytes
// of memory: an eighth of it, since the registry and the kernel's own cache live
// there too. Digests are random keys, so once the indexes outgrow this every row
// costs a page from the kernel. The system hands the memory out only as pages
// are used.
func sharedBuffers(memory int64) string {
	size := min(max(memory/8, minSharedBuffers), maxSharedBuffers)
	return fmt.Sprintf("%dMB", size>>20)
}
