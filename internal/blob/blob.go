// Package blob stores the bytes of blobs: on a local disk (Dir) or, in its subpackage
// s3, in an S3-compatible store.
//
// A store makes no decisions. Rows in the metadata database say which objects exist and
// who owns each; the store keeps bytes under keys. Four rules make this safe, whichever
// process stalls or dies, and in whatever order requests arrive:
//
//   - A key is used for one object only. Every upload has a random base, and each of
//     its objects is named base-N, where N is a number from the upload's row that no
//     other attempt ever gets. So a late write or a late delete can only hit the
//     object that it was meant for.
//   - An object is invisible until a row names it. So it is written in place under
//     its final key: a commit changes a row and moves no bytes, without a rename or
//     copy after the last byte. After a crash, a half-written object has a name that
//     no row will ever mention.
//   - The store returns a key or a state only when its bytes are durable.
//   - An attempt (one request that writes to an upload) claims the upload's row
//     before it touches a stored byte, which fences every earlier attempt. An earlier
//     attempt that wakes up later finds that its claim is gone when it asks for a
//     number, saves or commits. Until then it writes only to names and part numbers
//     of its own.
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
	// volume isn't mounted, or it belongs to another registry. Which objects it has or
	// lacks says nothing about the registry's objects.
	ErrWrongStore = errors.New("this is not the registry's blob store")

	// ErrFenced says that a newer attempt has claimed the upload. The caller's Claim
	// and Numbers return it, and the store passes it on.
	ErrFenced = errors.New("a newer request has taken over this upload")

	// ErrBusy says that another writer held the upload until the context ended. Nothing
	// was claimed or changed, so the request can be repeated.
	ErrBusy = errors.New("another request is still writing to this upload")

	// ErrLost says that acknowledged bytes are no longer in the store, because a file
	// is shorter than it was or a multipart upload is gone. The upload can't be
	// continued; its client has to start a new one.
	ErrLost = errors.New("the blob store lost acknowledged bytes of this upload")

	// ErrTooManyParts says that an upload has used up S3's 10,000 part numbers, by its
	// size or by the number of its requests.
	ErrTooManyParts = errors.New("the upload has used up its 10,000 parts; push it in fewer and larger requests")
)

// A Claim makes the running attempt the only one that may continue the upload.
//
// In one statement on the upload's row, Claim verifies that the row still holds the state
// and size that were given to Resume, sets a new fencing token, and returns next, the
// lowest number that hasn't been given out. It must fail (with ErrFenced or the row's own
// error) if the row has changed or is gone: Resume may have waited for another attempt,
// which then saved, so the caller must read the row again and start over. Comparing the
// fencing token alone isn't enough, because the other attempt may have claimed before the
// caller read the row, and saved afterwards.
//
// If next is higher than the state says, an earlier attempt took numbers and never saved,
// so objects of that attempt may exist.
type Claim func(ctx context.Context) (next int64, err error)

// Numbers gives out n >= 1 consecutive numbers and returns the first.
//
// Numbers of an upload start at 0 and only grow; none is given out twice, whatever
// fails. The caller may take numbers in advance and not use them; the only cost is that
// the next attempt looks for objects that don't exist. It returns ErrFenced if this
// attempt's claim is no longer the last one.
type Numbers func(ctx context.Context, n int) (first int64, err error)

// State describes the stored part of an unfinished upload. It is JSON whose content
// only the store knows, kept in the upload's row. nil means that nothing is stored yet.
type State = json.RawMessage

