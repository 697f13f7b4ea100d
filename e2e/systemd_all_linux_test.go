//go:build all

package e2e

import (
	"net"
	"net/http"
	"testing"
)

// TestPassedSocketDecidesAboutAccess: whether clients must log in depends on the socket that is
// used, not on the address in the configuration, which nobody listens on.
func TestPassedSocketDecidesAboutAccess(t *testing.T) {
	beginOwn(t)
	passed, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer passed.Close()
	m := newServiceManager(t, passed)
	r := m.start(dataDir(t, nil), "--addr", "127.0.0.1:0")
	m.hears("READY=1")
	if status := getStatus(t.Context(), r.URL()+"/v2/"); status != http.StatusUnauthorized {
		t.Errorf("status %d of an address that others can reach, want 401", status)
	}
}
