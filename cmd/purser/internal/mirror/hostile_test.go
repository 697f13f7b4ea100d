package mirror

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unicode"

	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/upstream"
)

// TestCopies expects that a copy brings an index with its images and what is attached, and that
// the next one finds nothing to do.
func TestCopies(t *testing.T) {
	t.Parallel()
	s, d := newSource(t), newDestination(t)
	one, two := s.image("one", "v1"), s.image("two")
	inner := s.manifest(index(one, two))
	s.manifest(index(inner, one, two), "all") // each image twice, in and beside an index
	s.referrers[digest(two)] = index(s.image("signature"))
	sum, tags, err := copyAll(t, d, Options{Source: s.host(), To: "here"})
	if err != nil || sum != (Summary{Repositories: 1, Copied: 2, Attached: 1}) {
		t.Fatalf("%+v %+v %v", sum, tags, err)
	}
	if len(slices.Compact(slices.Sorted(slices.Values(d.put)))) != len(d.put) {
		t.Errorf("a manifest was put twice: %q", d.put)
	}
	sum, tags, err = copyAll(t, d, Options{Source: s.host() + "/app", To: "here/app"})
	if err != nil || sum != (Summary{Repositories: 1, UpToDate: 2}) {
		t.Errorf("again: %+v %+v %v", sum, tags, err)
	}
}

// TestEmptiedRepository expects that a repository that the catalog lists and of whose tags the source
// knows nothing, as distribution answers when all were deleted, doesn't fail the copy of a registry. One
// that somebody names does, and any other answer does.
func TestEmptiedRepository(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		path, body string
		status     int
		want       Summary
	}{
		{"", `{"errors":[{"code":"NAME_UNKNOWN","message":"repository name not known to registry"}]}`, 404, Summary{Repositories: 2, Empty: 1, Copied: 1}},
		{"/emptied", `{"errors":[{"code":"NAME_UNKNOWN"}]}`, 404, Summary{Repositories: 1, Failed: 1}},
		{"", `not found`, 404, Summary{Repositories: 2, Copied: 1, Failed: 1}},
		{"", `{"errors":[{"code":"DENIED"}]}`, 404, Summary{Repositories: 2, Copied: 1, Failed: 1}},
		{"", `{"errors":[{"code":"NAME_UNKNOWN"}]}`, 403, Summary{Repositories: 2, Copied: 1, Failed: 1}},
	} {
		s, d := newSource(t), newDestination(t)
		s.image("one", "v1")
		s.answer = func(w http.ResponseWriter, r *http.Request) bool {
			switch r.URL.Path {
			case "/v2/_catalog":
				w.Write([]byte(`{"repositories":["app","emptied"]}`)) //nolint:errcheck // the client may have gone
			case "/v2/emptied/tags/list":
				w.WriteHeader(c.status)
				w.Write([]byte(c.body)) //nolint:errcheck // as above
			default:
				return false
			}
			return true
		}
		if sum, tags, err := copyAll(t, d, Options{Source: s.host() + c.path}); err != nil || sum != c.want {
			t.Errorf("%q, %d %s: %+v, want %+v: %+v %v", c.path, c.status, c.body, sum, c.want, tags, err)
		}
	}
}

// TestCopyByAPI expects that the repositories that a product's API lists are copied, though the registry has
// no catalog, and that the API isn't asked for one repository.
func TestCopyByAPI(t *testing.T) {
	t.Parallel()
	s, d := newSource(t), newDestination(t)
	s.image("one", "v1")
	s.answer = func(w http.ResponseWriter, r *http.Request) bool {
		switch r.URL.Path {
		case "/v2/_catalog":
			w.WriteHeader(http.StatusUnauthorized)
		case "/api/v2.0/projects":
			w.Write([]byte(`[{"name":"app"}]`)) //nolint:errcheck // the client may have gone
		case "/api/v2.0/projects/app/repositories":
			w.Write([]byte(`[{"name":"app"}]`)) //nolint:errcheck // as above
		default:
			return false
		}
		return true
	}
	if _, _, err := copyAll(t, d, Options{Source: s.host()}); err == nil || !strings.Contains(err.Error(), "--catalog") {
		t.Errorf("without a catalog: %v", err)
	}
	harbor := upstream.Catalog{Kind: upstream.Harbor}
	if sum, tags, err := copyAll(t, d, Options{Source: s.host(), Catalog: harbor, To: "here"}); err != nil || sum != (Summary{Repositories: 1, Copied: 1}) {
		t.Errorf("%+v %+v %v", sum, tags, err)
	}
	if _, _, err := copyAll(t, d, Options{Source: s.host() + "/app", Catalog: harbor}); err == nil || !strings.Contains(err.Error(), "one repository") {
		t.Errorf("one repository: %v", err)
	}
}

