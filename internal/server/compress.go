package server

import (
	"net/http"

	"github.com/klauspost/compress/gzhttp"

	"github.com/purser-registry/purser/internal/limit"
)

const (
	// compressMin is the least size of an answer that is compressed, in bytes: below it, the answer
	// fits a packet anyway.
	compressMin = 1024
	// compressLevel is the level of gzip. Levels above 4 take half as much time again for answers
	// that are smaller by a thirtieth.
	compressLevel = 4
	// Each answer that is being compressed takes 1 MB, which no lease of its request counts. So there
	// are at most compressions of them, and compressionsOfClient for one client; any further answer is
	// sent as it is.
	compressions         = 32
	compressionsOfClient = 8
	// compressJitter is how many bytes are added to a compressed answer at most, by a digest of what
	// it begins with. Whoever can make a browser open pages with chosen words, and sees how long the
	// encrypted answers are, would else learn from their sizes what else is on the page (BREACH).
	compressJitter = 64
)

// compressed are the types of answers that are compressed.
var compressed = []string{
	"text/html", "text/css", "text/javascript", "text/plain", "text/csv", "image/svg+xml",
	"application/json", "application/problem+json", "application/x-ndjson", "application/yaml", "application/openapi+json", "application/openapi+yaml",
}

// compressor compresses the answers of interfaces for people and programs (Mount.Compress) with
// gzip, for clients that accept it.
type compressor struct {
	wrap  func(http.Handler) http.HandlerFunc
	count *limit.Counter
}

func newCompressor() *compressor {
	wrap, err := gzhttp.NewWrapper(gzhttp.EnableZstd(false), gzhttp.MinSize(compressMin), gzhttp.CompressionLevel(compressLevel),
		gzhttp.RandomJitter(compressJitter, 0, false), gzhttp.ContentTypes(compressed), gzhttp.SetContentType(false))
	if err != nil {
		panic(err) // the options above are constant
	}
	return &compressor{wrap, limit.NewCounter(compressions, compressionsOfClient)}
}

// handler returns a handler that passes requests to h, and compresses what it answers.
func (c *compressor) handler(h http.Handler) http.Handler {
	compressing := c.wrap(h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client := Observed(r.Context()).Client
		if r.Header.Get("Accept-Encoding") == "" || c.count.Add(client) != limit.NotFull {
			w.Header().Add("Vary", "Accept-Encoding")
			h.ServeHTTP(w, r)
			return
		}
		defer c.count.Done(client)
		compressing(w, r)
	})
}
