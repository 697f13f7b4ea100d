package server

import (
	"net/http"
	"strconv"
	"strings"
)

// ClientAddress removes the port from an address.
func ClientAddress(remote string) string {
	if i := strings.LastIndexByte(remote, ':'); i >= 0 {
		remote = remote[:i]
	}
	return strings.TrimSuffix(strings.TrimPrefix(remote, "["), "]")
}

// ClientPort returns the port of an address, 0 if there is none.
func ClientPort(remote string) int {
	port, err := strconv.ParseUint(remote[strings.LastIndexByte(remote, ':')+1:], 10, 16)
	if err != nil {
		return 0
	}
	return int(port)
}

// MaxKept limits how many bytes of a client's text are kept in memory for an audit
// entry.
const MaxKept = 1024

// Bounded returns the first MaxKept bytes of a text. A cut text is copied, so that the
// whole one can be freed.
func Bounded(s string) string {
	if len(s) <= MaxKept {
		return s
	}
	return strings.Clone(s[:MaxKept])
}

// needsSource says whether a request may write to the audit log, so that its context
// needs the log's source. Pulls, which are the most frequent requests, fill in their own
// entries.
func (s *Server) needsSource(r *http.Request) bool {
	return r.Method != http.MethodGet && r.Method != http.MethodHead || s.mounted(r).ReadsAreLogged
}
