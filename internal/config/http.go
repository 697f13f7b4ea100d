package config

import (
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// HTTP configures three listeners: one for the registry, one for metrics and health, and
// one for profiles.
type HTTP struct {
	Addr            string // for the registry, host:port
	DebugAddr       string // for metrics and health, host:port; "" for none
	ProfileAddr     string // for profiles, host:port; may equal DebugAddr; "" for none
	AllowProfiles   bool   // even if other machines can reach the address
	TLS             TLS    // for the registry
	AllowAnonymous  bool
	DrainTimeout    time.Duration
	MaxRequestTime  time.Duration
	HeaderTimeout   time.Duration // for TLS's handshake, and for the header of a request
	BodyIdleTimeout time.Duration
	// The following settings limit what clients may use of the server's resources. 0 means
	// no limit.
	BodyMemory           int64 // bytes
	BodyMemoryShare      int   // percentage of it for one client
	BodyMemoryWait       time.Duration
	MaxConnections       int
	MaxClientConnections int
	// MaxClientRequestRate and MaxAccountRequestRate limit the requests per second of one
	// address and of one account.
	MaxClientRequestRate  int
	MaxAccountRequestRate int
	MinBodyRate           int64 // bytes per second
	MinBodyRateWindow     time.Duration
	AnswerIdleTimeout     time.Duration
	AllowedHosts          []string // accepted host names; "*.example.com" and "*" are allowed too
	// TrustedProxies are the networks of proxies from which the registry accepts the
	// client's address. A proxy names the client in the header that ForwardedHeader
	// selects (auto, x-forwarded-for or forwarded), or, if ProxyProtocol is set, at the
	// beginning of each connection.
	TrustedProxies  []netip.Prefix
	ForwardedHeader string
	ProxyProtocol   bool
	ExternalURL     string // scheme and host without a trailing slash; "": as in the request
}

// TLS says where the registry's certificate comes from: from PEM files with the certificate
// and its private key, or by ACME. Validate refuses both sources together, and one file
// without the other. Without a source, TLS is off.
type TLS struct {
	Cert       string // path
	Key        string // path
	MinVersion string // 1.2 or 1.3
	ACME       ACME
}

// Least returns the lowest version of TLS that the registry speaks, as [crypto/tls] numbers it.
func (t TLS) Least() uint16 {
	if t.MinVersion == "1.3" {
		return tls.VersionTLS13
	}
	return tls.VersionTLS12
}

// Enabled says whether the registry speaks TLS.
func (t TLS) Enabled() bool { return t.Cert != "" || len(t.ACME.Hosts) > 0 }

// Hosts returns the host names that requests to the listener at the address `addr` may
// have: the names in the settings http.allowed_hosts and http.tls.acme.hosts, the host of
// http.external_url, and the host in addr.
func (h HTTP) Hosts(addr string) []string {
	names := slices.Concat(h.AllowedHosts, h.TLS.ACME.Hosts)
	if u, err := url.Parse(h.ExternalURL); err == nil && u.Hostname() != "" {
		names = append(names, u.Hostname())
	}
	if host, _, err := net.SplitHostPort(addr); err == nil && host != "" {
		names = append(names, host)
	}
	return names
}

// deriveProfiles sets ProfileAddr to its default, unless the setting was given a value
// (`isSet`). The default is DebugAddr if only this machine can reach that address,
// otherwise "".
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
	if !h.TLS.Enabled() && c.isSet("http.tls.min_version") {
		report("http.tls.min_version", "there is no certificate, so the registry doesn't speak TLS; set http.tls.cert and http.tls.key or http.tls.acme, or remove it")
	}
	c.validateACME(report)
	for _, name := range h.AllowedHosts {
		if err := checkHost(name); err != nil {
			report("http.allowed_hosts", "%v", err)
		}
	}
	if h.ProxyProtocol && len(h.TrustedProxies) == 0 {
		report("http.proxy_protocol", "http.trusted_proxies is empty, so no header would be believed; name the addresses of the proxies there")
	}
	if h.ExternalURL != "" {
		u, err := url.Parse(h.ExternalURL)
		if err == nil && u.Host != "" && strings.Trim(u.Path, "/") != "" {
			report("http.external_url", "it may not have a path: clients look for a registry at the root of a host, at /v2/; give it a host of its own")
		} else if _, err := parseHTTPURL(h.ExternalURL); err != nil {
			report("http.external_url", "%v", err)
		} else if strings.HasSuffix(h.ExternalURL, "/") {
			report("http.external_url", "remove the slash at its end")
		}
	}
}

// validateAddresses reports an error in two cases: other machines can reach the registry,
// auth.enabled is false, and http.allow_anonymous isn't set; or they can reach the
// profiles, and http.allow_profiles isn't set. Other machines may always reach metrics and
// health, since these disclose nothing about the registry's content.
func (c *Config) validateAddresses(report reporter) {
	h := c.HTTP
	for _, a := range []struct {
		key, addr string
		consent   bool
		why       string
	}{
		{"http.addr", h.Addr, c.Auth.Enabled || h.AllowAnonymous, "nobody needs to log in; remove auth.enabled: false, listen on a loopback address " +
			"such as 127.0.0.1, behind a proxy that asks who it is, or set http.allow_anonymous: true (serve --allow-anonymous)"},
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

// parseAddr checks that `addr` has the form host:port, and returns whether only this
// machine can reach it. An empty host means all of the machine's addresses. parseAddr
// doesn't look up host names: "localhost" is the only name that it counts as loopback.
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

// checkHost checks one entry of http.allowed_hosts.
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

// networkWords are abbreviations for networks in http.trusted_proxies.
var networkWords = map[string][]string{
	"loopback": {"127.0.0.0/8", "::1/128"},
	"private":  {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"},
}

// networksField is a setting whose value is a list of networks, addresses, and words of
// networkWords, separated by commas.
type networksField struct{ p *[]netip.Prefix }

func (f networksField) set(text string) error {
	return f.setList(splitList(text, ','))
}

func (f networksField) setList(names []string) error {
	var list []netip.Prefix
	for _, name := range names {
		words, ok := networkWords[strings.ToLower(name)]
		if !ok {
			words = []string{name}
		}
		for _, word := range words {
			network, err := parseNetwork(word)
			if err != nil {
				return err
			}
			list = append(list, network)
		}
	}
	*f.p = list
	return nil
}

func (f networksField) show() string {
	names := make([]string, len(*f.p))
	for i, network := range *f.p {
		names[i] = network.String()
	}
	return strings.Join(names, ", ")
}

// parseNetwork parses a network such as 10.0.0.0/8. If `text` is a single address, it
// returns the network that contains only this address.
func parseNetwork(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
		addr = addr.Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	network, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		words := slices.Sorted(maps.Keys(networkWords))
		return netip.Prefix{}, fmt.Errorf("%q is no network; write networks such as 10.0.0.0/8 or 2001:db8::/32, addresses, or %s, with commas between them",
			text, strings.Join(words, ", "))
	case network.Addr().Is4In6():
		return netip.Prefix{}, fmt.Errorf("%q is IPv4 within IPv6; write it as IPv4", text)
	case network.Bits() == 0:
		return netip.Prefix{}, fmt.Errorf("%q is everybody, so that each client could choose the address that counts as its own; name the proxies", text)
	case network != network.Masked():
		return netip.Prefix{}, fmt.Errorf("%q isn't the address of a network; write %s for the network, or %s for the one address",
			text, network.Masked(), network.Addr())
	}
	return network, nil
}
