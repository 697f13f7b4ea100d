package ui

import "testing"

// TestRefusedByDocker: pages speak of Docker's setting where Docker doesn't use http by itself.
func TestRefusedByDocker(t *testing.T) {
	t.Parallel()
	for address, want := range map[registryAddress]bool{
		{"127.0.0.1:5000", true}: false, {"127.9.9.9", true}: false, {"[::1]:5000", true}: false, {"[::1]", true}: false,
		{"localhost:5000", true}: false, {"localhost", true}: false,
		{"localhost.example.com", true}: true, {"10.0.0.1:5000", true}: true, {"registry.example.com:5000", true}: true, {"[2001:db8::1]:5000", true}: true,
		{"registry.example.com:5000", false}: false, {"10.0.0.1", false}: false,
	} {
		if got := address.RefusedByDocker(); got != want {
			t.Errorf("%+v: %v", address, got)
		}
	}
}
