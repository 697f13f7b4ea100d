package limit

import "net/http"

// IsSpare says whether a request came on a connection in one of the spare places, which are for
// requests that must be answered although all other places are taken. The caller refuses other
// requests there, and closes the connection after each.
func IsSpare(r *http.Request) bool {
	c, ok := r.Context().Value(connKey{}).(*conn)
	return ok && c.spare
}
