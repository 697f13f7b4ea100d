package api

import (
	"net/netip"
	"net/url"
)

// DockerRefuses returns the address of a registry, with its port, if Docker doesn't use the registry
// at this URL until its daemon has a setting: it speaks http by itself to addresses of the same
// machine only, and no flag of its commands changes that. Otherwise it returns "".
func DockerRefuses(registry *url.URL) string {
	host := registry.Hostname()
	ip, err := netip.ParseAddr(host)
	if registry.Scheme != "http" || host == "localhost" || err == nil && ip.IsLoopback() {
		return ""
	}
	return registry.Host
}

// DockerSetting is the member of Docker's daemon.json that makes it use the registry at an address
// over http.
func DockerSetting(address string) string { return `"insecure-registries": ["` + address + `"]` }
