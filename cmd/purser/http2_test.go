package main

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// TestUploadOverHTTP2: the limit on what a connection of HTTP/2 brings besides bodies doesn't slow
// down bodies, in one request or in many.
func TestUploadOverHTTP2(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := config.TLS{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	servetest.WriteCertificate(t, files, 1)
	s := start(t, servetest.Config(t, "PURSER_DATABASE_MAIN="+dbtest.DSN(t), "PURSER_HTTP_TLS_CERT="+files.Cert, "PURSER_HTTP_TLS_KEY="+files.Key))
	client := clientAt(t, "127.0.0.1", nil)
	client.Transport.(*http.Transport).ForceAttemptHTTP2 = true
	content := make([]byte, 48<<20)
	rand.Read(content) //nolint:errcheck // it doesn't fail
	begin := time.Now()
	for _, size := range []int{1 << 20, 48 << 20} {
		for at := 0; at < len(content); at += size {
			piece := content[at : at+size]
			url := fmt.Sprintf("%s/v2/acme/app/blobs/uploads/?digest=%s", s.Registry, digest.FromBytes(piece))
			req, err := http.NewRequestWithContext(t.Context(), "POST", url, bytes.NewReader(piece))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/octet-stream")
			res, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(res.Body)
			res.Body.Close() //nolint:errcheck // read to its end
			if res.StatusCode != 201 || res.ProtoMajor != 2 || err != nil {
				t.Fatalf("%s %s: %s %v", res.Proto, res.Status, text, err)
			}
		}
	}
	if took := time.Since(begin); took > 30*time.Second { // at the limit it would take over 90 s
		t.Errorf("uploads of 96 MiB took %s", took)
	}
}
