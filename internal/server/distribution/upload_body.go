package distribution

import (
	"io"
	"math"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// uploadBody is the body of a request on an upload. It can read the first bytes of the body
// into a buffer, to find out whether the body is small, before it reads the rest.
type uploadBody struct {
	*server.RequestBody
	want int64 // length by Content-Range, -1 without that header
	// streaming says that the request has read bytes of the body that aren't kept in memory;
	// saved says that the request has saved the upload with bytes of the body. In both cases
	// the request can't start over with a newer copy of the upload's row.
	streaming, saved bool
	// skip is how many bytes at the body's beginning the upload has already, because the request
	// repeats an earlier one.
	skip int64
	head []byte // the first bytes of the body, up to catalog.HeadSize

	buffer []byte
	looked bool // buffer holds the beginning of the body
	whole  bool
}

func (a *API) newUploadBody(c *call) *uploadBody {
	return &uploadBody{RequestBody: a.server.Body(c.ResponseWriter, c.r), want: -1}
}

// first returns the first catalog.MaxTail+1 bytes of the body, or fewer if the body is shorter
// or ended early. `whole` is true if no further bytes of the body can be read. If
// Content-Length says that the body is longer than catalog.MaxTail, first reads nothing, and
// returns no bytes and false. A second call returns the same as the first call.
func (in *uploadBody) first() (b []byte, whole bool) {
	if in.Length <= catalog.MaxTail {
		in.look(catalog.MaxTail + 1)
	}
	return in.buffer, in.whole
}

// look reads the first `most` bytes of the body into the buffer, unless it holds some already.
func (in *uploadBody) look(most int) {
	if in.looked {
		return
	}
	in.buffer = in.Hold(most, 1)
	in.looked = true
	in.whole = in.Lost != nil || len(in.buffer) < most
	in.head = in.buffer[:min(len(in.buffer), catalog.HeadSize)]
}

// beginning returns at least the first catalog.HeadSize bytes of the body, or all of them if the
// body is shorter.
func (in *uploadBody) beginning() []byte {
	if b, _ := in.first(); b != nil {
		return b
	}
	in.look(catalog.HeadSize)
	return in.buffer
}

// Read reads from the body.
func (in *uploadBody) Read(p []byte) (int, error) {
	n, err := in.RequestBody.Read(p)
	if missing := catalog.HeadSize - len(in.head); missing > 0 && !in.looked {
		in.head = append(in.head, p[:min(n, missing)]...)
	}
	return n, err
}

// length returns how many bytes the request adds to the upload, by its Content-Length, or -1
// if it has none.
func (in *uploadBody) length() int64 {
	if in.Length < 0 {
		return -1
	}
	return max(in.Length-in.skip, 0)
}

// fresh returns how many bytes have arrived that the upload didn't have before.
func (in *uploadBody) fresh() int64 { return max(in.Received-in.skip, 0) }

// checkLength returns an error if the body arrived completely, and isn't as long as its
// Content-Range says.
func (in *uploadBody) checkLength() error {
	if in.want >= 0 && in.Lost == nil && in.Received != in.want {
		return oci.Errorf(oci.SizeInvalid, "Content-Range names %d bytes, but %d came", in.want, in.Received)
	}
	return nil
}

// admitEvery is how many bytes of a body are read at most before it is looked again whether the
// upload fits into its namespace's quota, which may be new.
const admitEvery = 8 << 20

// admittedReader reads a body. When the upload has more bytes than it has room for, it asks `admit`
// for more, and fails if it gets none.
type admittedReader struct {
	r     io.Reader
	size  int64 // of the upload
	room  int64 // math.MaxInt64: nothing limits it
	asked int64 // the size at which admit was last called
	admit func(size int64) (room int64, err error)
	// promise is that of the request. When it is over, the request asks again.
	promise *promise
}

func (a *admittedReader) Read(p []byte) (int, error) {
	n, err := a.r.Read(p)
	a.size += int64(n)
	if a.promise.lost.Load() {
		return 0, catalog.UploadMoved()
	}
	if a.promise.over() {
		a.room = 0
	}
	if a.size <= a.room && (a.room < math.MaxInt64 || a.size-a.asked < admitEvery) {
		return n, err
	}
	a.asked = a.size
	room, refused := a.admit(a.size)
	if refused != nil {
		return 0, refused
	}
	a.room = room
	return n, err
}
