package distribution

import (
	"context"
	"net/http"
	"strconv"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// maxSources limits how many repositories are tried as the source of a blob to mount, if the
// client names no source.
const maxSources = 50

// startUpload answers POST to /blobs/uploads/ (OCI specification, "Pushing blobs"). If the
// query names a blob to mount, startUpload tries to link the blob of another repository to this
// repository (mount). If nothing was mounted, but the query names a digest and the request has
// a body, startUpload stores the body as a blob. Otherwise it starts an upload.
func (a *API) startUpload(c *call) error {
	q := c.r.URL.Query()
	if mount := q.Get("mount"); mount != "" {
		done, err := a.mount(c, mount, q.Get("from"))
		if done || err != nil {
			return err
		}
	}
	algorithm := oci.SHA256
	if name := q.Get("digest-algorithm"); name != "" {
		var err error
		if algorithm, err = oci.ParseAlgorithm(name); err != nil {
			return oci.Errorf(oci.DigestInvalid, "digest-algorithm: %v", err)
		}
	}
	var whole oci.Digest
	if d := q.Get("digest"); d != "" {
		var err error
		if whole, err = parseDigest(d); err != nil {
			return err
		}
		algorithm = whole.Algorithm()
		if err := a.quotas.AdmitBlob(c.r.Context(), c.name, uuid.Nil, whole, c.r.ContentLength); err != nil {
			return err
		}
	}
	home, err := a.catalog.Home(c.r.Context(), c.name)
	if err != nil {
		return err
	}
	if c.names, err = a.uploads.names.of(c.r.Context(), c.name, home); err != nil {
		return err
	}
	o := server.Observed(c.r.Context())
	u, err := a.uploads.start(c.r.Context(), uploader{o.Client, o.Account()})
	if err != nil {
		return err
	}
	u.Repository, u.Home, u.Algorithm = c.name, home, algorithm
	if algorithm != oci.SHA256 {
		if u, err = a.catalog.SaveUpload(c.r.Context(), u); err != nil {
			return err
		}
	}
	a.uploads.remember(u)
	// If the query names a digest but the request has no body, the client will send the content
	// in a later request, so the answer has an upload's URL. The exception is the digest of empty
	// content, which is complete without a body.
	if !whole.IsZero() && (c.r.ContentLength != 0 || whole == oci.Compute(algorithm, nil)) {
		c.ref = c.names.name(u.ID).String()
		return a.complete(c, whole)
	}
	c.uploadState(u, http.StatusAccepted)
	return nil
}

// mount links a blob of another repository to this repository, and answers 201. It returns
// false if no repository that the client may read has the blob; startUpload then starts an
// upload instead.
func (a *API) mount(c *call, digest, from string) (bool, error) {
	d, err := parseDigest(digest)
	if err != nil {
		return false, err
	}
	sources := []string{from}
	if from == "" {
		viewer, err := a.server.Viewer(c.r.Context())
		if err != nil {
			return false, err
		}
		if sources, err = a.browser.Sources(c.r.Context(), viewer, d, maxSources); err != nil {
			return false, err
		}
	} else if err := oci.ValidateName(from); err != nil {
		return false, oci.Errorf(oci.NameInvalid, "from: %v", err).WithDetail(map[string]string{"name": from})
	}
	for _, source := range sources {
		if !a.server.MayRead(c.r.Context(), source) {
			continue
		}
		done, err := a.catalog.Mount(c.r.Context(), c.name, source, d)
		if err != nil {
			return false, err
		}
		if done {
			c.Header().Set("Docker-Content-Digest", d.String())
			c.created("/v2/" + c.name + "/blobs/" + d.String())
			return true, nil
		}
	}
	return false, nil
}

// uploadState answers with the state of an upload.
func (c *call) uploadState(u catalog.Upload, status int) {
	c.uploadHeaders(u)
	if status != http.StatusNoContent {
		c.Header().Set("Content-Length", "0")
	}
	c.WriteHeader(status)
}

func (c *call) uploadHeaders(u catalog.Upload) {
	h, name := c.Header(), c.names.name(u.ID).String()
	h.Set("Location", server.Observed(c.r.Context()).Base+"/v2/"+c.name+"/blobs/uploads/"+uploadRef(name, u.Size))
	h.Set("Range", "0-"+strconv.FormatInt(max(u.Size-1, 0), 10))
	h.Set("Docker-Upload-Uuid", name)
}

// upload returns the upload that the request's path names. If `remembered` is true, the upload
// is this process's copy of the row and may be outdated; otherwise the row was just read from
// the database.
func (a *API) upload(c *call) (u catalog.Upload, remembered bool, err error) {
	list, cached, err := a.candidates(c, a.catalog.KnownHome)
	if err != nil {
		return u, false, err
	}
	for _, x := range list {
		if u, ok := a.uploads.recall(c.name, x.ID); ok {
			c.names = x.names
			return u, true, nil
		}
	}
	u, err = a.stored(c, list, cached)
	return u, false, err
}

// storedUpload is like upload, but always reads the row.
func (a *API) storedUpload(c *call) (u catalog.Upload, err error) {
	list, cached, err := a.candidates(c, a.catalog.KnownHome)
	if err != nil {
		return u, err
	}
	return a.stored(c, list, cached)
}

// candidate is an upload that the request's URL may name, with the translation by which it does.
type candidate struct {
	catalog.UploadID
	names repositoryNames
}

// candidates returns the uploads that the request's URL may name, by the home of the repository that
// the function `find` returns. The URL doesn't say whether the repository, or its namespace, was made
// before the upload began. `cached` is the result of `find`.
func (a *API) candidates(c *call, find func(ctx context.Context, path string) (h catalog.Home, cached bool, err error)) (list []candidate, cached bool, err error) {
	name, known, err := parseUploadRef(c.ref)
	if err != nil {
		return nil, false, oci.Errorf(oci.BlobUploadUnknown, "%q is not an upload's identifier", c.ref)
	}
	c.known = known
	now, cached, err := find(c.r.Context(), c.name)
	if err != nil {
		return nil, false, err
	}
	for _, home := range now.Earlier() {
		names, err := a.uploads.names.of(c.r.Context(), c.name, home)
		if err != nil {
			return nil, false, err
		}
		list = append(list, candidate{catalog.UploadID{ID: names.id(name), Home: home}, names})
	}
	return list, cached, nil
}

// stored returns the candidate that has a row. If there is none, and the home of the candidates comes
// from the cache, another repository may have got the path by now; then stored looks again.
func (a *API) stored(c *call, list []candidate, cached bool) (u catalog.Upload, err error) {
	ids := make([]catalog.UploadID, len(list))
	for i, x := range list {
		ids[i] = x.UploadID
	}
	u, err = a.catalog.Upload(c.r.Context(), c.name, ids...)
	if cached && oci.CodeOf(err) == oci.BlobUploadUnknown {
		list, _, err = a.candidates(c, func(ctx context.Context, path string) (catalog.Home, bool, error) {
			h, err := a.catalog.Home(ctx, path)
			return h, false, err
		})
		if err != nil {
			return u, err
		}
		return a.stored(c, list, false)
	}
	for _, x := range list {
		if err == nil && x.ID == u.ID {
			c.names = x.names
		}
	}
	return u, err
}

func (a *API) uploadStatus(c *call) error {
	u, err := a.storedUpload(c)
	if err != nil {
		return err
	}
	c.uploadState(u, http.StatusNoContent)
	return nil
}

// patchUpload answers PATCH (OCI specification, "Pushing a blob in chunks"): it appends the
// request's body to an upload. The body is a chunk if the request has a Content-Range, else a
// stream.
func (a *API) patchUpload(c *call) error {
	u, err := a.receive(c)
	if err != nil {
		return err
	}
	c.uploadState(u, http.StatusAccepted)
	return nil
}

// checkChunk finds out where in the upload the request's body begins. With a Content-Range, it
// returns an error with status 416 if the range doesn't begin where the upload ends, and an
// error with status 400 if it can't be parsed or contradicts Content-Length. Without one, it
// asks placeStream.
func (c *call) checkChunk(u catalog.Upload, in *uploadBody) error {
	in.skip = 0
	v := c.r.Header.Get("Content-Range")
	if v == "" {
		return c.placeStream(u, in)
	}
	start, end, err := oci.ParseContentRange(v)
	if err != nil {
		return oci.Errorf(oci.BlobUploadInvalid, "Content-Range: %v", err)
	}
	if start != u.Size {
		return c.outOfOrder(u, start)
	}
	in.want = end - start + 1
	if n := c.r.ContentLength; n >= 0 && n != in.want {
		return oci.Errorf(oci.SizeInvalid, "Content-Range names %d bytes, Content-Length %d", in.want, n)
	}
	return nil
}

func (c *call) outOfOrder(u catalog.Upload, start int64) error {
	c.uploadHeaders(u)
	return oci.Errorf(oci.BlobUploadInvalid, "the chunk begins at byte %d, but %d bytes have arrived", start, u.Size).
		WithStatus(http.StatusRequestedRangeNotSatisfiable).
		WithDetail(map[string]int64{"offset": u.Size})
}

// putUpload finishes an upload, with or without a last chunk.
func (a *API) putUpload(c *call) error {
	digest := c.r.URL.Query().Get("digest")
	if digest == "" {
		return oci.Errorf(oci.DigestInvalid, "the digest parameter is missing: name the whole blob's digest")
	}
	d, err := parseDigest(digest)
	if err != nil {
		return err
	}
	return a.complete(c, d)
}

// complete appends the request's body and makes the upload a blob. If an earlier request has
// done so already, and its answer was lost, complete answers the same again.
func (a *API) complete(c *call, d oci.Digest) error {
	if err := a.commit(c, d); err != nil {
		done, errDone := a.completedBefore(c, d, err)
		if errDone != nil {
			return errDone
		}
		if !done {
			return err
		}
	}
	c.Header().Set("Docker-Content-Digest", d.String())
	c.created("/v2/" + c.name + "/blobs/" + d.String())
	return nil
}

func (a *API) cancelUpload(c *call) error {
	u, err := a.storedUpload(c)
	if err != nil {
		return err
	}
	a.uploads.recall(c.name, u.ID)
	if err := a.catalog.CancelUpload(c.r.Context(), c.name, u.UploadID()); err != nil {
		return err
	}
	c.WriteHeader(http.StatusNoContent)
	return nil
}
