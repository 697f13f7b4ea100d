package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// HTTP is how Purser listens, for three things apart: the registry, metrics with
// health, and profiles.
type HTTP struct {
	Addr            string // of the registry, host:port
	DebugAddr       string // of metrics and health, host:port; "" for none
	ProfileAddr     string // of profiles, host:port, that of DebugAddr for both on one; "" for none
	AllowProfiles   bool   // off loopback
	TLS             TLS    // of the registry
	AllowAnonymous  bool
	DrainTimeout    time.Duration
	MaxRequestTime  time.Duration
	BodyIdleTimeout time.Duration
	// Limits of what clients may hold, 0: none.
	BodyMemory           int64 // bytes
	BodyMemoryShare      int   // percent of it for one client
	BodyMemoryWait       time.Duration
	MaxConnections       int
	MaxClientConnections int
	MinBodyRate          int64 // bytes a second
	MinBodyRateWindow    time.Duration
	AnswerIdleTimeout    time.Duration
	AllowedHosts         []string // names that requests may come under, "*.example.com" and "*" included
	ExternalURL          string   // scheme and host without a slash behind, "" for what the request says
}

// TLS is a certificate and its key, both PEM files or both "".
type TLS struct {
	Cert string
	Key  string
}

// Hosts returns the names that the settings give to what listens at addr, one of
// those above: allowed ones, that of the external URL, and that of addr itself.
func (h HTTP) Hosts(addr string) []string {
	names := append([]string{}, h.AllowedHosts...)
	if u, err := url.Parse(h.ExternalURL); err == nil && u.Hostname() != "" {
		names = append(names, u.Hostname())
	}
	if host, _, err := net.SplitHostPort(addr); err == nil && host != "" {
		names = append(names, host)
	}
	return names
}

// deriveProfiles puts the profiles beside the metrics where only this machine
// reaches them, unless they have an address of their own.
func (h *HTTP) deriveProfiles(isSet bool) {
	if isSet {
		return
	}
	h.ProfileAddr = ""
	if loopback, err := parseAddr(h.DebugAddr); err == nil && loopback {
		h.ProfileAddr = h.DebugAddr
	}
}

type reporter = func(key, format string, args ...any)

func (c *Config) validateHTTP(report reporter) {
	h := c.HTTP
	c.validateAddresses(report)
	if h.TLS.Cert != "" && h.TLS.Key == "" {
		report("http.tls.cert", "http.tls.key is missing; set both or neither")
	}
	if h.TLS.Key != "" && h.TLS.Cert == "" {
		report("http.tls.key", "http.tls.cert is missing; set both or neither")
	}
	for _, name := range h.AllowedHosts {
		if err := checkHost(name); err != nil {
			report("http.allowed_hosts", "%v", err)
		}
	}
	if h.ExternalURL != "" {
		if _, err := parseHTTPURL(h.ExternalURL); err != nil {
			report("http.external_url", "%v", err)
		} else if strings.HasSuffix(h.ExternalURL, "/") {
			report("http.external_url", "remove the slash at its end")
		}
	}
}

// validateAddresses asks for a consent where other machines reach what needs one:
// the registry, where nobody needs to log in, and profiles. Metrics and health
// tell nothing of what is stored and need none.
func (c *Config) validateAddresses(report reporter) {
	h := c.HTTP
	for _, a := range []struct {
		key, addr string
		consent   bool
		why       string
	}{
		{"http.addr", h.Addr, h.AllowAnonymous, "nobody needs to log in; listen on a loopback address such as 127.0.0.1, " +
			"behind a proxy that asks who it is, or set http.allow_anonymous: true (serve --allow-anonymous)"},
		{"http.debug_addr", h.DebugAddr, true, ""},
		{"http.profile_addr", h.ProfileAddr, h.AllowProfiles, "profiles show what is in memory, passwords too; listen on a loopback " +
			"address such as 127.0.0.1 and reach it through a tunnel (ssh -L, kubectl port-forward), or set http.allow_profiles: true"},
	} {
		if a.addr == "" && a.key != "http.addr" || a.key == "http.profile_addr" && !c.isSet(a.key) {
			continue
		}
		loopback, err := parseAddr(a.addr)
		if err != nil {
			report(a.key, "%v", err)
		} else if !loopback && !a.consent {
			report(a.key, "%s can be reached from other machines and %s", a.addr, a.why)
		}
		if a.key != "http.addr" && a.addr == h.Addr && !strings.HasSuffix(a.addr, ":0") {
			report(a.key, "http.addr is the same address; choose another port, or \"off\"")
		}
	}
}

// parseAddr checks host:port and tells whether it is reached from this machine
// only. An empty host stands for all addresses. The name of a host isn't looked
// up, so only localhost counts as loopback.
func parseAddr(addr string) (loopback bool, err error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return false, fmt.Errorf("%q is no host:port; write it as 127.0.0.1:5000 or [::1]:5000", addr)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || port != strconv.FormatUint(n, 10) {
		return false, fmt.Errorf("%q has no port from 0 to 65535", addr)
	}
	if strings.EqualFold(host, "localhost") {
		return true, nil
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback(), nil
}

var hostPattern = regexp.MustCompile(`^(\*\.)?[a-zA-Z0-9_-]+(\.[a-zA-Z0-9_-]+)*$`)

// checkHost checks one of http.allowed_hosts.
func checkHost(name string) error {
	if name == "*" || hostPattern.MatchString(name) {
		return nil
	}
	if ip, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")); err == nil && ip.Zone() == "" {
		return nil
	}
	if host, port, err := net.SplitHostPort(name); err == nil && strings.Trim(port, "0123456789") == "" {
		return fmt.Errorf("%q has a port, and ports don't count; write %q", name, host)
	}
	return fmt.Errorf("%q is no name of a host; write names such as registry.example.com, *.example.com for all below, "+
		"or addresses, without a scheme and a port, with commas between them", name)
}
