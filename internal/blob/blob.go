// Package blob stores the bytes of blobs: on a local disk (Dir) or, in its subpackage
// s3, in an S3-compatible store.
//
// The metadata database decides which objects exist: its rows say which upload, blob or
// pending deletion owns each object. The store only keeps bytes under storage keys. Four rules
// make this safe, whichever process stalls or dies, and in whatever order requests arrive:
//
//   - A key is used for one object only. Every upload has a random key prefix, its base, and
//     its objects have the keys base-N, where N is a number that the upload's row gives out
//     only once. So a late write or a late delete can only hit the object for which it was
//     meant.
//   - No client sees an object before a row names the object's key. So the object is written
//     under its final key, and needs no rename or copy after the last byte: a commit only
//     changes a row. If a crash leaves a half-written object, no row will ever name its key.
//   - The store returns the key of an object, or the state of an upload, only when the bytes
//     are durable.
//   - An attempt (one request that writes to an upload) claims the upload's row before it
//     changes a stored byte, and so takes the upload over from every earlier attempt, which is
//     then fenced. If a fenced attempt goes on later, the statement by which it takes a number,
//     saves or commits finds another fencing token in the row and fails. Until then it writes
//     only to keys and part numbers that no other attempt uses.
//
// The store never verifies digests: its caller hashes the bytes while they arrive.
//
// # Decisions
//
// Dir writes an object's file under its final name and syncs it. The usual alternative is to write
// the file under another name and then rename it, so that it appears complete or not at all. Dir
// needs no rename, because readers find files by rows of the database, and no row ever names a file
// that isn't complete. This saves the file system one journal commit for each blob.
//
// Pushes end before the disk does (Disks, setting storage.reserve), and so do commands that fill such a
// disk: backups into a directory on it, restores and moves of blobs. PostgreSQL needs room for its
// log and for a checkpoint, or it stops and can't start, and then nothing can be deleted. Purser
// can't bound what other programs write to the disk, so a file beside the built-in PostgreSQL keeps
// room for one start. It takes a tenth of a small disk: with 20 MiB, PostgreSQL recovered its log,
// and had no room for the checkpoint.
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
	// isn't mounted, or it is another registry's store. So if an object is missing in this
	// store, the registry hasn't lost the object.
	ErrWrongStore = errors.New("this is not the registry's blob store")

	// ErrReadOnly says that the store can be read and not written, as after a disk error, or a
	// mount as read-only.
	ErrReadOnly = errors.New("the blob store can be read, but not written")

	// ErrFenced says that a newer request has taken over the upload, so this request may no
	// longer save or finish it. The caller's functions Claim and Numbers return ErrFenced, and
	// the store passes it on.
	ErrFenced = errors.New("a newer request has taken over this upload")

	// ErrBusy says that another request was writing to the upload until the context ended.
	// This request has claimed and changed nothing, so it can be repeated.
	ErrBusy = errors.New("another request is still writing to this upload")

	// ErrLost says that acknowledged bytes are no longer in the store, because a file
	// is shorter than it was or a multipart upload is gone. The upload can't be
	// continued; its client has to start a new one.
	ErrLost = errors.New("the blob store lost acknowledged bytes of this upload")

	// ErrTooManyParts says that an upload has used up S3's 10,000 part numbers, because it is
	// too large or was sent in too many requests.
	ErrTooManyParts = errors.New("the upload has used up its 10,000 parts; push it in fewer and larger requests")
)

// A Claim makes the request that calls it (the attempt) the only one that may continue the
// upload.
//
// In one statement on the upload's row, Claim checks that the row still has the state and size
// that were given to Resume, sets a new fencing token, and returns `next`, the lowest number
// that the row hasn't given out. If the row has changed or doesn't exist, Claim must fail,
// with ErrFenced or an error of the caller's: while Resume waited for the object's lock,
// another request may have saved the upload, so the caller must read the row again and start
// over. Comparing only the fencing token isn't enough, because the other request may have
// claimed the upload before the caller read the row, and saved it afterwards.
//
// If `next` is higher than the next number in the state, an earlier request took numbers and
// never saved, so objects of that request may exist.
type Claim func(ctx context.Context) (next int64, err error)

