package server

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"syscall"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
)

// statusClientGone is the status that the access log shows for a request whose client closed
// the connection before the answer.
const statusClientGone = 499

// Fail answers the request with an error, in the format of the interface that the request is
// for. All handlers leave their errors to Fail, except for the handlers of the management API:
// the library huma writes their errors.
func (s *Server) Fail(w http.ResponseWriter, r *http.Request, err error) {
	e := Answer(r.Context(), err)
	o := Observed(r.Context())
	o.Err = err
	if o.status != 0 { // part of the answer was sent: close the connection, so that the client notices
		_, ofStore := errors.AsType[*blob.StoreError](err)
		o.cut = r.Context().Err() == nil && (ofStore || errors.Is(err, io.ErrUnexpectedEOF)) // otherwise the client hung up
		panic(http.ErrAbortHandler)
	}
	SetRetry(w.Header(), e)
	body := s.mounted(r).MarshalError(e)
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(e.HTTPStatus())
	if r.Method != http.MethodHead {
		w.Write(body) //nolint:errcheck // the client is gone, and knows
	}
}

// SetRetry sets the header fields of an answer with the error that say when and how the client
// may try again.
func SetRetry(h http.Header, e *oci.Error) {
	switch e.HTTPStatus() {
	case http.StatusServiceUnavailable:
		h.Set("Retry-After", "2")
	case http.StatusTooManyRequests:
		h.Set("Retry-After", "10")
	case http.StatusRequestTimeout: // the client would send the rest of the body as slowly
		h.Set("Connection", "close")
	}
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(e.RetryAfter.Seconds()))))
	}
}

// Refusal returns an error whose status and text the client receives as they are.
func Refusal(status int, format string, args ...any) *oci.Error {
	return oci.Errorf(oci.Unsupported, format, args...).WithStatus(status)
}

// NothingAt returns the error for a path that no route has.
func NothingAt(r *http.Request) error {
	return Refusal(http.StatusNotFound, "there is nothing at %s", r.URL.Path)
}

// Answer returns the error that the client receives for `err`. If `err` is an *oci.Error, which
// was made for clients, Answer returns it unchanged. For any other error, Answer chooses a text
// by the kind of failure; the text of `err` itself is only logged.
func Answer(ctx context.Context, err error) *oci.Error {
	if e, ok := errors.AsType[*oci.Error](err); ok {
		return e
	}
	_, full := errors.AsType[*limit.FullError](err)
	disk, diskFull := errors.AsType[*blob.DiskFullError](err)
	store, ofStore := errors.AsType[*blob.StoreError](err)
	switch {
	case ctx.Err() != nil:
		return oci.Errorf(oci.Unknown, "the client closed the connection").WithStatus(statusClientGone)
	case full:
		return oci.Errorf(oci.Unavailable, "the registry has no memory left for further bodies of requests: try again in a moment")
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return oci.Errorf(oci.Unavailable, "the registry has too many files open: try again in a moment")
	case errors.Is(err, blob.ErrWrongStore):
		return storeAnswer(blob.TroubleAway)
	case errors.Is(err, blob.ErrBusy):
		return oci.Errorf(oci.Unavailable, "another request is still writing to this upload: try again in a moment")
	case errors.Is(err, blob.ErrFenced):
		return oci.Errorf(oci.BlobUploadInvalid, "another request has taken over this upload: ask for its state and go on from there").
			WithStatus(http.StatusRequestedRangeNotSatisfiable)
	case errors.Is(err, blob.ErrLost):
		return oci.Errorf(oci.BlobUploadUnknown, "the bytes of this upload are gone from the store: start another")
	case errors.Is(err, blob.ErrTooManyParts):
		return oci.Errorf(oci.BlobUploadInvalid, "the upload was sent in too many small requests: start another with larger chunks")
	case diskFull:
		return oci.Errorf(oci.Unavailable, "%v: nothing can be pushed until something is deleted", disk).WithStatus(http.StatusInsufficientStorage)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return storeAnswer(blob.TroubleFull)
	case ofStore:
		return storeAnswer(store.Trouble)
	case errors.Is(err, db.ErrBusy):
		return oci.Errorf(oci.Unavailable, "all connections of the registry to its database are in use: try again in a moment")
	case db.Unavailable(err):
		return oci.Errorf(oci.Unavailable, "the registry's database is not available now: try again")
	case db.Denied(err):
		return oci.Errorf(oci.Unavailable, "the registry's database refuses access to the registry: its operator has to check the rights of the database's role")
	case db.Contended(err):
		return oci.Errorf(oci.Unavailable, "other requests are changing the same data: try again in a moment")
	case errors.Is(err, context.DeadlineExceeded):
		return oci.Errorf(oci.Unavailable, "the request took too long: try again")
	}
	return oci.NewError(oci.Unknown)
}

// storeAnswer returns the error that the client receives when the blob store can't be used. Its
// text names the kind of trouble, such as a full store; details are only logged.
func storeAnswer(trouble blob.Trouble) *oci.Error {
	switch trouble {
	case blob.TroubleForbidden:
		return oci.Errorf(oci.Unavailable, "the registry's storage refuses access to the registry: its operator has to check permissions or credentials")
	case blob.TroubleMissing:
		return oci.Errorf(oci.Unavailable, "the registry's storage is missing: its operator has to restore its directory, volume or bucket")
	case blob.TroubleReadOnly:
		return oci.Errorf(oci.Unavailable, "the registry's storage is read-only: nothing can be pushed now")
	case blob.TroubleFull:
		return oci.Errorf(oci.Unavailable, "the registry's storage is full").WithStatus(http.StatusInsufficientStorage)
	case blob.TroubleAway:
	}
	return oci.Errorf(oci.Unavailable, "the registry's storage is not available now: try again")
}

// Warn logs a failure in spite of which the request goes on. If the client has closed the
// connection, Warn logs nothing: the request's context has then ended, which makes every
// further operation of the request fail.
func (s *Server) Warn(ctx context.Context, message string, err error) {
	if ctx.Err() == nil {
		s.log.WarnContext(ctx, message, "error", err)
	}
}
