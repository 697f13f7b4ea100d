package limit

// Buffer counts the entries of a buffer that namespaces share, and says when it takes no more of one.
// It has places for entries of any namespaces, and half as many again for those of which it has few
// entries: each of them may have an eighth of the places that are still free. So a namespace that
// fills the buffer doesn't keep the entries of others out. A Buffer is used by one goroutine at a time.
type Buffer struct {
	size, n int
	of      map[string]int
}

// NewBuffer returns the counts of an empty buffer with `size` places.
func NewBuffer(size int) *Buffer { return &Buffer{size: size, of: map[string]int{}} }

// Full says whether the buffer takes no more entries of the namespace.
func (b *Buffer) Full(namespace string) bool {
	return b.n >= b.size && b.of[namespace] >= (b.size+b.size/2-b.n)/8
}

// Add says that an entry of the namespace came into the buffer.
func (b *Buffer) Add(namespace string) { b.n++; b.of[namespace]++ }

// Remove says that an entry of the namespace has left the buffer.
func (b *Buffer) Remove(namespace string) {
	b.n--
	if b.of[namespace]--; b.of[namespace] <= 0 {
		delete(b.of, namespace)
	}
}

// Clear says that the buffer is empty.
func (b *Buffer) Clear() { b.n = 0; clear(b.of) }
