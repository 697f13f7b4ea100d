package distribution

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
)

// headBlob answers whether a blob exists ("Checking if content exists in the
// registry"). A positive answer is a promise of existence: garbage collection keeps the
// blob for the review delay, so that the client can refer to it.
func (a *API) headBlob(c *call) error {
	d, err := c.digest()
	if err != nil {
		return err
	}
	b, err := a.catalog.PromiseBlob(c.r.Context(), c.name, d)
	if err != nil {
		return err
	}
	c.describe(b)
	if noneMatch(c.r, d.String()) {
		c.WriteHeader(http.StatusNotModified)
		return nil
	}
	c.Header()["Content-Length"] = []string{strconv.FormatInt(b.Size, 10)}
	c.WriteHeader(http.StatusOK)
	return nil
}

// describe sets the headers that all answers about a blob share.
func (c *call) describe(b catalog.Blob) {
	h := c.Header()
	digest := b.Digest.String()
	h["Docker-Content-Digest"] = []string{digest}
	h["Etag"] = []string{`"` + digest + `"`}
	h["Content-Type"] = []string{b.MediaType}
	h["Accept-Ranges"] = []string{"bytes"}
	h["Cache-Control"] = []string{"max-age=31536000, immutable"}
}

// getBlob sends a blob or one range of it ("Pulling blobs"; RFC 9110, section
// 14), or redirects to the store.
func (a *API) getBlob(c *call) error {
	d, err := c.digest()
	if err != nil {
		return err
	}
	b, err := a.catalog.Blob(c.r.Context(), c.name, d)
	if err != nil {
		return err
	}
	if noneMatch(c.r, d.String()) {
		c.describe(b)
		c.WriteHeader(http.StatusNotModified)
		return nil
	}
	if a.opt.Redirect {
		if done, err := a.redirect(c, b); done || err != nil {
			return err
		}
	}
	rng, err := c.byteRange(b)
	if err != nil {
		return err
	}
	body, err := a.open(c, &b, rng)
	if err != nil {
		return err
	}
	defer body.Close() //nolint:errcheck // only read
	c.describe(b)
	status := http.StatusOK
	if rng.partial {
		c.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", rng.off, rng.off+rng.length-1, b.Size))
		status = http.StatusPartialContent
	}
	c.Header()["Content-Length"] = []string{strconv.FormatInt(rng.length, 10)}
	c.WriteHeader(status)
	if _, err := io.Copy(c.ResponseWriter, body); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			a.endedEarly(c, b)
		}
		return fmt.Errorf("sending blob %s: %w", d, err)
	}
	return nil
}

// open opens a blob's object. If the store doesn't have the object, open reads the row
// again: since it was read, the blob may have been deleted, or uploaded again under
// another key. If the row still has the same key, the store has lost the object, and
// the client is told that the blob doesn't exist.
func (a *API) open(c *call, b *catalog.Blob, rng byteRange) (io.ReadCloser, error) {
	ctx := c.r.Context()
	body, err := a.store.Open(ctx, b.StorageKey, rng.off, rng.length)
	if !errors.Is(err, blob.ErrNotFound) {
		return body, err
	}
	lost := b.StorageKey
	if *b, err = a.catalog.BlobNow(ctx, c.name, b.Digest); err != nil {
		return nil, err
	}
	if b.StorageKey == lost {
		if *b, err = a.wholeBlob(c, *b); err != nil {
			return nil, err
		}
	}
	return a.store.Open(ctx, b.StorageKey, rng.off, rng.length)
}

// wholeBlob checks that the store has the blob's object, and returns the blob. If the
// object is missing, the blob is marked as lost, and wholeBlob reads its row again: it
// returns the blob if it was pushed again meanwhile, else an error.
func (a *API) wholeBlob(c *call, b catalog.Blob) (catalog.Blob, error) {
	whole, err := a.catalog.VerifyBlob(c.r.Context(), c.name, b)
	if err != nil || whole {
		return b, err
	}
	return a.catalog.BlobNow(c.r.Context(), c.name, b.Digest)
}

