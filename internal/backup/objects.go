package backup

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/blob"
)

// object is an entry in a backup's list of objects.
type object struct {
	key    string
	size   int64
	digest []byte // as in the database: a byte for the algorithm, then the hash
}

// parseObject parses a line of a list of objects.
func parseObject(line string) (o object, err error) {
	f := strings.Split(line, "\t")
	if len(f) != 3 || len(f[0]) < 3 || strings.ContainsRune(line, '\\') {
		return o, fmt.Errorf("not an entry in a list of objects: %q", line)
	}
	o.key = f[0]
	if o.size, err = strconv.ParseInt(f[1], 10, 64); err == nil {
		o.digest, err = hex.DecodeString(f[2])
	}
	if err == nil && (o.size < 0 || newHash(o.digest) == nil) {
		err = errors.New("its size or digest can't be")
	}
	if err != nil {
		return o, fmt.Errorf("not an entry in a list of objects: %q: %w", line, err)
	}
	return o, nil
}

// newHash returns a hash of the digest's algorithm, or nil if the digest isn't valid.
func newHash(digest []byte) hash.Hash {
	switch {
	case len(digest) == 1+sha256.Size && digest[0] == 1:
		return sha256.New()
	case len(digest) == 1+sha512.Size && digest[0] == 2:
		return sha512.New()
	}
	return nil
}

// file is the object's name in a target: its key, in a directory for the first two characters.
func (o object) file() string {
	return objectsDir + strings.ReplaceAll(o.key[:2], "/", "-") + "/" + o.key
}

// keyOf returns the key of the object that a file in a target has, or false if the file isn't an
// object's.
func keyOf(file string) (string, bool) {
	in, key, ok := strings.Cut(strings.TrimPrefix(file, objectsDir), "/")
	return key, ok && len(in) == 2
}

// groupOf returns the group of a file in a target: the beginning of its name that it has in common with
// others, so few that their names fit into memory. Objects of Purser are grouped by the first two
// characters of their keys. The name of another registry's file has the digest of the blob as one of
// its parts, and the first two of its digits end the group.
func groupOf(file string) string {
	begin := len(objectsDir) + 3
	if len(file) <= begin || !strings.Contains(file[begin:], "/") {
		return file[:min(begin, len(file))]
	}
	for at := begin; ; {
		part, _, more := strings.Cut(file[at:], "/")
		if len(part) >= hex.EncodedLen(sha256.Size) && strings.Trim(part, "0123456789abcdef") == "" {
			return file[:at+2]
		}
		if !more {
			return file[:strings.LastIndexByte(file, '/')+1]
		}
		at += len(part) + 1
	}
}

// objectList reads a backup's list of objects.
type objectList struct {
	r     *chunkReader
	lines *bufio.Reader
	next  *object
}

func openObjects(ctx context.Context, t Target, m *Manifest) *objectList {
	r := newChunkReader(ctx, t, m.dir(), m.Blobs.Files)
	return &objectList{r: r, lines: bufio.NewReaderSize(r, 64<<10)}
}

