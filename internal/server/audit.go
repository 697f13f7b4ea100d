package server

import (
	"net/http"
	"strconv"
	"strings"
)

// ClientAddress returns the host of an address of the form HOST:PORT, without the brackets of
// an IPv6 address.
func ClientAddress(remote string) string {
	if i := strings.LastIndexByte(remote, ':'); i >= 0 {
		remote = remote[:i]
	}
	return strings.TrimSuffix(strings.TrimPrefix(remote, "["), "]")
}

// ClientPort returns the port of an address of the form HOST:PORT. It returns 0 if the address
// has no valid port.
func ClientPort(remote string) int {
	port, err := strconv.ParseUint(remote[strings.LastIndexByte(remote, ':')+1:], 10, 16)
	if err != nil {
		return 0
	}
	return int(port)
}

// MaxKept limits how many bytes of a text from a client, such as a User-Agent header, stay in
// memory until the audit entry is written.
const MaxKept = 1024

// Bounded returns `s` if it has at most MaxKept bytes, else a copy of its first MaxKept bytes.
// It copies them, since a substring would keep the whole of `s` in memory.
func Bounded(s string) string {
	if len(s) <= MaxKept {
		return s
	}
	return strings.Clone(s[:MaxKept])
}

// needsSource says whether the request's context must contain the audit source: the client that
// audit entries name. It must if the request's handler may call functions that write audit
// entries and take the client from the context. GET and HEAD requests of the OCI API, the most
// frequent requests, don't need the audit source, because their handler itself puts the client
// into the audit entry of a pull (recordPull of package distribution).
func (s *Server) needsSource(r *http.Request) bool {
	return r.Method != http.MethodGet && r.Method != http.MethodHead || s.mounted(r).ReadsAreLogged
}