// endedEarly checks the object of a blob whose content ended too early while it was
// sent, and marks the blob as lost if the object is damaged. It doesn't change this
// request's answer: the client sees its connection end.
func (a *API) endedEarly(c *call, b catalog.Blob) {
	ctx := context.WithoutCancel(c.r.Context())
	if _, err := a.catalog.VerifyBlob(ctx, c.name, b); err != nil {
		a.log.WarnContext(ctx, "a blob that ended early could not be looked at", "digest", b.Digest, "error", err)
	}
}

// redirect redirects the client to the store. Purser doesn't see the store's answer, so
// it checks here that the object exists, once in redirectedAge.
func (a *API) redirect(c *call, b catalog.Blob) (bool, error) {
	if at, seen := a.redirected.GetIfPresent(b.StorageKey); !seen || time.Since(at) >= redirectedAge {
		var err error
		if b, err = a.wholeBlob(c, b); err != nil {
			return false, err
		}
		a.redirected.Set(b.StorageKey, time.Now())
	}
	url, err := a.store.Presign(c.r.Context(), b.StorageKey, blob.PresignOptions{TTL: a.opt.RedirectTTL, ContentType: b.MediaType})
	if err != nil || url == "" {
		return false, err
	}
	c.Header().Set("Docker-Content-Digest", b.Digest.String())
	c.Header().Set("Location", url)
	c.Header().Set("Content-Length", "0")
	c.WriteHeader(http.StatusTemporaryRedirect)
	return true, nil
}

// byteRange is the requested part of a blob.
type byteRange struct {
	off, length int64
	partial     bool
}

// byteRange parses the Range header. Everything but a single byte range is ignored, as
// RFC 9110 allows. A range outside the blob, or one that ends before it starts, is
// answered with 416.
func (c *call) byteRange(b catalog.Blob) (byteRange, error) {
	whole := byteRange{length: b.Size}
	spec, ok := strings.CutPrefix(c.r.Header.Get("Range"), "bytes=")
	if !ok || strings.Contains(spec, ",") {
		return whole, nil
	}
	if v := c.r.Header.Get("If-Range"); v != "" && strings.Trim(v, `"`) != b.Digest.String() {
		return whole, nil
	}
	first, last, ok := strings.Cut(strings.TrimSpace(spec), "-")
	if !ok {
		return whole, nil
	}
	rng, ok := parseRange(first, last, b.Size)
	if !ok {
		return whole, nil
	}
	if rng.length <= 0 {
		c.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", b.Size))
		return whole, oci.Errorf(oci.SizeInvalid, "range %q lies outside the blob's %d bytes", spec, b.Size).
			WithStatus(http.StatusRequestedRangeNotSatisfiable)
	}
	return rng, nil
}

// parseRange returns false for text that isn't a range, and length 0 for a range that
// can't be satisfied.
func parseRange(first, last string, size int64) (byteRange, bool) {
	if first == "" { // a suffix range: the last n bytes
		n, ok := parseOffset(last)
		n = min(n, size)
		return byteRange{off: size - n, length: n, partial: true}, ok
	}
	from, ok := parseOffset(first)
	if !ok {
		return byteRange{}, false
	}
	to := int64(math.MaxInt64)
	if last != "" {
		if to, ok = parseOffset(last); !ok {
			return byteRange{}, false
		}
	}
	if from >= size || to < from {
		return byteRange{partial: true}, true
	}
	return byteRange{off: from, length: min(to, size-1) - from + 1, partial: true}, true
}

// parseOffset parses a number without a sign. A number that overflows int64 is larger
// than any blob, so the largest int64 stands for it.
func parseOffset(s string) (int64, bool) {
	n, err := strconv.ParseUint(s, 10, 63)
	if errors.Is(err, strconv.ErrRange) {
		return math.MaxInt64, true
	}
	return int64(n), err == nil
}

// deleteBlob removes a blob from the repository ("Deleting Blobs").
func (a *API) deleteBlob(c *call) error {
	d, err := c.digest()
	if err != nil {
		return err
	}
	if err := a.catalog.DeleteBlob(c.r.Context(), c.name, d); err != nil {
		return err
	}
	c.accepted()
	return nil
}
