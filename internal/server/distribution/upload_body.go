package distribution

import (
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// uploadBody is the body of a request on an upload. It can buffer the beginning of the
// body before the rest is read.
type uploadBody struct {
	*server.RequestBody
	want int64 // length by Content-Range, -1 without that header
	// streaming: bytes were read that can't be read again. saved: bytes were saved in
	// the upload's row.
	streaming, saved bool

	buffer []byte
	looked bool // buffer holds the beginning of the body
	whole  bool
}

func (a *API) newUploadBody(c *call) *uploadBody {
	return &uploadBody{RequestBody: a.server.Body(c.ResponseWriter, c.r), want: -1}
}

// first returns the beginning of the body, and whether that is the whole body. If
// Content-Length already says that the body is longer than catalog.MaxTail, it returns
// nothing, without waiting. It may be called repeatedly.
func (in *uploadBody) first() (b []byte, whole bool) {
	if in.Length > catalog.MaxTail {
		return nil, false
	}
	if !in.looked {
		in.buffer = in.Hold(catalog.MaxTail+1, 1)
		in.looked = true
		in.whole = in.Lost != nil || len(in.buffer) <= catalog.MaxTail
	}
	return in.buffer, in.whole
}

// checkLength checks that the body is as long as Content-Range says.
func (in *uploadBody) checkLength() error {
	if in.want >= 0 && in.Lost == nil && in.Received != in.want {
		return oci.Errorf(oci.SizeInvalid, "Content-Range names %d bytes, but %d came", in.want, in.Received)
	}
	return nil
}
