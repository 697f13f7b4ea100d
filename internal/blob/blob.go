// Package blob stores the bytes of blobs: on a local disk (Dir) or, in its subpackage
// s3, in an S3-compatible store.
//
// A store makes no decisions. Rows in the metadata database say which objects exist and which
// upload, blob or pending deletion owns each; the store only keeps bytes under storage keys.
// Four rules make this safe, whichever process stalls or dies, and in whatever order requests
// arrive:
//
//   - A key is used for one object only. Every upload has a random prefix, its base, and its
//     objects have the keys base-N, where N is a number from the upload's row that no other
//     attempt ever gets. So a late write or a late delete can only hit the object that it
//     was meant for.
//   - No client sees an object before a row names its key. So the object is written under
//     its final key: a commit changes a row, and no rename or copy follows the last byte.
//     If a crash leaves a half-written object, no row will ever name its key.
//   - The store returns a key or a state only when the bytes are durable.
//   - An attempt (one request that writes to an upload) claims the upload's row
//     before it touches a stored byte, which fences every earlier attempt. An earlier
//     attempt that wakes up later finds that its claim is gone when it asks for a
//     number, saves or commits. Until then it writes only to keys and part numbers
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

	// ErrWrongStore says that this store doesn't belong to the registry's database: its volume
	// isn't mounted, or it is another registry's store. So a missing object in it doesn't mean
	// that the registry has lost the object.
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

// A Claim makes the calling attempt the only one that may continue the upload.
//
// In one statement on the upload's row, Claim checks that the row still has the state and size
// that were given to Resume, sets a new fencing token, and returns next, the lowest number
// that hasn't been given out. If the row has changed or is gone, Claim must fail (with
// ErrFenced or the row's own error): while Resume waited for the object's lock, another
// attempt may have saved, so the caller must read the row again and start over. It isn't
// enough to compare the fencing token, because the other attempt may have claimed before the
// caller read the row, and saved afterwards.
//
// If next is higher than the next number in the state, an earlier attempt took numbers and
// never saved, so objects of that attempt may exist.
type Claim func(ctx context.Context) (next int64, err error)

// Numbers gives n >= 1 consecutive numbers to the attempt and returns the first.
//
// The numbers of an upload start at 0 and only grow; none is given twice, even after errors.
// An attempt may take numbers and not use them; then the next attempt looks for objects that
// don't exist. Numbers returns ErrFenced if a newer attempt has claimed the upload.
type Numbers func(ctx context.Context, n int) (first int64, err error)

// State describes the stored part of an unfinished upload. It is JSON that only the store
// understands and that is kept in the upload's row; nil means that nothing is stored yet.
type State = json.RawMessage