// Numbers gives n >= 1 consecutive numbers, for the names of objects and parts, to the request
// that calls it (the attempt), and returns the first of them.
//
// The numbers of an upload start at 0 and only grow; none is given out twice, even after
// errors. A request may take numbers and not use them; then the next request looks for objects
// that don't exist, which does no harm. Numbers returns ErrFenced if a newer request has
// claimed the upload.
type Numbers func(ctx context.Context, n int) (first int64, err error)

// State describes the stored part of an unfinished upload. It is JSON that only the store
// understands and that is kept in the upload's row; nil means that nothing is stored yet.
type State = json.RawMessage

// Store keeps bytes under keys. Its methods may be called concurrently, and return when their
// context ends. The test suite in package blobtest tests Dir and s3.Store.
type Store interface {
	// Resume returns a Writer that appends to the acknowledged bytes of an upload. `state`
	// describes these bytes, and `size` is their number; a nil state and size 0 begin a new
	// upload. `base` is the prefix of the upload's keys, from NewBase.
	//
	// Resume calls `claim` exactly once: after it has locked the object with the acknowledged
	// bytes, or has found that it can't lock this object, and before it changes any stored
	// byte. If `claim` fails, Resume returns its error and has changed nothing. Stored bytes
	// after the first `size` bytes were never acknowledged, so Resume deletes them or the
	// Writer leaves them out. No object is created before the Writer gets bytes.
	//
	// When ctx ends, the Writer's Write and ReadFrom fail too. So a caller that wants to save
	// the bytes that had arrived when its client hung up must pass a context that outlives the
	// client's connection.
	//
	// Errors: ErrBusy, ErrLost, and the errors of `claim`.
	Resume(ctx context.Context, base string, state State, size int64, claim Claim, numbers Numbers) (Writer, error)

	// Open returns a reader of `length` bytes of an object, from the offset `off`; with length
	// -1, of all bytes from this offset. It makes one round trip to the store. If the object
	// is missing, Open itself returns ErrNotFound and not the reader, so that the caller knows
	// it before it answers its client. If the object has fewer bytes, the reader ends with
	// io.ErrUnexpectedEOF.
	//
	// io.Copy from the reader to a TCP connection (a plain http.ResponseWriter included) uses
	// sendfile if objects are files. Reading may fail when ctx ends.
	Open(ctx context.Context, key string, off, length int64) (io.ReadCloser, error)

	// Delete deletes objects, in as few requests as the store allows. A missing object
	// is no error. If Delete returns nil, none of the objects reappears after a crash.
	// Otherwise it returns joined errors: one *DeleteError for each key that may still
	// exist.
	Delete(ctx context.Context, keys []string) error

	// DeleteUpload deletes all objects of the upload with the key prefix `base`, except the
	// object with the key `keep` (if `keep` is "", all objects), and aborts the upload's
	// multipart uploads. It is no error if there are none. A request that lost the upload to a
	// newer request (fenced) may still be running, and write an object afterwards. Therefore
	// the caller must call DeleteUpload again after the longest time that a request can take.
	DeleteUpload(ctx context.Context, base, keep string) error

	// Stat returns the size and time of an object, which may be one that the registry didn't
	// create (a foreign object). It returns ErrNotFound if there is no such object.
	Stat(ctx context.Context, key string) (Object, error)

	// List returns the objects whose keys begin with `prefix` (if it is "", all objects),
	// sorted by the bytes of their keys. It leaves out foreign objects, that is, objects whose
	// keys UploadOf doesn't recognise. It has one page of the listing in memory at a time (in
	// a Dir, the names in one of the 256 directories). An object that exists during the whole
	// listing is returned; an object that is created or deleted meanwhile may be missing. If
	// the listing fails, the last element is the error. If an error is Unreadable, the listing goes
	// on behind the object or the directory (the first two digits of keys) that the element's
	// Key names, and lacks it.
	List(ctx context.Context, prefix string) iter.Seq2[Object, error]

	// Unfinished returns, unordered, the multipart uploads that are neither completed nor
	// aborted and whose objects' keys begin with `prefix`. A store without multipart uploads
	// returns none. If the listing fails, the last element is the error.
	Unfinished(ctx context.Context, prefix string) iter.Seq2[Unfinished, error]

	// Presign returns a URL from which a client can GET the object directly for o.TTL,
	// or "" if the store doesn't support this. It doesn't check that the object exists.
	Presign(ctx context.Context, key string, o PresignOptions) (string, error)

	// Check returns an error if the store can't be read or can't be written. It is cheap enough
	// to be called every few seconds.
	Check(ctx context.Context) error

	// Identity returns the id that SetIdentity stored, "" if there is none. It costs
	// one small read.
	Identity(ctx context.Context) (string, error)

	// SetIdentity stores `id`, a UUID, in an object that belongs to no upload and that List
	// leaves out. If the store has an identity already and `replace` is false, SetIdentity
	// doesn't change it and returns no error, so the caller must call Identity afterwards.
	// When SetIdentity returns nil, the store's identity is durable.
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

// Writer appends to one upload for one request (the attempt). Only one goroutine may use it.
//
// The caller writes, then calls Save or Finish once, then Close. If the store fails, every
// later call except Close returns the same error; bytes that earlier requests have saved stay
// saved. If the disk is full, errors.Is(err, syscall.ENOSPC) is true.
type Writer interface {
	// Write accepts the bytes without making them durable. Each Write costs system
	// calls, so callers should pass 256 KiB or more at a time.
	io.Writer

	// ReadFrom writes everything that r returns, in large pieces. If r fails, ReadFrom writes
	// and counts the bytes that r returned before, and returns r's error unchanged. Then the
	// Writer can still be used: Save makes the bytes durable that have arrived.
	//
	// After a Read, r may still use the bytes that it has returned, for example to hash them
	// concurrently, until ReadFrom reads from r again or the caller calls the next method.
	// Until then the Writer doesn't overwrite these bytes.
	io.ReaderFrom

	// Save makes all bytes written so far durable. It returns the state that describes these
	// bytes together with the bytes that earlier requests have saved. The caller stores the
	// state and the new size in the upload's row, if no newer request has claimed the upload.
	// The state may be nil if the upload has no bytes.
	Save(ctx context.Context) (State, error)

	// Finish makes the object complete and durable, and returns its key for Open. An
	// upload without bytes becomes an empty object.
	//
	// As long as the caller hasn't committed the key, the state in the upload's row stays
	// valid: if the process dies before the commit, another request can call Resume and
	// Finish.
	Finish(ctx context.Context) (key string, err error)

	// Former returns, after Save, the keys of objects that held the acknowledged bytes before and
	// hold none any more. The caller deletes them when the row has the new state; otherwise
	// they would stay until the upload ends, and nothing would count them.
	Former() []string

	// Discard makes Close remove what this Writer has stored, although Save or Finish succeeded.
	// The caller calls it when it is certain that no row names what Save or Finish returned.
	Discard()

	// Leftovers returns, after Finish, whether the store may have other objects of this upload
	// than the finished object. If so, the caller must delete them with DeleteUpload after it
	// has committed the key.
	Leftovers() bool

	// Close releases the Writer's locks and memory. It may be called at any time and more than
	// once. It keeps everything that a saved state describes. If neither Save nor Finish has
	// succeeded, it removes what this Writer has stored, as far as the store lets it do so soon.
	Close() error
}

// Look checks that the object with this key exists and has `size` bytes. If so, `wrong` is "";
// otherwise it describes the difference, as the end of a sentence ("it is missing").
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

// CheckBase returns an error if `base` doesn't have the format of NewBase's results. Stores
// rely on this format: a base has no "-", so the prefix "base-" matches only objects of this
// upload.
func CheckBase(base string) error {
	if b, err := hex.DecodeString(base); err != nil || len(b) != 16 || strings.ToLower(base) != base {
		return fmt.Errorf("upload base %q is not 32 lower-case hexadecimal digits", base)
	}
	return nil
}

// UploadOf returns the key prefix (base) of the upload that made the object with this key. It
// returns false if no upload of Purser can have made it: the object then belongs to another
// program, or to another registry whose directory Purser has adopted.
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
