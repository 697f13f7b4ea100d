// Package blob keeps the bytes of blobs: on a local disk (Dir) or, in its
// subpackage s3, in an S3-compatible store.
//
// A store decides nothing. Rows in the metadata database say which objects
// exist and who owns each; the store keeps bytes under keys. What makes that
// safe, whatever stalls or dies, and in whatever order:
//
//   - A key is made once and never used again. Every upload has a random base,
//     and each object that it makes is named base-N, where N is a number from
//     the upload's row that no other attempt ever gets. A late write or a late
//     delete can therefore only hit the object that it was meant for.
//   - An object is invisible until a row names it. So it is written in place
//     under its final key: commit moves a row and not the bytes, no rename and
//     no copy stands between the last byte and the commit, and what a crash
//     leaves half-written is a name that no row will ever mention.
//   - A key or a state is returned only when its bytes are durable.
//   - An attempt (one request that writes to an upload) claims the upload's row
//     before it touches a stored byte, and so fences every earlier attempt. An
//     earlier attempt that wakes up later finds its claim gone when it asks for
//     a number, saves or commits, and what it still writes goes to names and
//     part numbers of its own.
//
// The store never verifies digests: its caller hashes the bytes as they stream.
package blob

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strconv"
	"strings"
	"time"
)

var (
	// ErrNotFound says that the store has no object under the key.
	ErrNotFound = errors.New("object not found in the blob store")

	// ErrWrongStore says that this isn't the store of the registry's database: its
	// volume isn't mounted, or it belongs to another registry. What it has or lacks
	// says nothing about the registry's objects.
	ErrWrongStore = errors.New("this is not the registry's blob store")

	// ErrFenced says that a newer attempt has claimed the upload. It comes from
	// the caller's Claim and Numbers, and the store passes it on.
	ErrFenced = errors.New("a newer request has taken over this upload")

	// ErrBusy says that another writer held the upload until the context ended.
	// Nothing was claimed or changed; the request may be made again.
	ErrBusy = errors.New("another request is still writing to this upload")

	// ErrLost says that bytes which were acknowledged are no longer in the
	// store: a file shorter than it was, a multipart upload that is gone. The
	// upload can't be continued; its client has to start a new one.
	ErrLost = errors.New("the blob store lost acknowledged bytes of this upload")

	// ErrTooManyParts says that an upload has used up the 10,000 part numbers
	// of S3, by its size or by the number of its requests.
	ErrTooManyParts = errors.New("the upload has used up its 10,000 parts; push it in fewer and larger requests")
)

// A Claim makes the running attempt the only one that may continue the upload.
//
// In one statement on the upload's row it verifies that the row still holds the
// state and the size that were given to Resume, sets a new fencing token, and
// returns next, the lowest number that has not been given out. It must fail (with
// ErrFenced or the row's own error) when the row has moved on or is gone, because
// Resume may have waited for another attempt which then saved: the caller reads
// the row again and starts over. To compare the fencing token is not enough,
// because the other attempt may have claimed before the row was read and saved
// after it.
//
// A next above what the state accounts for tells the writer that an attempt took
// numbers and was never saved, so that objects of it may be about.
type Claim func(ctx context.Context) (next int64, err error)

// Numbers gives out n >= 1 consecutive numbers, the first of which it returns.
//
// Over the life of an upload numbers start at 0 and only ever grow; none is given
// out twice, whatever fails. A number that the caller takes in advance and doesn't
// hand on does no harm but that the next attempt looks for objects that are not
// there. It returns ErrFenced when this attempt's claim is no longer the last one.
type Numbers func(ctx context.Context, n int) (first int64, err error)

// State describes what is stored of an unfinished upload. It is JSON, its content
// is the store's own, and the upload's row keeps it. nil means that nothing is
// stored yet.
type State = json.RawMessage

// Store keeps bytes under keys. All methods may be called concurrently and obey
// their context. Both implementations are tested by the suite in blobtest.
type Store interface {
	// Resume returns a Writer that appends to the size bytes which state
	// describes and which have been acknowledged to the client; state nil and
	// size 0 begin a new upload. base is the upload's own, from NewBase.
	//
	// claim is called exactly once, when the local exclusion is held or known
	// not to be available, and before any stored byte is touched. If it fails,
	// Resume returns its error and has changed nothing. Bytes after size were
	// never acknowledged, and are dropped. No object is made before the Writer
	// has bytes to put in it.
	//
	// ctx also governs the Writer's Write and ReadFrom. A caller that wants to
	// save what arrived before its client hung up passes a context that outlives
	// the client's.
	//
	// Errors: ErrBusy, ErrLost, and what claim returns.
	Resume(ctx context.Context, base string, state State, size int64, claim Claim, numbers Numbers) (Writer, error)

	// Open returns length bytes of an object from offset off; a length of -1
	// means to its end. It costs one round trip to the store, and returns
	// ErrNotFound itself, so that a caller knows before it answers. A reader
	// that has fewer than length bytes to give ends with io.ErrUnexpectedEOF.
	//
	// io.Copy from the reader to a TCP connection (a plain http.ResponseWriter
	// included) uses sendfile where the store has files. ctx governs reading.
	Open(ctx context.Context, key string, off, length int64) (io.ReadCloser, error)

	// Delete deletes objects, in as few requests as the store allows. A missing
	// one is no error. When it returns nil, none of them comes back after a
	// crash. Otherwise it returns joined errors: one *DeleteError for each key
	// that may still be there.
	Delete(ctx context.Context, keys []string) error

	// DeleteUpload deletes every object that the upload made, except the one
	// under keep ("": none), and aborts its multipart uploads. Nothing there is
	// no error. An attempt that was fenced but still runs may write once more
	// after this; the caller repeats the call when the longest request is over.
	DeleteUpload(ctx context.Context, base, keep string) error

	// Stat looks at one object, foreign ones included. It returns ErrNotFound
	// itself.
	Stat(ctx context.Context, key string) (Object, error)

	// List gives the objects that uploads made and whose keys begin with prefix
	// ("": all), in the order of the bytes of their keys. Foreign objects, those
	// whose keys UploadOf doesn't know, are not listed: they are nobody's to
	// count. One page is in memory at a time (of a Dir, the names in one of its
	// 256 directories). What is there from the beginning to the end is listed;
	// what comes or goes meanwhile may be. An error ends the list.
	List(ctx context.Context, prefix string) iter.Seq2[Object, error]

	// Unfinished gives the multipart uploads that are neither completed nor
	// aborted, of uploads whose bases begin with prefix, in no order. A store
	// without such things has none. An error ends the list.
	Unfinished(ctx context.Context, prefix string) iter.Seq2[Unfinished, error]

	// Presign returns a URL from which a client can GET the object directly
	// until o.TTL is over, or "" when the store can't. It doesn't look whether
	// the object exists.
	Presign(ctx context.Context, key string, o PresignOptions) (string, error)

	// Check reports whether the store can be read and written. It is cheap
	// enough to be called every few seconds.
	Check(ctx context.Context) error

	// Identity returns the id that SetIdentity gave the store, "" if it has none.
	// It costs one small read.
	Identity(ctx context.Context) (string, error)

	// SetIdentity keeps id, a UUID, in an object of its own, which is no upload's
	// and which List leaves out. Without replace it leaves an identity that is there
	// as it is, and returns no error: the caller asks for Identity afterwards. When
	// it returns nil, the identity is durable.
	SetIdentity(ctx context.Context, id string, replace bool) error
}

