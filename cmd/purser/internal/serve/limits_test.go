package serve

import "testing"

// TestConnectionLimits checks that connectionLimits lowers the limits if the process may
// open few files, and keeps the limit per client below the total.
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
