package distribution

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
)

// FuzzRoute calls match with arbitrary paths. match must not panic. If it finds a route, the
// route's pattern with the returned name and reference filled in must be the path again.
func FuzzRoute(f *testing.F) {
	for _, p := range []string{
		"", "/", "/v2", "/v2/", "/v2//", "/v2/_catalog", "/v2/a/tags/list", "/v2/tags/list/tags/list", "/v2/a/b/manifests/v1",
		"/v2/a/blobs/uploads", "/v2/a/blobs/uploads/", "/v2/a/blobs/uploads/x", "/v2/a/blobs/uploads/blobs/uploads/", "/v2/a/blobs/x",
		"/v2/a/referrers/x", "/v2/x/manifests/y/manifests/z", "/v2//manifests/x", "/v2/a//x", "/v2/\x00/manifests/\xff",
	} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, path string) {
		rt, name, ref := match(path)
		if rt == nil {
			if name != "" || ref != "" {
				t.Fatalf("%q: no route, but name %q and reference %q", path, name, ref)
			}
			return
		}
		joined := strings.NewReplacer("{name}", name, "{ref}", ref).Replace(rt.Pattern)
		if joined != path && joined != path+"/" {
			t.Errorf("%q is %s with %q and %q, which is %q", path, rt.Pattern, name, ref, joined)
		}
		if (name != "") != strings.Contains(rt.Pattern, "{name}") || (ref != "") != strings.Contains(rt.Pattern, "{ref}") || strings.Contains(ref, "/") {
			t.Errorf("%q is %s with %q and %q", path, rt.Pattern, name, ref)
		}
	})
}

// FuzzRouteOfName fills arbitrary valid repository names and tags into the patterns of routes.
// match must find the right route for each path and return the name, even if the name looks
// like a part of a route.
func FuzzRouteOfName(f *testing.F) {
	for _, name := range []string{"a", "a/b", "tags/list", "a/blobs/uploads", "x/manifests/y", "v2", "blobs", "a/referrers"} {
		for _, tag := range []string{"v1", "list", "uploads", "manifests", "_catalog"} {
			f.Add(name, tag)
		}
	}
	digest := oci.Compute(oci.SHA256, nil).String()
	f.Fuzz(func(t *testing.T, name, tag string) {
		if oci.ValidateName(name) != nil || oci.ValidateTag(tag) != nil {
			return
		}
		for pattern, ref := range map[string]string{
			"/v2/{name}/tags/list": "", "/v2/{name}/referrers/{ref}": digest, "/v2/{name}/blobs/uploads/": "",
			"/v2/{name}/blobs/uploads/{ref}": "00000000-0000-4000-8000-000000000000", "/v2/{name}/blobs/{ref}": digest, "/v2/{name}/manifests/{ref}": tag,
		} {
			path := strings.NewReplacer("{name}", name, "{ref}", ref).Replace(pattern)
			if rt, gotName, gotRef := match(path); rt == nil || rt.Pattern != pattern || gotName != name || gotRef != ref {
				t.Errorf("%q leads to %v, %q, %q", path, rt, gotName, gotRef)
			}
		}
	})
}

var simpleRange = regexp.MustCompile(`^bytes=([0-9]{1,18}-[0-9]{0,18}|-[0-9]{1,18})$`)

// hugeNumber matches numbers that may overflow int64. For such a number byteRange and net/http
// differ. By RFC 9110 a range whose last position lies behind the content's end ends with the
// content, however large the position is. net/http refuses a position that overflows int64.
var hugeNumber = regexp.MustCompile(`[0-9]{19}`)

var noBytes = regexp.MustCompile(`^bytes=\s*-0+\s*$`)

// FuzzRange compares byteRange with net/http.ServeContent for arbitrary Range headers. The
// range that byteRange returns must lie within the blob, and be the one that net/http sends.
func FuzzRange(f *testing.F) {
	for _, h := range []string{
		"bytes=0-0", "bytes=0-", "bytes=-1", "bytes=-0", "bytes=5-2", "bytes=9-9", "bytes=10-", "bytes=0-99999999999999999999",
		"bytes=9223372036854775807-", "bytes=-9223372036854775808", "bytes=0-1,2-3", "bytes= 1 - 2", "bytes=--1", "items=0-1", "bytes=+1-2",
	} {
		for _, size := range []uint8{0, 1, 10} {
			f.Add(h, size)
		}
	}
	f.Fuzz(func(t *testing.T, header string, size uint8) {
		if strings.ContainsFunc(header, func(r rune) bool { return r < ' ' || r > '~' }) {
			return // net/http and byteRange may differ in what they take for a space
		}
		r := httptest.NewRequest("GET", "/", nil)
		r.Header["Range"] = []string{header}
		w := httptest.NewRecorder()
		c := &call{ResponseWriter: w, r: r}
		rng, err := c.byteRange(catalog.Blob{Size: int64(size)})
		if rng.off < 0 || rng.length < 0 || rng.off+rng.length > int64(size) {
			t.Fatalf("%q of %d bytes: %+v", header, size, rng)
		}
		ref := httptest.NewRecorder()
		http.ServeContent(ref, r, "", time.Time{}, bytes.NewReader(make([]byte, size)))
		switch {
		case err != nil:
			// By RFC 9110 the server can't satisfy a range of the last 0 bytes ("bytes=-0"), so
			// byteRange answers 416. net/http sends an empty range instead.
			if ref.Code != http.StatusRequestedRangeNotSatisfiable && size > 0 && !noBytes.MatchString(header) {
				t.Errorf("%q of %d bytes is refused (%v), net/http says %d", header, size, err, ref.Code)
			}
		case rng.partial:
			got := fmt.Sprintf("bytes %d-%d/%d", rng.off, rng.off+rng.length-1, size)
			if ref.Code == http.StatusRequestedRangeNotSatisfiable && hugeNumber.MatchString(header) {
				return
			}
			if ref.Code != http.StatusPartialContent || ref.Header().Get("Content-Range") != got {
				t.Errorf("%q of %d bytes is %s, net/http says %d %s", header, size, got, ref.Code, ref.Header().Get("Content-Range"))
			}
		case ref.Code == http.StatusPartialContent && simpleRange.MatchString(header):
			t.Errorf("%q of %d bytes is ignored, net/http says %s", header, size, ref.Header().Get("Content-Range"))
		}
	})
}