// TestPagesInCircle expects an error if a page of a list names itself, or one before, as the next.
func TestPagesInCircle(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/v2/_catalog", "/v2/app/tags/list"} {
		for _, next := range []func(*http.Request) string{
			func(r *http.Request) string { return r.URL.String() },
			func(r *http.Request) string {
				return r.URL.Path + "?last=" + strings.Repeat("x", 3-len(r.FormValue("last")))
			},
		} {
			s, d := newSource(t), newDestination(t)
			s.image("one", "v1")
			s.answer = func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == path {
					w.Header().Set("Link", "<"+next(r)+`>; rel="next"`)
				}
				return false
			}
			_, tags, err := copyAll(t, d, Options{Source: s.host()})
			if text := problem(t, tags, err); !strings.Contains(text, "circle") || s.requests.Load() > 20 {
				t.Errorf("%s: %s, after %d requests", path, text, s.requests.Load())
			}
		}
	}
}

// TestReferrersInCircle expects that manifests that are attached to one another are visited once.
func TestReferrersInCircle(t *testing.T) {
	t.Parallel()
	s, d := newSource(t), newDestination(t)
	image := s.image("one", "v1")
	var all [][]byte
	for i := range 20 {
		all = append(all, s.image(fmt.Sprint("referrer ", i)))
	}
	for _, m := range append(all, image) {
		s.referrers[digest(m)] = index(all...)
	}
	sum, tags, err := copyAll(t, d, Options{Source: s.host() + "/app"})
	if err != nil || sum.Attached != 20 || sum.Failed > 0 || s.requests.Load() > 200 {
		t.Errorf("%+v %+v %v, after %d requests", sum, tags, err, s.requests.Load())
	}
}

// TestEndlessReferrers expects an error if what is attached has something attached, and so on.
func TestEndlessReferrers(t *testing.T) {
	t.Parallel()
	s, d := newSource(t), newDestination(t)
	last := s.image("one", "v1")
	for i := range 30 {
		next := s.image(fmt.Sprint("referrer ", i))
		s.referrers[digest(last)] = index(next)
		last = next
	}
	_, tags, err := copyAll(t, d, Options{Source: s.host() + "/app"})
	if text := problem(t, tags, err); !strings.Contains(text, "deep") {
		t.Error(text)
	}
}

// TestManyPaths expects that an image to which 30 to the power of 6 paths lead is visited once.
func TestManyPaths(t *testing.T) {
	t.Parallel()
	s, d := newSource(t), newDestination(t)
	m := s.image("one")
	for range 6 {
		m = s.manifest(index(slices.Repeat([][]byte{m}, 30)...))
	}
	s.manifest(m, "v1")
	sum, tags, err := copyAll(t, d, Options{Source: s.host() + "/app"})
	if err != nil || sum.Copied != 1 || s.requests.Load() > 50 {
		t.Errorf("%+v %+v %v, after %d requests", sum, tags, err, s.requests.Load())
	}
}

// TestRedirects expects errors for redirects that lead back, and for too many.
func TestRedirects(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/v2/", "/v2/_catalog", "/v2/app/tags/list", "/v2/app/manifests/", "/v2/app/blobs/", "/v2/app/referrers/"} {
		for _, to := range []func(*http.Request) string{
			func(r *http.Request) string { return r.URL.String() },
			func(r *http.Request) string { return r.URL.Path + "?x=" + r.FormValue("x") + "x" },
		} {
			s, d := newSource(t), newDestination(t)
			s.image("one", "v1")
			s.answer = func(w http.ResponseWriter, r *http.Request) bool {
				hit := strings.HasPrefix(r.URL.Path, path) && (path != "/v2/" || r.URL.Path == path)
				if hit {
					http.Redirect(w, r, to(r), http.StatusTemporaryRedirect)
				}
				return hit
			}
			_, tags, err := copyAll(t, d, Options{Source: s.host()})
			if text := problem(t, tags, err); !strings.Contains(text, "redirect") || s.requests.Load() > 60 {
				t.Errorf("%s: %s, after %d requests", path, text, s.requests.Load())
			}
		}
	}
}