// peek returns the next object without using it up, or nil at the end of the list.
func (l *objectList) peek() (*object, error) {
	if l.next != nil {
		return l.next, nil
	}
	line, err := l.lines.ReadString('\n')
	if errors.Is(err, io.EOF) && line == "" {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	o, err := parseObject(strings.TrimSuffix(line, "\n"))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	l.next = &o
	return l.next, nil
}

// group returns the next objects that are of one group, or none at the end of the list.
func (l *objectList) group() (list []object, err error) {
	for {
		o, err := l.peek()
		if err != nil || o == nil || len(list) > 0 && groupOf(o.file()) != groupOf(list[0].file()) {
			return list, err
		}
		list = append(list, *o)
		l.next = nil
	}
}

// has returns whether the list has the object with a key. The list is sorted by keys, and so each call
// must ask for a later key than the one before.
func (l *objectList) has(key string) (bool, error) {
	for {
		o, err := l.peek()
		if err != nil || o == nil || o.key > key {
			return false, err
		}
		found := o.key == key
		if l.next = nil; found {
			return true, nil
		}
	}
}

// sizes returns the sizes of the files that a target has of an object's group, by their names.
func sizes(ctx context.Context, t Target, o object) (map[string]int64, error) {
	there, in := make(map[string]int64), groupOf(o.file())
	for f, err := range t.Files(ctx, in) {
		if err != nil {
			return nil, err
		}
		if groupOf(f.Key) == in {
			there[f.Key] = f.Size
		}
	}
	return there, nil
}

// lockRenewal is how often a backup uses the connection with the lock that pauses sweepers, to
// notice if it has ended.
const lockRenewal = 5 * time.Second

// objects copies the snapshot's objects, if it is to copy them, while conn has the lock that
// keeps sweepers from deleting them.
func (b *run) objects(ctx context.Context, conn *pgx.Conn) error {
	if b.Blobs != Copy {
		return nil
	}
	b.told.step("copying blobs")
	b.told.total(b.m.Blobs.Count)
	copying, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var watching sync.WaitGroup
	watching.Go(func() { watch(copying, conn, cancel) })
	err := b.copyAll(copying)
	if cause := context.Cause(copying); cause != nil && ctx.Err() == nil {
		err = cause
	}
	cancel(nil)
	watching.Wait()
	if err == nil {
		err = b.confirm(ctx)
	}
	if err == nil {
		err = stillPaused(ctx, conn)
	}
	return err
}

// errPauseLost says that the backup can't rely on the store having kept the objects.
var errPauseLost = errors.New("the database's connection was lost that keeps garbage collection from deleting what is copied: " +
	"start the backup again; it goes on with what is copied already")

func stillPaused(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, "SELECT 1"); err != nil {
		return fmt.Errorf("%w: %w", errPauseLost, err)
	}
	return nil
}

// watch cancels the copying when the connection has ended.
func watch(ctx context.Context, conn *pgx.Conn, cancel context.CancelCauseFunc) {
	tick := time.NewTicker(lockRenewal)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		// The statement isn't cancelled with the copying, since that would end the connection.
		if err := stillPaused(context.WithoutCancel(ctx), conn); err != nil {
			cancel(err)
			return
		}
	}
}

// copyAll copies the objects that the target doesn't have.
func (b *run) copyAll(ctx context.Context) error {
	list := openObjects(ctx, b.Target, b.m)
	defer list.r.Close()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(b.Parallel)
	var mu sync.Mutex
	for ctx.Err() == nil {
		some, err := list.group()
		if err != nil || len(some) == 0 {
			return errors.Join(err, group.Wait())
		}
		there, err := sizes(ctx, b.Target, some[0])
		if err != nil {
			return errors.Join(err, group.Wait())
		}
		for _, o := range some {
			size, ok := there[o.file()]
			ok = ok && size == o.size
			if ok && !b.Deep {
				b.told.object(0)
				continue
			}
			group.Go(func() error {
				if ok {
					whole, err := b.isWhole(ctx, o)
					if err != nil || whole {
						b.told.object(o.size)
						return err
					}
				}
				err := b.copyOne(ctx, o)
				mu.Lock()
				defer mu.Unlock()
				m := &b.m.Blobs
				switch {
				case errors.Is(err, errUnusable) && ctx.Err() == nil:
					b.Log.WarnContext(ctx, "an object can't be copied", "key", o.key, "error", err)
					if ok {
						b.damaged++
					}
					if m.Missing++; len(m.FirstMissing) < 100 {
						m.FirstMissing = append(m.FirstMissing, o.key)
					}
				case err != nil:
					return err
				default:
					m.Copied++
					m.CopiedBytes += o.size
				}
				b.told.object(o.size)
				if b.copied != nil {
					b.copied(o.key)
				}
				return nil
			})
		}
	}
	return errors.Join(group.Wait(), ctx.Err())
}

