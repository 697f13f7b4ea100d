package config

import (
	"net"
	"net/mail"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// ACME configures how the registry obtains its TLS certificates from a certificate authority
// (RFC 8555).
type ACME struct {
	Hosts        []string // names that get certificates; empty: ACME is off
	AcceptTerms  bool     // the operator accepts the authority's terms of service
	Email        string   // contact of the account; "": none
	DirectoryURL string
	CAFile       string // path of a PEM file with roots for the authority's server; "": the system's
	HTTPAddr     string // where http-01 challenges are answered, host:port; "": nowhere
}

// validateACME reports incomplete and contradictory settings of ACME.
func (c *Config) validateACME(report reporter) {
	a := c.HTTP.TLS.ACME
	if len(a.Hosts) == 0 {
		for _, key := range []string{"accept_terms", "email", "directory_url", "ca_file", "http_addr"} {
			key = "http.tls.acme." + key
			if setting := settingOf(key); setting.field(c).show() != setting.def {
				report(key, "http.tls.acme.hosts is missing; list the names there that the registry should get certificates for")
			}
		}
		return
	}
	if c.HTTP.TLS.Cert != "" || c.HTTP.TLS.Key != "" {
		report("http.tls.acme.hosts", "the certificate comes from files already (http.tls.cert, http.tls.key); set either the files or ACME")
	}
	if !a.AcceptTerms {
		report("http.tls.acme.accept_terms", "the certificate authority issues certificates only to those who accept its terms of service; "+
			"read them (for Let's Encrypt at https://letsencrypt.org/repository/), then set http.tls.acme.accept_terms: true")
	}
	for _, host := range a.Hosts {
		_, err := netip.ParseAddr(host)
		if err == nil || strings.HasPrefix(host, "*") || !hostPattern.MatchString(host) {
			report("http.tls.acme.hosts", "%q is no name that a certificate can be issued for; write names such as registry.example.com, "+
				"without a scheme, a port and *, with commas between them", host)
		}
	}
	if a.Email != "" {
		if address, err := mail.ParseAddress(a.Email); err != nil || address.Address != a.Email {
			report("http.tls.acme.email", "%q is no address of e-mail; write one such as registry@example.com", a.Email)
		}
	}
	if u, err := url.Parse(a.DirectoryURL); err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.Fragment != "" {
		report("http.tls.acme.directory_url", "it is no https URL of a directory; write it as https://ca.example.com/acme/directory, without a user and a password")
	}
	c.validateHTTPAddr(report)
}

// validateHTTPAddr checks the address for http-01 challenges. Other machines may always reach
// it, since it only answers challenges and redirects to https.
func (c *Config) validateHTTPAddr(report reporter) {
	h := c.HTTP
	addr := h.TLS.ACME.HTTPAddr
	if addr == "" {
		return
	}
	if _, err := parseAddr(addr); err != nil {
		report("http.tls.acme.http_addr", "%v", err)
		return
	}
	if _, port, err := net.SplitHostPort(addr); err == nil && port != "0" && slices.Contains([]string{h.Addr, h.DebugAddr, h.ProfileAddr}, addr) {
		report("http.tls.acme.http_addr", "%s is the address of another listener; choose another", addr)
	}
}
