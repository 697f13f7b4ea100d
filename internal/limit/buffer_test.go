package limit

import (
	"fmt"
	"testing"
)

// TestBufferOfOneNamespace: a namespace, or very many, fill a buffer. Another one still has room there,
// and the buffer is bounded. What leaves the buffer makes room again.
func TestBufferOfOneNamespace(t *testing.T) {
	t.Parallel()
	const size = 1000
	fill := func(b *Buffer, namespace string, most int) (n int) {
		for n < most && !b.Full(namespace) {
			b.Add(namespace)
			n++
		}
		return n
	}
	b := NewBuffer(size)
	if n := fill(b, "flood", 10*size); n != size {
		t.Errorf("one namespace has %d places, want %d", n, size)
	}
	if n := fill(b, "acme", 10*size); n < 30 || n > size/16 {
		t.Errorf("another one has %d places", n)
	}
	for i := range 1000 {
		fill(b, fmt.Sprint("flood", i), 10)
	}
	if b.n > size+size/2 || b.Full("newcomer") && b.n < size+size/2-8 {
		t.Errorf("%d entries of many namespaces, and no room for a newcomer: %v", b.n, b.Full("newcomer"))
	}
	for range size {
		b.Remove("flood")
	}
	if b.Full("flood") || b.of["flood"] != 0 {
		t.Errorf("%d entries are left, %d of the flood", b.n, b.of["flood"])
	}
	b.Clear()
	if n := fill(b, "acme", 10*size); n != size {
		t.Errorf("after Clear one namespace has %d places", n)
	}
}