// allocated returns how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestMemory expects errors, and no more memory than limits allow, for lists without an end and for
// manifests that are too large. It counts the memory of the whole process, so it runs alone.
//
//nolint:paralleltest // see above
func TestMemory(t *testing.T) {
	names := func(w http.ResponseWriter, page int) {
		var b bytes.Buffer
		for i := range 1000 {
			fmt.Fprintf(&b, `,"%0100d/%d"`, page, i)
		}
		fmt.Fprintf(w, `{"repositories":[%s]}`, b.Bytes()[1:]) //nolint:errcheck // the client may have gone
	}
	var bomb bytes.Buffer
	z, err := gzip.NewWriterLevel(&bomb, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	part := bytes.Repeat([]byte(`,"`+strings.Repeat("a", 125)+`"`), 1<<12)
	z.Write([]byte(`{"tags":["a"`)) //nolint:errcheck // into memory
	for range 1 << 7 {
		z.Write(part) //nolint:errcheck // into memory
	}
	z.Close() //nolint:errcheck // into memory
	child := descriptor(oci.MediaTypeImageManifest, nil)
	huge := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"manifests":[%s%s]}`, oci.MediaTypeImageIndex, strings.Repeat(child+",", 400_000-1), child)
	many := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"manifests":[%s%s]}`, oci.MediaTypeImageIndex, strings.Repeat(child+",", 20_000-1), child)
	hugeDigest, manyDigest := digest(huge), digest(many)
	for _, test := range []struct {
		name, want string
		most       uint64 // MiB
		answer     func(s *source, w http.ResponseWriter, r *http.Request) bool
	}{
		{"endless catalog", "the list has more than", 150, func(_ *source, w http.ResponseWriter, r *http.Request) bool {
			page := 0
			fmt.Sscan(r.FormValue("page"), &page) //nolint:errcheck // the first has none
			w.Header().Set("Link", fmt.Sprintf("</v2/_catalog?page=%d>; rel=\"next\"", page+1))
			names(w, page)
			return true
		}},
		{"catalog of one endless page", "the list has more than", 150, func(_ *source, w http.ResponseWriter, r *http.Request) bool {
			fmt.Fprint(w, `{"repositories":["a"`) //nolint:errcheck // the client may have gone
			for i := 0; r.Context().Err() == nil && i < 1<<32; i++ {
				if _, err := fmt.Fprintf(w, `,"%0100d"`, i); err != nil {
					break
				}
			}
			return true
		}},
		{"gzip bomb", "the list has more than", 50, func(_ *source, w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Encoding", "gzip")
			w.Write(bomb.Bytes()) //nolint:errcheck // the client may have gone
			return true
		}},
		{"deep JSON", "nested too deeply", 100, func(_ *source, w http.ResponseWriter, _ *http.Request) bool {
			w.Write(append([]byte(`{"x":`), bytes.Repeat([]byte(`[`), 6<<20)...)) //nolint:errcheck // the client may have gone
			return true
		}},
		{"index of 400,000 children", "more than 4194304 bytes", 100, func(s *source, _ http.ResponseWriter, _ *http.Request) bool {
			s.manifests["v1"] = huge
			return false
		}},
		{"index of 20,000 children", "more than 10000 entries", 100, func(s *source, _ http.ResponseWriter, _ *http.Request) bool {
			s.manifests["v1"] = many
			return false
		}},
	} {
		s, d := newSource(t), newDestination(t)
		s.image("one", "v1")
		s.manifests[hugeDigest], s.manifests[manyDigest] = huge, many
		attacked := "/v2/app/tags/list"
		if strings.Contains(test.name, "catalog") {
			attacked = "/v2/_catalog"
		}
		s.answer = func(w http.ResponseWriter, r *http.Request) bool {
			return r.URL.Path == attacked && test.answer(s, w, r)
		}
		var text string
		used := allocated(func() {
			_, tags, err := copyAll(t, d, Options{Source: s.host(), Limits: upstream.Limits{ListBytes: 4 << 20}})
			text = problem(t, tags, err)
		}) >> 20
		if !strings.Contains(text, test.want) || used > test.most {
			t.Errorf("%s: %s; %d MiB", test.name, text, used)
		}
		t.Logf("%s: %d MiB", test.name, used)
	}
}

