package api

import (
	"net/url"
	"testing"
)

// TestDockerRefuses: commands of Docker come with a word about its setting where Docker doesn't use
// http by itself.
func TestDockerRefuses(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"http://127.0.0.1:5000": "", "http://127.9.9.9": "", "http://[::1]:5000": "", "http://[::1]": "",
		"http://localhost:5000": "", "http://localhost": "",
		"http://localhost.example.com": "localhost.example.com", "http://10.0.0.1:5000": "10.0.0.1:5000",
		"http://registry.example.com:5000": "registry.example.com:5000", "http://[2001:db8::1]:5000": "[2001:db8::1]:5000",
		"https://registry.example.com:5000": "", "https://10.0.0.1": "",
	} {
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		if got := DockerRefuses(u); got != want {
			t.Errorf("%s: %q, want %q", address, got, want)
		}
	}
}
