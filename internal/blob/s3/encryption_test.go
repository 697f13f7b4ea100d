package s3_test

import (
	"bytes"
	"crypto/x509"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/purser-registry/purser/internal/blob/blobtest"
	"github.com/purser-registry/purser/internal/blob/s3"
)

// TestEncryption: each request that makes an object asks for the encryption, and no other request does.
func TestEncryption(t *testing.T) {
	t.Parallel()
	const header, keyHeader = "X-Amz-Server-Side-Encryption", "X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id"
	for name, c := range map[string]struct {
		change    func(o *s3.Options)
		kind, key string
	}{
		"none":            {func(*s3.Options) {}, "", ""},
		"s3":              {func(o *s3.Options) { o.Encryption = s3.EncryptS3 }, "AES256", ""},
		"kms":             {func(o *s3.Options) { o.Encryption = s3.EncryptKMS }, "aws:kms", ""},
		"kms, with a key": {func(o *s3.Options) { o.Encryption, o.KMSKey = s3.EncryptKMS, "alias/registry" }, "aws:kms", "alias/registry"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var makes, others atomic.Int64
			o := setup(t)
			c.change(&o)
			s := newStore(t, withTransport(o, &transport{do: func(r *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
				counted, encryption, key := &others, "", ""
				if k := kind(r); k == "create" || k == http.MethodPut {
					counted, encryption, key = &makes, c.kind, c.key
				}
				counted.Add(1)
				if kind(r) == "complete" {
					return send() // minio asks again here, which services ignore
				}
				if got, with := r.Header.Get(header), r.Header.Get(keyHeader); got != encryption || with != key {
					t.Errorf("%s %s asks for %q with the key %q", r.Method, r.URL, got, with)
				}
				return send()
			}}))
			if err := s.SetIdentity(t.Context(), "1f0ff25c-6d1b-4d56-b0f1-8a1f3b0c5a01", false); err != nil {
				t.Fatal(err)
			}
			blobtest.NewUpload().Complete(t, s, blobtest.Bytes(1, 1000))
			blobtest.NewUpload().Complete(t, s, blobtest.Bytes(2, partSize+1))
			backup := blobtest.Bytes(3, 20<<20) // in parts
			if err := s.Put(t.Context(), "copy-0", int64(len(backup)), bytes.NewReader(backup)); err != nil {
				t.Fatal(err)
			}
			if makes.Load() < 4 || others.Load() < 4 {
				t.Errorf("%d requests make objects, and %d others were seen", makes.Load(), others.Load())
			}
		})
	}
	o := setup(t)
	o.Encryption = "aes"
	if _, err := s3.New(o); err == nil || !strings.Contains(err.Error(), `"aes"`) {
		t.Errorf("an unknown encryption: %v", err)
	}
}

// TestRoots: a service whose certificate is signed by an authority of its own is trusted by Options.Roots
// and not without them.
func TestRoots(t *testing.T) {
	t.Parallel()
	o := setup(t)
	to, err := url.Parse(o.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Host = r.In.Host // which is signed
	}})
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of refused certificates
	server.StartTLS()
	t.Cleanup(server.Close)
	o.Endpoint = server.URL
	if err := newStore(t, o).Check(t.Context()); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("without its authority: %v", err)
	}
	o.Roots = x509.NewCertPool()
	o.Roots.AddCert(server.Certificate())
	if err := newStore(t, o).Check(t.Context()); err != nil {
		t.Errorf("with its authority: %v", err)
	}
}