// TestManifestsInMemory expects that of a tree of indexes the manifests that are in memory at once grow with its
// depth, and don't multiply with each level.
func TestManifestsInMemory(t *testing.T) {
	t.Parallel()
	const children, levels = 4, 4
	s, d := newSource(t), newDestination(t)
	var held, most, all atomic.Int64
	var tree func(level int) []byte
	tree = func(level int) []byte {
		var below [][]byte
		for range children {
			if level < levels {
				below = append(below, tree(level+1))
			}
		}
		padding := fmt.Sprintf(`,"annotations":{"padding":"%01000d"}}`, all.Add(1))
		return s.manifest(append(bytes.TrimSuffix(index(below...), []byte("}")), padding...))
	}
	root := s.manifest(tree(0), "v1")
	copies := false // the source's indexes were read, and it is asked for all manifests again
	var mu sync.Mutex
	seen := make(map[string]bool)
	s.answer = func(_ http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/manifests/sha256:") {
			copies = copies || seen[r.URL.Path]
			seen[r.URL.Path] = true
			if copies {
				most.Store(max(most.Load(), held.Add(1)))
			}
		}
		return false
	}
	registry := d.Config.Handler
	d.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			held.Add(-1)
		}
		registry.ServeHTTP(w, r)
	})
	sum, tags, err := copyAll(t, d, Options{Source: s.host() + "/app", NoReferrers: true})
	if err != nil || sum.Copied != 1 || int64(len(d.put)) != all.Load() {
		t.Fatalf("%+v %+v %v; %d of %d manifests were put", sum, tags, err, len(d.put), all.Load())
	}
	if limit := int64(1 + levels*jobs); most.Load() > limit || most.Load() < 2 {
		t.Errorf("of a tree with the digest %s, %d manifests were in memory at once, want at most %d", digest(root), most.Load(), limit)
	}
}

// TestDestinationEncrypted expects that a registry that is named with https gets nothing by plain http, wherever
// it is.
func TestDestinationEncrypted(t *testing.T) {
	t.Parallel()
	var credentials atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password == "secret" {
			credentials.Add(1)
			return
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer s.Close()
	by := &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, s.Listener.Addr().String())
	}}
	defer by.CloseIdleConnections()
	for server, plain := range map[string]bool{
		"https://10.0.0.7": false, "https://192.168.0.1:5000": false, "https://127.0.0.1:5000": false, "https://localhost:5000": false,
		"http://10.0.0.7": true, "http://registry.example.com": true,
	} {
		at, err := url.Parse(server)
		if err != nil {
			t.Fatal(err)
		}
		credentials.Store(0)
		c := &copier{Options: Options{Server: at, User: "me", Password: "secret"}}
		if err := c.openDestination(by); err != nil {
			t.Fatal(err)
		}
		_, err = c.looker.Head(t.Context(), c.to.Repo("app").Tag("v1"))
		if (credentials.Load() > 0) != plain {
			t.Errorf("%s: credentials were sent by plain http %d times: %v", server, credentials.Load(), err)
		}
		if !plain && (err == nil || !strings.Contains(err.Error(), "isn't asked by plain http")) {
			t.Errorf("%s: %v", server, err)
		}
	}
}

// TestHostileNames expects that names of the source that are none go nowhere, and that those that
// are names are copied.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	s, d := newSource(t), newDestination(t)
	s.image("one", "v1")
	s.tags = append(s.tags, "x/manifests/t", "..", "../../../v2/other/manifests/t", "a b", "\x1b[2J", "", "t?x=y", strings.Repeat("a", 200_000), "v1")
	var asked []string
	s.answer = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/v2/_catalog" {
			json.NewEncoder(w).Encode(map[string]any{"repositories": []string{"../x", "app", "app/../../y", "\x1b]0;x\a", "A", "app"}}) //nolint:errcheck // in a test
			return true
		}
		if r.Method == http.MethodHead {
			asked = append(asked, r.URL.Path)
		}
		return false
	}
	sum, tags, err := copyAll(t, d, Options{Source: s.host(), To: "safe/place"})
	if err != nil || sum.Copied != 1 || sum.Repositories != 1 || sum.Failed != 2 {
		t.Errorf("%+v %v", sum, err)
	}
	if want := []string{"/v2/safe/place/app/manifests/v1"}; !slices.Equal(d.put, want) {
		t.Errorf("put %q, want %q", d.put, want)
	}
	if want := []string{"/v2/app/manifests/v1"}; !slices.Equal(asked, want) {
		t.Errorf("asked for %q, want %q", asked, want)
	}
	for _, tag := range tags {
		harmless(t, tag.Source+tag.Destination+tag.Error)
	}
}

