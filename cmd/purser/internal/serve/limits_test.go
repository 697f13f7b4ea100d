package serve

import "testing"

// TestConnectionLimits: a process that may open few files accepts fewer connections.
func TestConnectionLimits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ most, ofClient, descriptors, wantMost, wantOfClient int }{
		{10_000, 4_000, 1 << 20, 10_000, 4_000},
		{10_000, 4_000, 1024, 341, 171},
		{10_000, 100, 1024, 341, 100},
		{10_000, 0, 1024, 341, 0},
		{0, 4_000, 1024, 0, 4_000},
		{100, 4_000, 1 << 20, 100, 50},
		{10_000, 4_000, 0, 10_000, 4_000},
	} {
		if most, ofClient := connectionLimits(c.most, c.ofClient, c.descriptors); most != c.wantMost || ofClient != c.wantOfClient {
			t.Errorf("%+v: %d, %d", c, most, ofClient)
		}
	}
}
