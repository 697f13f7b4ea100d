package distribution_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/purser-registry/purser/internal/audit"
)

// answerWatch calls `begin` when the first byte of an answer is written.
type answerWatch struct {
	*httptest.ResponseRecorder
	begin func()
}

func (w *answerWatch) WriteHeader(code int) {
	w.begin()
	w.ResponseRecorder.WriteHeader(code)
}

func (w *answerWatch) Write(b []byte) (int, error) {
	w.begin()
	return w.ResponseRecorder.Write(b)
}

// A use must be recorded before the client gets the first byte of its answer: otherwise a client
// may have its image while nobody knows of the use.
func TestUseIsRecordedBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	r, recorder := recording(t)
	const path = "acme/app"
	d := r.Put(t, path, "v1", r.Simple(t, path, 1, nil))
	for i, ref := range []string{"v1", d.String()} {
		before := recorder.Pending()
		waiting := -1
		w := &answerWatch{httptest.NewRecorder(), func() {
			if waiting < 0 {
				waiting = recorder.Pending() - before
			}
		}}
		req := httptest.NewRequestWithContext(audit.WithSource(t.Context(), audit.Source{}), http.MethodGet, "/v2/"+path+"/manifests/"+ref, http.NoBody)
		req.Host, req.RemoteAddr = r.Listener.Addr().String(), "127.0.0.1:4711"
		r.Handler.ServeHTTP(w, req)
		if w.Code != http.StatusOK || waiting != 1 {
			t.Errorf("pull %d: %d, with %d entries when the answer began, want 1", i, w.Code, waiting)
		}
	}
}