// harmless expects a text that can be printed on a terminal.
func harmless(t *testing.T, text string) {
	t.Helper()
	if len(text) > 2000 || strings.ContainsFunc(text, func(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) }) {
		t.Errorf("%d bytes: %.3000q", len(text), text)
	}
}

// TestErrorsArePrintable expects that what the source says doesn't reach a terminal as it is.
func TestErrorsArePrintable(t *testing.T) {
	t.Parallel()
	said := "\x1b[2J\x1b]0;owned\a\r\n\u009b\u202edesrever " + strings.Repeat("z", 20_000)
	wrapped, err := json.Marshal(map[string]any{"errors": []map[string]string{{"code": "DENIED" + said, "message": said}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/v2/", "/v2/_catalog", "/v2/app/tags/list", "/v2/app/manifests/", "/v2/app/blobs/", "/v2/app/referrers/", "/token"} {
		for _, content := range []string{said, string(wrapped)} {
			s, d := newSource(t), newDestination(t)
			s.image("one", "v1")
			s.answer = func(w http.ResponseWriter, r *http.Request) bool {
				if path == "/token" && r.URL.Path == "/v2/" {
					w.Header().Set("WWW-Authenticate", `Bearer realm="`+s.URL+`/token"`)
					w.WriteHeader(http.StatusUnauthorized)
					return true
				}
				hit := strings.HasPrefix(r.URL.Path, path) && (path != "/v2/" || r.URL.Path == path)
				if hit {
					w.WriteHeader(http.StatusForbidden)
					w.Write([]byte(content)) //nolint:errcheck // in a test
				}
				return hit
			}
			_, tags, err := copyAll(t, d, Options{Source: s.host()})
			text := problem(t, tags, err)
			harmless(t, text)
			if !strings.Contains(text, "403") && !strings.Contains(text, "DENIED") && !strings.Contains(text, "desrever") {
				t.Errorf("%s: the error says nothing: %q", path, text)
			}
		}
	}
}

// TestWrongContent expects that what doesn't have its digest isn't copied.
func TestWrongContent(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"manifests/sha256", "blobs"} {
		s, d := newSource(t), newDestination(t)
		s.image("one", "v1")
		for _, content := range []map[string][]byte{s.manifests, s.blobs} {
			for reference, text := range content {
				if strings.HasPrefix(kind, "blobs") == (s.blobs[reference] != nil) && strings.HasPrefix(reference, "sha256") {
					content[reference] = bytes.ReplaceAll(text, []byte("o"), []byte("0"))
				}
			}
		}
		_, tags, err := copyAll(t, d, Options{Source: s.host() + "/app"})
		if text := problem(t, tags, err); !strings.Contains(text, "digest") || len(d.put) > 0 {
			t.Errorf("%s: %s; put %q", kind, text, d.put)
		}
	}
}

// TestCredentialsElsewhere expects that the source's credentials don't go to another host by plain
// http.
//
//nolint:paralleltest // it sets the environment
func TestCredentialsElsewhere(t *testing.T) {
	var got atomic.Int64
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" || r.Method == http.MethodPost {
			got.Add(1)
		}
		fmt.Fprint(w, `{"token":"t"}`) //nolint:errcheck // in a test
	}))
	defer elsewhere.Close()
	there := strings.Replace(strings.TrimPrefix(elsewhere.URL, "http://"), "127.0.0.1", "localhost", 1)
	s, d := newSource(t), newDestination(t)
	s.image("one", "v1")
	s.answer = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") == "Bearer t" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+there+`/token",service="x"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	for _, credential := range []string{`"auth":"` + base64.StdEncoding.EncodeToString([]byte("me:secret")) + `"`, `"identitytoken":"refresh"`} {
		config := fmt.Appendf(nil, `{"auths":{%q:{%s}}}`, s.host(), credential)
		if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600); err != nil {
			t.Fatal(err)
		}
		_, tags, err := copyAll(t, d, Options{Source: s.host() + "/app"})
		if text := problem(t, tags, err); !strings.Contains(text, "isn't encrypted") || !strings.Contains(text, there) || got.Load() != 0 {
			t.Errorf("%s: %s; it was sent credentials %d times", credential, text, got.Load())
		}
	}
	var told []string
	sum, tags, err := copyAll(t, d, Options{Source: s.host() + "/app", Trusted: []string{there},
		CredentialsTo: func(host string) { told = append(told, host) }})
	if err != nil || sum.Copied != 1 || got.Load() == 0 || !slices.Equal(told, []string{there}) {
		t.Errorf("a trusted host: %+v %+v %v; told of %q", sum, tags, err, told)
	}
}

