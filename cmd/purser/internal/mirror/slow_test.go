package mirror

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/upstream"
)

// TestSilence expects errors if the source stops, or sends a byte now and then.
func TestSilence(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/v2/", "/v2/_catalog", "/v2/app/tags/list", "/v2/app/manifests/sha256", "/v2/app/blobs/", "/v2/app/referrers/"} {
		for _, how := range []string{"no answer", "stops", "drips"} {
			t.Run(how+" "+path, func(t *testing.T) {
				t.Parallel()
				s, d := newSource(t), newDestination(t)
				s.image(strings.Repeat("x", 100_000), "v1")
				s.answer = func(w http.ResponseWriter, r *http.Request) bool {
					hit := strings.HasPrefix(r.URL.Path, path) && (path != "/v2/" || r.URL.Path == path)
					if !hit {
						return false
					}
					if how == "no answer" {
						<-r.Context().Done()
						return true
					}
					if strings.Contains(path, "referrers") {
						w.Header().Set("Content-Type", "application/vnd.oci.image.index.v1+json")
					}
					if path == "/v2/" { // the text of an error is read
						w.WriteHeader(http.StatusForbidden)
					}
					for r.Context().Err() == nil {
						w.Write([]byte(" "))     //nolint:errcheck // the client may have gone
						w.(http.Flusher).Flush() //nolint:forcetypeassert // of net/http
						wait := 20 * time.Millisecond
						if how == "stops" {
							wait = time.Hour
						}
						select {
						case <-r.Context().Done():
						case <-time.After(wait):
						}
					}
					return true
				}
				_, tags, err := copyAll(t, d, Options{Source: s.host(), Limits: upstream.Limits{Silence: 500 * time.Millisecond, Rate: 1000}})
				text := problem(t, tags, err)
				if want := map[string]string{"no answer": "nothing came", "stops": "nothing came", "drips": "too slowly"}[how]; !strings.Contains(text, want) && path != "/v2/" {
					t.Errorf("%q", text)
				}
			})
		}
	}
}
