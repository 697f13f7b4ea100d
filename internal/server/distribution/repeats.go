package distribution

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
)

// A client whose connection breaks doesn't know what the registry has saved of its request, and
// many clients then send the same request again, to the same URL, with the whole body and without
// a Content-Range: containerd and go-containerregistry do, and so do all that repeat after 503.
// The body must not be appended to the bytes of its first sending.
//
// Two things tell a repeat from the next chunk. The Location of each answer ends with the number
// of bytes that the answer acknowledges, so a request to an older Location comes from a client
// that didn't get the last answer, or that doesn't follow Location. And a repeat begins with the
// same bytes as the request that it repeats. Whatever is concluded, a blob is only made if its
// content has the digest that the client names.

// uploadRef returns the last part of an upload's URL: its name and how many bytes the client knows
// to be saved.
func uploadRef(name string, known int64) string {
	if known == 0 {
		return name
	}
	return name + "." + strconv.FormatInt(known, 10)
}

// parseUploadRef is the inverse of uploadRef.
func parseUploadRef(ref string) (name uuid.UUID, known int64, err error) {
	text, number, numbered := strings.Cut(ref, ".")
	if numbered {
		var n uint64
		if n, err = strconv.ParseUint(number, 10, 63); err != nil {
			return name, 0, err
		}
		known = int64(n)
	}
	name, err = uuid.Parse(text)
	return name, known, err
}

// placeStream finds out where in the upload a body without Content-Range begins. By default it
// begins where the upload ends. If the upload has bytes that the request's URL doesn't know of, and
// the body repeats them, placeStream sets in.skip to how many of its bytes are there already. It
// returns an error with status 416 if the client has an answer about bytes that aren't there, as
// after the failover to a database that lacks the last commits.
func (c *call) placeStream(u catalog.Upload, in *uploadBody) error {
	if c.known > u.Size {
		return c.outOfOrder(u, c.known)
	}
	if c.known == u.Size || in.Length == 0 {
		return nil
	}
	if c.known > u.LastFrom {
		in.skip = u.Size - c.known
		return nil
	}
	there := u.LastHead
	if u.StoreState == nil && u.LastFrom <= int64(len(u.Tail)) {
		there = u.Tail[u.LastFrom:]
	}
	body := in.beginning()
	n := min(len(body), len(there))
	if n > 0 && bytes.Equal(body[:n], there[:n]) {
		in.skip = u.Size - u.LastFrom
	}
	return nil
}

// discard reads the bytes of the body that the upload has already, as far as they aren't in the
// buffer.
func (in *uploadBody) discard() {
	if n := in.skip - int64(len(in.buffer)); n > 0 {
		io.CopyN(io.Discard, in, n) //nolint:errcheck // in.Lost has the error
	}
}

// completedBefore says whether an earlier request has made the upload the blob with the digest
// `d`, so that its client only lacks the answer. `refusal` is the error of this request. The upload
// has no row any more, so the blob tells: it is in this repository, to which the client may push.
// Garbage collection keeps it for the review delay, as after any other answer that a blob exists.
func (a *API) completedBefore(c *call, d oci.Digest, refusal error) (bool, error) {
	if oci.CodeOf(refusal) != oci.BlobUploadUnknown && !errors.Is(refusal, catalog.ErrUploadMoved) {
		return false, nil
	}
	if _, _, err := parseUploadRef(c.ref); err != nil {
		return false, nil //nolint:nilerr // the URL names no upload, and `refusal` says so
	}
	if _, err := a.storedUpload(c); oci.CodeOf(err) != oci.BlobUploadUnknown {
		return false, nil //nolint:nilerr // there is such an upload, or nobody knows; `refusal` stands
	}
	_, err := a.catalog.PromiseBlobExists(c.r.Context(), c.name, d)
	if code := oci.CodeOf(err); code == oci.BlobUnknown || code == oci.NameUnknown {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if c.r.Header.Get("Expect") == "" {
		// A connection that is closed while the client still sends may take the answer with it.
		io.Copy(io.Discard, a.server.Body(c.ResponseWriter, c.r)) //nolint:errcheck // nothing depends on these bytes
	}
	return true, nil
}
