package ui

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"html/template"
	"net/http"
	"path"
	"strconv"
	"strings"

	"github.com/purser-registry/purser/internal/server"
)

// staticRoot is the prefix of the style sheet, the script and the icon. A digest of the content
// follows, so that browsers may keep the files for good.
const staticRoot = root + "static/"

//go:embed static
var staticFiles embed.FS

type staticFile struct {
	content     []byte
	contentType string
}

// static has the files by their paths, and staticPaths the paths by the files' names.
var static, staticPaths = loadStatic()

func loadStatic() (map[string]staticFile, map[string]string) {
	types := map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
	files, paths := make(map[string]staticFile), make(map[string]string)
	entries, err := staticFiles.ReadDir("static")
	if err != nil {
		panic(err)
	}
	for _, e := range entries {
		content, err := staticFiles.ReadFile("static/" + e.Name())
		if err != nil {
			panic(err)
		}
		sum := sha256.Sum256(content)
		at := staticRoot + hex.EncodeToString(sum[:8]) + "/" + e.Name()
		files[at] = staticFile{content, types[path.Ext(e.Name())]}
		paths[e.Name()] = at
	}
	return files, paths
}

func (u *UI) serveStatic(w http.ResponseWriter, r *http.Request) {
	o := server.Observed(r.Context())
	o.Route = staticRoot
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		u.server.Fail(w, r, server.NothingAt(r))
		return
	}
	o.Method = r.Method
	f, ok := static[r.URL.Path]
	caching := "public, max-age=31536000, immutable"
	if !ok { // The page may come from a replica of another version.
		f, ok = static[staticPaths[path.Base(r.URL.Path)]]
		ok = ok && strings.Count(strings.TrimPrefix(r.URL.Path, staticRoot), "/") == 1
		caching = "no-store"
	}
	if !ok {
		u.server.Fail(w, r, server.NothingAt(r))
		return
	}
	h := w.Header()
	h.Set("Content-Type", f.contentType)
	h.Set("Content-Length", strconv.Itoa(len(f.content)))
	h.Set("Cache-Control", caching)
	if strings.HasSuffix(r.URL.Path, ".svg") { // an icon may have styles of its own
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	}
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodGet {
		w.Write(f.content) //nolint:errcheck // the client is gone, and knows
	}
}

// A style sheet that is a file of its own holds the first paint up until it has come. So a page has the sheet in
// itself for a browser that hasn't the file yet. The script fetches the file when the page is there, and
// says so by a cookie.
const styleCookie = "purser_style"

// styleSheet is the path of the file, and styleDigest allows its content within pages.
var (
	styleSheet  = staticPaths["app.css"]
	styleDigest = digestOf(static[styleSheet].content)
)

func digestOf(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// style returns the style sheet for a page, "" if the browser has the file.
func (q *request) style() template.CSS {
	if c, err := q.Cookie(styleCookie); err == nil && c.Value == path.Base(path.Dir(styleSheet)) {
		return ""
	}
	return template.CSS(static[styleSheet].content) //nolint:gosec // it is a file of this package
}
