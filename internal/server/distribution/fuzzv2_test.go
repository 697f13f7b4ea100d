package distribution_test

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/oci"
)

// FuzzV2 sends requests with arbitrary method, path, body and one header. No request may cause
// a panic or a server error (status 500 and above). Every other error must have the format of
// the OCI Distribution Specification.
func FuzzV2(f *testing.F) {
	r := setup(f)
	d := r.Put(f, "a", "v1", r.Simple(f, "a", 1, nil)).String()
	at := r.StartUpload(f, "a", "")
	for _, path := range []string{
		"/", "/v2/", "/v2/_catalog?n=1&last=a", "/v2/a/tags/list?n=1&last=v0", "/v2/a/tags/list?last=%00", "/v2/a/referrers/" + d + "?artifactType=x&last=1",
		"/v2/a/manifests/v1", "/v2/a/manifests/" + d + "?tag=a&tag=b", "/v2/a/blobs/" + digest("{}").String(), at, at + "?digest=" + digest("x").String(),
		"/v2/b/blobs/uploads/?mount=" + digest("{}").String() + "&from=a", "/v2/b/blobs/uploads/?digest-algorithm=sha512", "/v2/%ff/manifests/%00", "/v2/a/manifests/%ff",
	} {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "X"} {
			f.Add(method, path, "Range", "bytes=0-1", "x")
		}
	}
	f.Add("PATCH", at, "Content-Range", "0-0", "x")
	f.Add("GET", "/v2/a/manifests/v1", "If-None-Match", "W/*,\"", "")
	f.Add("PUT", "/v2/a/manifests/v2", "Content-Type", oci.MediaTypeImageIndex, `{"schemaVersion":2,"manifests":[]}`)
	f.Add("PUT", "/v2/a/manifests/v2", "Content-Type", ";", `{"schemaVersion":2,"manifests":[],"annotations":{"\ud800":"\u0000"}}`)
	f.Fuzz(func(t *testing.T, method, path, name, value, body string) {
		raw := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: registry\r\n%s: %s\r\nContent-Length: %d\r\n\r\n%s", method, path, name, value, len(body), body)
		req, err := http.ReadRequest(bufio.NewReader(strings.NewReader(raw)))
		if err != nil {
			return // net/http refuses it before any handler
		}
		w := httptest.NewRecorder()
		r.Handler.ServeHTTP(w, req.WithContext(t.Context()))
		if w.Code >= 500 {
			t.Fatalf("%q: %d %s; log: %v", raw, w.Code, w.Body, r.Log.Records(t, "request failed"))
		}
		if w.Code >= 400 && w.Code != http.StatusRequestedRangeNotSatisfiable && req.Method != "HEAD" && w.Body.Len() > 0 {
			res := w.Result()
			res.Request = req
			answer{Response: res, Content: w.Body.Bytes()}.Code(t)
		}
	})
}