// Object is what a store says of one of its objects.
type Object struct {
	Key      string
	Size     int64     // bytes
	Modified time.Time // no earlier than it was begun, no later than its last byte; by the store's clock
}

// Unfinished is a multipart upload whose parts take space and are no object yet.
type Unfinished struct {
	Base  string    // of the upload that it belongs to
	Began time.Time // by the store's clock
}

// PresignOptions say what a presigned URL allows and answers.
type PresignOptions struct {
	TTL         time.Duration // how long the URL works; default 15 minutes, at most 7 days
	ContentType string        // Content-Type of the answer; default application/octet-stream
}

// Writer appends to one upload for one attempt. It is used by one goroutine.
//
// An attempt writes, then calls Save or Finish once, then Close. A failure of the
// store is final: every later call but Close returns it again, and what was saved
// before still stands. The error of a full disk satisfies errors.Is(err,
// syscall.ENOSPC).
type Writer interface {
	// Write takes the bytes; it makes none of them durable. Each Write costs
	// system calls, so it should be given 256 KiB or more at a time.
	io.Writer

	// ReadFrom writes all that r gives, in large pieces. Bytes that r returns
	// before it fails are written and counted, its error is returned as it is,
	// and doesn't end the Writer: Save keeps what arrived.
	io.ReaderFrom

	// Save makes every byte written so far durable and returns the state that
	// describes them together with those of earlier attempts. The caller keeps
	// it in the row, with the new size, if its claim is still the last one.
	// The state may be nil when there are no bytes at all.
	Save(ctx context.Context) (State, error)

	// Finish makes the object complete and durable, and returns the key under
	// which Open finds it. An upload without a byte makes an empty object.
	//
	// Until a row has the key, the state in the upload's row stays valid: when
	// the process dies in between, another attempt can Resume and Finish.
	Finish(ctx context.Context) (key string, err error)

	// Leftovers reports, after Finish, whether the store may hold objects of
	// this upload other than the one that Finish named. Then the caller has them
	// removed with DeleteUpload, once the key is committed.
	Leftovers() bool

	// Close releases locks and memory. It may be called at any time, more than
	// once, and aborts nothing that a state describes.
	Close() error
}

// Look says what is wrong with an object that must have size bytes: "" for nothing.
func Look(ctx context.Context, s Store, key string, size int64) (wrong string, err error) {
	o, err := s.Stat(ctx, key)
	switch {
	case errors.Is(err, ErrNotFound):
		return "it is missing", nil
	case err != nil:
		return "", err
	case o.Size != size:
		return fmt.Sprintf("it has %d bytes instead of %d", o.Size, size), nil
	}
	return "", nil
}

// NewBase returns a base for a new upload: 128 random bits as 32 lower-case
// hexadecimal digits.
func NewBase() string {
	var b [16]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the process instead
	return hex.EncodeToString(b[:])
}

// CheckBase refuses a base that NewBase can't have made. Stores rely on its form:
// without a "-" in it no base is another one's prefix up to the number.
func CheckBase(base string) error {
	if b, err := hex.DecodeString(base); err != nil || len(b) != 16 || strings.ToLower(base) != base {
		return fmt.Errorf("upload base %q is not 32 lower-case hexadecimal digits", base)
	}
	return nil
}

// UploadOf returns the base of the upload that made an object, false for a key
// that no upload makes: the object is another program's, or one of another
// registry that was taken over where it lies.
func UploadOf(key string) (base string, ok bool) {
	base, number, _ := strings.Cut(key, "-")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != number || CheckBase(base) != nil {
		return "", false
	}
	return base, true
}

// DeleteError says that one object could not be deleted.
type DeleteError struct {
	Key string
	Err error
}

func (e *DeleteError) Error() string { return fmt.Sprintf("deleting object %s: %v", e.Key, e.Err) }

func (e *DeleteError) Unwrap() error { return e.Err }