// TestLimitsOfACopy expects that each limit on what a source makes a copy do ends it: on manifests in and
// attached to an image, on their depth, on blobs, and on pages and names of the catalog and of tags.
func TestLimitsOfACopy(t *testing.T) {
	t.Parallel()
	images := func(s *source, n int) (list [][]byte) {
		for i := range n {
			list = append(list, s.image(fmt.Sprint("image ", i)))
		}
		return list
	}
	// endless answers each request for a list with another page, which leads to the next.
	endless := func(s *source, path, key string) {
		s.answer = func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != path {
				return false
			}
			n := len(r.FormValue("last"))
			w.Header().Set("Link", fmt.Sprintf(`<%s?last=%s>; rel="next"`, path, strings.Repeat("x", n+1)))
			fmt.Fprintf(w, `{%q:["n%d"]}`, key, n) //nolint:errcheck // the client may have gone
			return true
		}
	}
	for name, c := range map[string]struct {
		fill   func(s *source)
		of     string // of the source
		limits upstream.Limits
		want   string
	}{
		"manifests in an index": {func(s *source) { s.manifest(index(images(s, 5)...), "v1") }, "/app", upstream.Limits{Manifests: 3}, "more than 3 manifests"},
		"manifests attached":    {func(s *source) { s.referrers[digest(s.image("one", "v1"))] = index(images(s, 5)...) }, "/app", upstream.Limits{Manifests: 3}, "more than 3 manifests are attached"},
		"an index in an index": {func(s *source) {
			m := s.image("one")
			for range 4 {
				m = s.manifest(index(m))
			}
			s.manifest(m, "v1")
		}, "/app", upstream.Limits{Depth: 3}, "deep"},
		"a blob":           {func(s *source) { s.image("one", "v1") }, "/app", upstream.Limits{BlobBytes: 5}, "at most 5 are fetched"},
		"pages of tags":    {func(s *source) { endless(s, "/v2/app/tags/list", "tags") }, "/app", upstream.Limits{Pages: 2}, "more than 2 pages"},
		"pages of catalog": {func(s *source) { endless(s, "/v2/_catalog", "repositories") }, "", upstream.Limits{Pages: 2}, "more than 2 pages"},
		"names of tags":    {func(s *source) { endless(s, "/v2/app/tags/list", "tags") }, "/app", upstream.Limits{Names: 2}, "more than 2"},
		"names of catalog": {func(s *source) { endless(s, "/v2/_catalog", "repositories") }, "", upstream.Limits{Names: 2}, "more than 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, d := newSource(t), newDestination(t)
			c.fill(s)
			_, tags, err := copyAll(t, d, Options{Source: s.host() + c.of, Limits: c.limits})
			if text := problem(t, tags, err); !strings.Contains(text, c.want) || s.requests.Load() > 50 {
				t.Errorf("%s, after %d requests", text, s.requests.Load())
			}
			// Without this limit the image is copied.
			if c.of != "" && c.limits.Pages == 0 && c.limits.Names == 0 {
				if sum, tags, err := copyAll(t, newDestination(t), Options{Source: s.host() + c.of}); err != nil || sum.Copied != 1 {
					t.Errorf("without the limit: %+v %+v %v", sum, tags, err)
				}
			}
		})
	}
}

// TestBlobOfAnotherSize expects an error for a blob that is longer or shorter than its manifest says,
// whether or not the answer says how long it is, and that of a longer one no more is read than that.
func TestBlobOfAnotherSize(t *testing.T) {
	t.Parallel()
	for _, told := range []bool{true, false} {
		for _, content := range [][]byte{bytes.Repeat([]byte("x"), 1<<20), []byte("x")} {
			s, d := newSource(t), newDestination(t)
			s.image("one", "v1")
			s.answer = func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.Contains(r.URL.Path, "/blobs/") {
					return false
				}
				if told {
					w.Header().Set("Content-Length", fmt.Sprint(len(content)))
				} else {
					w.(http.Flusher).Flush()
				}
				w.Write(content) //nolint:errcheck // the client may have gone
				return true
			}
			_, tags, err := copyAll(t, d, Options{Source: s.host() + "/app"})
			if text := problem(t, tags, err); text == "" || len(d.put) > 0 {
				t.Errorf("%d bytes, told %v: %s; %q was put", len(content), told, text, d.put)
			}
		}
	}
}