// Store keeps bytes under keys. All methods may be called concurrently and obey
// their context. Both implementations are tested by the suite in blobtest.
type Store interface {
	// Resume returns a Writer that appends to the size acknowledged bytes that state
	// describes; state nil and size 0 begin a new upload. base is the upload's base,
	// from NewBase.
	//
	// Resume calls claim exactly once, after it has locked the object or found that it
	// can't lock it, and before it touches any stored byte. If claim fails, Resume returns
	// claim's error and has changed nothing. Stored bytes after size were never
	// acknowledged, and are dropped. No object is created before the Writer gets bytes.
	//
	// ctx also governs the Writer's Write and ReadFrom. A caller that wants to save the
	// bytes that arrived before its client hung up passes a context that outlives the
	// client's connection.
	//
	// Errors: ErrBusy, ErrLost, and claim's.
	Resume(ctx context.Context, base string, state State, size int64, claim Claim, numbers Numbers) (Writer, error)

	// Open returns length bytes of an object from offset off; a length of -1 means up
	// to its end. It makes one round trip to the store, and returns ErrNotFound itself
	// rather than from the reader, so that the caller knows before it answers. A reader
	// that has fewer than length bytes ends with io.ErrUnexpectedEOF.
	//
	// io.Copy from the reader to a TCP connection (a plain http.ResponseWriter
	// included) uses sendfile if objects are files. ctx governs reading.
	Open(ctx context.Context, key string, off, length int64) (io.ReadCloser, error)

	// Delete deletes objects, in as few requests as the store allows. A missing object
	// is no error. If Delete returns nil, none of the objects reappears after a crash.
	// Otherwise it returns joined errors: one *DeleteError for each key that may still
	// exist.
	Delete(ctx context.Context, keys []string) error

	// DeleteUpload deletes all objects of the upload except the one under keep ("":
	// all), and aborts its multipart uploads. It is no error if there are none. A
	// fenced attempt that is still running may write once more afterwards; therefore
	// the caller repeats the call after the longest possible request.
	DeleteUpload(ctx context.Context, base, keep string) error

	// Stat returns size and time of one object, which may be a foreign one. Error:
	// ErrNotFound.
	Stat(ctx context.Context, key string) (Object, error)

	// List returns the objects of uploads whose keys begin with prefix ("": all),
	// sorted by the bytes of their keys. It leaves out foreign objects, whose keys
	// UploadOf doesn't recognise, since the registry doesn't own them. It holds one
	// page in memory (in a Dir, the names in one of its 256 directories). Objects that
	// exist during the whole listing are listed; those that are created or deleted
	// meanwhile may be. An error ends the list.
	List(ctx context.Context, prefix string) iter.Seq2[Object, error]

	// Unfinished returns the multipart uploads that are neither completed nor aborted,
	// of uploads whose bases begin with prefix, unordered. A store without multipart
	// uploads returns none. An error ends the list.
	Unfinished(ctx context.Context, prefix string) iter.Seq2[Unfinished, error]

	// Presign returns a URL from which a client can GET the object directly for o.TTL,
	// or "" if the store doesn't support this. It doesn't check that the object exists.
	Presign(ctx context.Context, key string, o PresignOptions) (string, error)

	// Check returns an error if the store can't be read and written. It is cheap enough
	// to be called every few seconds.
	Check(ctx context.Context) error

	// Identity returns the id that SetIdentity stored, "" if there is none. It costs
	// one small read.
	Identity(ctx context.Context) (string, error)

	// SetIdentity stores id, a UUID, in an object of its own, which belongs to no
	// upload and which List leaves out. Without replace it keeps an existing identity
	// and returns no error, so the caller must call Identity afterwards. When it
	// returns nil, the identity is durable.
	SetIdentity(ctx context.Context, id string, replace bool) error
}

// Object describes an object in a store.
type Object struct {
	Key      string
	Size     int64     // bytes
	Modified time.Time // by the store's clock, between the object's first and last byte
}

// Unfinished is a multipart upload whose parts use space, but aren't an object yet.
type Unfinished struct {
	Base  string    // of the upload to which it belongs
	Began time.Time // by the store's clock
}

// PresignOptions configure a presigned URL.
type PresignOptions struct {
	TTL         time.Duration // how long the URL is valid; default 15 minutes, at most 7 days
	ContentType string        // Content-Type of the answer; default application/octet-stream
}

// Writer appends to one upload for one attempt. Only one goroutine may use it.
//
// An attempt writes, then calls Save or Finish once, then Close. A failure of the store
// is final: every later call except Close returns it again. Bytes that were saved
// before stay saved. The error of a full disk satisfies errors.Is(err, syscall.ENOSPC).
type Writer interface {
	// Write accepts the bytes without making them durable. Each Write costs system
	// calls, so callers should pass 256 KiB or more at a time.
	io.Writer

	// ReadFrom writes everything that r returns, in large pieces. If r fails, the bytes
	// before the failure are written and counted, and r's error is returned unchanged.
	// This doesn't end the Writer: Save keeps the bytes that arrived.
	//
	// r may use the bytes of its last Read (to hash them, say) until it is read again or
	// the Writer's next method is called; until then nothing else is written there.
	io.ReaderFrom

	// Save makes all bytes written so far durable and returns the state that describes
	// them together with those of earlier attempts. The caller stores it in the row,
	// with the new size, if its claim is still the last one. The state may be nil if
	// there are no bytes at all.
	Save(ctx context.Context) (State, error)

	// Finish makes the object complete and durable, and returns its key for Open. An
	// upload without bytes becomes an empty object.
	//
	// Until a row has the key, the state in the upload's row stays valid: if the
	// process dies before, another attempt can Resume and Finish.
	Finish(ctx context.Context) (key string, err error)

	// Leftovers reports, after Finish, whether the store may hold other objects of this
	// upload. If so, the caller deletes them by DeleteUpload after it has committed the
	// key.
	Leftovers() bool

	// Close releases locks and memory. It may be called at any time and repeatedly. It
	// doesn't abort anything that a state describes.
	Close() error
}

// Look checks that an object exists with size bytes. It returns what is wrong, "" if
// nothing is.
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

// CheckBase refuses a base that NewBase can't have made. Stores rely on the format: a
// base has no "-", so the prefix "base-" matches objects of this upload only.
func CheckBase(base string) error {
	if b, err := hex.DecodeString(base); err != nil || len(b) != 16 || strings.ToLower(base) != base {
		return fmt.Errorf("upload base %q is not 32 lower-case hexadecimal digits", base)
	}
	return nil
}

// UploadOf returns the base of the upload that made an object. It returns false for a
// key that no upload makes: the object belongs to another program, or to another
// registry whose directory Purser adopted.
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