// errUnusable says that the source doesn't have the object, or has other bytes.
var errUnusable = errors.New("the object is missing or damaged")

// isWhole reads an object's copy in the target and returns whether it has the right bytes.
func (b *run) isWhole(ctx context.Context, o object) (bool, error) {
	err := readObject(ctx, b.Target, o)
	if errors.Is(err, errUnusable) || errors.Is(err, blob.ErrNotFound) {
		b.Log.WarnContext(ctx, "the backup's copy of an object is damaged and is made again", "key", o.key, "error", err)
		return false, nil
	}
	return err == nil, err
}

// readObject reads the copy of an object. It returns errUnusable or blob.ErrNotFound if the copy is damaged or missing.
func readObject(ctx context.Context, t Target, o object) error {
	r, err := t.Open(ctx, o.file())
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(io.Discard, newVerifier(o, r))
	return err
}

func (b *run) copyOne(ctx context.Context, o object) error {
	r, err := b.Store.Open(ctx, o.key, 0, -1)
	if errors.Is(err, blob.ErrNotFound) {
		return fmt.Errorf("%w: %w", errUnusable, err)
	}
	if err != nil {
		return err
	}
	defer r.Close()
	return b.Target.Put(ctx, o.file(), o.size, newVerifier(o, r))
}

// verifier reads an object's bytes and compares them with its digest. If they differ, it returns
// errUnusable instead of the last bytes, so that whoever stores the bytes doesn't complete the
// copy.
type verifier struct {
	object
	r    io.Reader
	sum  hash.Hash
	rest int64
}

func newVerifier(o object, r io.Reader) *verifier {
	return &verifier{object: o, r: r, sum: newHash(o.digest), rest: o.size}
}

func (v *verifier) Read(p []byte) (int, error) {
	if v.rest == 0 && v.size > 0 {
		return 0, io.EOF
	}
	n, err := v.r.Read(p[:min(int64(len(p)), v.rest)])
	v.sum.Write(p[:n])
	v.rest -= int64(n)
	if errors.Is(err, syscall.EIO) {
		return 0, fmt.Errorf("%w: the disk can't read it: %w", errUnusable, err)
	}
	if v.rest > 0 {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return 0, fmt.Errorf("%w: it has %d bytes fewer than %d", errUnusable, v.rest, v.size)
		}
		return n, err
	}
	if string(v.sum.Sum(nil)) != string(v.digest[1:]) {
		return 0, fmt.Errorf("%w: its bytes don't have its digest", errUnusable)
	}
	if v.size == 0 {
		return 0, io.EOF
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// confirm looks for all objects in the target once more. It fails if one is missing there that
// the store had, since somebody else is changing the target then.
func (b *run) confirm(ctx context.Context) error {
	absent, err := absent(ctx, b.Target, b.m, nil)
	if known := b.m.Blobs.Missing - b.damaged; err == nil && absent != known {
		err = fmt.Errorf("%d objects that were copied to %s aren't there any more: does another program delete them? Start the backup again",
			absent-known, b.Target.Place())
	}
	return err
}

// absent counts the objects of a backup that the target doesn't have in their size. It calls
// `found`, if it isn't nil, for each of them.
func absent(ctx context.Context, t Target, m *Manifest, found func(object)) (n int64, err error) {
	list := openObjects(ctx, t, m)
	defer list.r.Close()
	for {
		some, err := list.group()
		if err != nil || len(some) == 0 {
			return n, err
		}
		there, err := sizes(ctx, t, some[0])
		if err != nil {
			return n, err
		}
		for _, o := range some {
			if size, ok := there[o.file()]; !ok || size != o.size {
				if n++; found != nil {
					found(o)
				}
			}
		}
	}
}