// Store keeps bytes under keys. Its methods may be called concurrently, and end when their
// context ends. The test suite in blobtest tests both implementations.
type Store interface {
	// Resume returns a Writer that appends to the acknowledged bytes of an upload, which state
	// describes; size is their number. A nil state and size 0 begin a new upload. base is the
	// prefix of the upload's keys, from NewBase.
	//
	// Resume calls claim exactly once: before it touches any stored byte, and after it has
	// locked the object that has the acknowledged bytes, or found that it can't lock it. If
	// claim fails, Resume returns claim's error and has changed nothing. Resume drops stored
	// bytes after size, since they were never acknowledged. No object is created before the
	// Writer gets bytes.
	//
	// ctx also governs the Writer's Write and ReadFrom. A caller that wants to save the
	// bytes that arrived before its client hung up passes a context that outlives the
	// client's connection.
	//
	// Errors: ErrBusy, ErrLost, and claim's.
	Resume(ctx context.Context, base string, state State, size int64, claim Claim, numbers Numbers) (Writer, error)

	// Open returns a reader of length bytes of an object, from the offset off; with length -1,
	// of all bytes from off. It makes one round trip to the store. Open itself returns
	// ErrNotFound, so the caller knows that the object is missing before it answers its
	// client. If the object has fewer bytes, the reader ends with io.ErrUnexpectedEOF.
	//
	// io.Copy from the reader to a TCP connection (a plain http.ResponseWriter
	// included) uses sendfile if objects are files. ctx governs reading.
	Open(ctx context.Context, key string, off, length int64) (io.ReadCloser, error)

	// Delete deletes objects, in as few requests as the store allows. A missing object
	// is no error. If Delete returns nil, none of the objects reappears after a crash.
	// Otherwise it returns joined errors: one *DeleteError for each key that may still
	// exist.
	Delete(ctx context.Context, keys []string) error

	// DeleteUpload deletes all objects of the upload except the one with the key keep ("":
	// all), and aborts the upload's multipart uploads. It is no error if there are none. A
	// fenced attempt that is still running may write once more afterwards. Therefore the
	// caller calls DeleteUpload again after the longest time that a request can take.
	DeleteUpload(ctx context.Context, base, keep string) error

	// Stat returns the size and time of an object, which may be one that the registry didn't
	// create (a foreign object). It returns ErrNotFound if there is no such object.
	Stat(ctx context.Context, key string) (Object, error)

	// List returns the objects of uploads whose keys begin with prefix ("": all), sorted by
	// the bytes of their keys. It leaves out foreign objects, whose keys UploadOf doesn't
	// recognise. It holds one page of the listing in memory (in a Dir, the names in one of the
	// 256 directories). An object that exists during the whole listing is returned; one that
	// is created or deleted meanwhile may be missing. An error is the last element.
	List(ctx context.Context, prefix string) iter.Seq2[Object, error]

	// Unfinished returns, unordered, the multipart uploads that are neither completed nor
	// aborted and whose objects' keys begin with prefix. A store without multipart uploads
	// returns none. An error is the last element.
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

	// SetIdentity stores id, a UUID, in an object that belongs to no upload and that List
	// leaves out. If the store has an identity already and replace is false, SetIdentity keeps
	// that one and returns no error, so the caller must call Identity afterwards. When it
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
// The caller writes, then calls Save or Finish once, then Close. If the store fails, every
// later call except Close returns the same error; bytes that an earlier attempt saved stay
// saved. The error of a full disk satisfies errors.Is(err, syscall.ENOSPC).
type Writer interface {
	// Write accepts the bytes without making them durable. Each Write costs system
	// calls, so callers should pass 256 KiB or more at a time.
	io.Writer

	// ReadFrom writes everything that r returns, in large pieces. If r fails, ReadFrom
	// writes and counts the bytes before the failure, and returns r's error unchanged. The
	// Writer can still be used then: Save keeps the bytes that arrived.
	//
	// After a Read, r may still use the bytes that it has returned, for example to hash them
	// concurrently, until ReadFrom reads from r again or the caller calls the next method.
	// Until then the Writer doesn't overwrite these bytes.
	io.ReaderFrom

	// Save makes all bytes written so far durable. It returns the state that describes them
	// together with the bytes of earlier attempts. The caller stores the state and the new
	// size in the upload's row, if no newer attempt has claimed the upload. The state may be
	// nil if there are no bytes at all.
	Save(ctx context.Context) (State, error)

	// Finish makes the object complete and durable, and returns its key for Open. An
	// upload without bytes becomes an empty object.
	//
	// As long as the caller hasn't committed the key, the state in the upload's row stays
	// valid: if the process dies now, another attempt can call Resume and Finish.
	Finish(ctx context.Context) (key string, err error)

	// Leftovers returns, after Finish, whether the store may hold other objects of this upload
	// than the finished one. If so, the caller deletes them with DeleteUpload after it has
	// committed the key.
	Leftovers() bool

	// Close releases the Writer's locks and memory. It may be called at any time and more than
	// once. It keeps everything that a saved state describes.
	Close() error
}

// Look checks that the object under key exists and has size bytes. If not, wrong says what is
// wrong with it, as the end of a sentence; else wrong is "".
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

// NewBase returns the key prefix (base) of a new upload: 128 random bits as 32 lower-case
// hexadecimal digits.
func NewBase() string {
	var b [16]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the process instead
	return hex.EncodeToString(b[:])
}

// CheckBase returns an error if NewBase can't have made base. Stores rely on the format: a
// base has no "-", so the prefix "base-" matches only objects of this upload.
func CheckBase(base string) error {
	if b, err := hex.DecodeString(base); err != nil || len(b) != 16 || strings.ToLower(base) != base {
		return fmt.Errorf("upload base %q is not 32 lower-case hexadecimal digits", base)
	}
	return nil
}

// UploadOf returns the base of the upload that made the object with this key. It returns false
// for any other key: the object then belongs to another program, or to another registry whose
// directory Purser has adopted.
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
