package config

import (
	"fmt"
	"strings"
)

// ReachedBy returns the settings that say that others than this machine reach the registry.
// They are http.addr if it isn't on loopback, and otherwise those that are for a proxy on this
// machine: names and addresses by which the registry would have no use if only this machine
// reached it. An invalid http.addr, which Validate reports, counts as one that other machines
// reach.
func (h HTTP) ReachedBy() (keys []string) {
	if loopback, err := parseAddr(h.Addr); err != nil || !loopback {
		return []string{"http.addr"}
	}
	for _, s := range []struct {
		key string
		set bool
	}{
		{"http.external_url", h.ExternalURL != ""},
		{"http.trusted_proxies", len(h.TrustedProxies) > 0},
		{"http.allowed_hosts", len(h.AllowedHosts) > 0},
		{"http.tls.acme.hosts", len(h.TLS.ACME.Hosts) > 0},
	} {
		if s.set {
			keys = append(keys, s.key)
		}
	}
	return keys
}

// Place returns the address by which the most others reach the registry: http.external_url, else
// http.addr.
func (h HTTP) Place() string {
	if h.ExternalURL != "" {
		return h.ExternalURL
	}
	return h.Addr
}

// Exposed says that everybody who reaches the registry may do everything, and that others than
// this machine reach it.
func (c *Config) Exposed() bool { return !c.Auth.Enabled && len(c.HTTP.ReachedBy()) > 0 }

// Access says in a sentence who has to log in, why, and by which setting that changes.
func (c *Config) Access() string {
	because := strings.Join(c.HTTP.ReachedBy(), ", ")
	said := "auth.enabled (" + c.Source("auth.enabled") + ")"
	if !c.isSet("auth.enabled") {
		said = "http.allow_anonymous (" + c.Source("http.allow_anonymous") + ")"
	}
	switch {
	case c.Auth.Enabled && c.isSet("auth.enabled"):
		return fmt.Sprintf("Clients log in, as %s says.", said)
	case c.Auth.Enabled && because == "http.addr":
		return fmt.Sprintf("Clients log in, since other machines reach http.addr (%s).", c.HTTP.Addr)
	case c.Auth.Enabled:
		return fmt.Sprintf("Clients log in, since others reach the registry through a proxy, by %s. Say auth.enabled: false to let everybody do everything.", because)
	case c.Auth.LocalOnly:
		return fmt.Sprintf("Nobody logs in: %s is on loopback, and no setting says that others reach it. Requests that come through a proxy are refused. Say auth.enabled: true to have clients log in.", c.HTTP.Addr)
	case because != "":
		return fmt.Sprintf("Nobody logs in, as %s says, and others reach the registry, by %s: everybody who reaches %s may push, delete and administer.", said, because, c.HTTP.Place())
	}
	return fmt.Sprintf("Nobody logs in, as %s says: everybody who reaches %s may push, delete and administer.", said, c.HTTP.Addr)
}
