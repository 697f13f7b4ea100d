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

// headBlob answers HEAD of a blob (OCI specification, "Checking if content exists in the
// registry"). The answer 200 is a promise: garbage collection doesn't delete the blob during
// the review delay, so that the client can push a manifest that refers to the blob.
func (a *API) headBlob(c *call) error {
	d, err := c.digest()
	if err != nil {
		return err
	}
	b, err := a.catalog.PromiseBlobExists(c.r.Context(), c.name, d)
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

// getBlob answers GET of a blob (OCI specification, "Pulling blobs"). The answer has the blob's
// content or one range of it (RFC 9110, section 14), or is a redirect to the store.
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

// open opens the range `rng` of the blob's object in the store. If the store doesn't have the
// object, open reads the blob's row in the table blobs again, because another request may have
// deleted the blob, or uploaded it again under another storage key, since *b was read. If the
// row still has the same storage key, the store has lost the object, and open returns
// BLOB_UNKNOWN. If the row has a new key, open opens the object with the new key and updates
// *b.
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

// wholeBlob checks that the store has the object of the blob `b` in full size, and returns `b`.
// If the object is missing or too short, wholeBlob marks the blob as lost and reads its row
// again. It returns the new row if a client has pushed the blob again meanwhile, else
// BLOB_UNKNOWN.
func (a *API) wholeBlob(c *call, b catalog.Blob) (catalog.Blob, error) {
	whole, err := a.catalog.VerifyBlob(c.r.Context(), c.name, b)
	if err != nil || whole {
		return b, err
	}
	return a.catalog.BlobNow(c.r.Context(), c.name, b.Digest)
}

// endedEarly is called when the store's data ended before all bytes of a blob were sent to the
// client. It checks the blob's object, and marks the blob as lost if the object is missing or
// too short, so that the next push of the blob stores it again. The failed request can't be
// answered with an error any more, since a part of the answer is sent: the client sees that the
// connection ends.
func (a *API) endedEarly(c *call, b catalog.Blob) {
	ctx := context.WithoutCancel(c.r.Context())
	if _, err := a.catalog.VerifyBlob(ctx, c.name, b); err != nil {
		a.log.WarnContext(ctx, "a blob that ended early could not be looked at", "digest", b.Digest, "error", err)
	}
}

// redirect answers with a redirect to a presigned URL of the store and returns true. It returns
// false if the store doesn't support such URLs. Purser doesn't see whether the client then gets
// the object from the store. Therefore redirect checks first that the object exists, unless it
// has checked the same object less than redirectedAge ago.
func (a *API) redirect(c *call, b catalog.Blob) (bool, error) {
	if at, seen := a.redirected.Get(b.StorageKey); !seen || time.Since(at) >= redirectedAge {
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

// byteRange parses the request's Range header. It ignores a header that isn't a single byte
// range, as RFC 9110 allows, and returns the range of the whole blob. It returns an error with
// status 416 for a range that lies outside the blob, or that ends before it begins.
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

// parseRange parses the texts `first` and `last` of the header "Range: bytes=first-last" for a
// blob of `size` bytes. If `first` is "", the range is the last bytes of the blob, and `last`
// is their number. If `last` is "", the range ends with the blob. parseRange returns false for
// a text that isn't a number. If the blob has no bytes in the range, the returned range has the
// length 0.
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

// parseOffset parses a number without a sign. For a number that overflows int64 it returns the
// largest int64, which is the same to its callers: no blob is that long. It returns false for
// text that isn't a number.
func parseOffset(s string) (int64, bool) {
	n, err := strconv.ParseUint(s, 10, 63)
	if errors.Is(err, strconv.ErrRange) {
		return math.MaxInt64, true
	}
	return int64(n), err == nil
}

// deleteBlob removes a blob from the repository (OCI specification, "Deleting Blobs").
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
