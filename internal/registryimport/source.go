package registryimport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
)

// source is the storage of another registry. Its methods may be called concurrently, and return
// a *broken error about content that the storage lacks or that makes no sense.
type source interface {
	format() string
	prefix() string // what the keys of all its objects begin with

	// repositories returns all repositories, and what stands where one may be and can't be looked
	// into. An error is the last element.
	repositories(ctx context.Context) iter.Seq2[found, error]

	// contents returns what a repository has.
	contents(ctx context.Context, repository string) (contents, error)

	// manifestKey and blobKey return the path of a file that may not exist.
	manifestKey(repository string, d oci.Digest) string
	blobKey(repository string, d oci.Digest) string

	// elsewhere returns the path of another file with a blob's content, "" if there is none. It
	// is asked if the blob's own file is empty.
	elsewhere(ctx context.Context, d oci.Digest) (string, error)
}

// found is a repository or, if reason isn't empty, a path that the import passes over and why.
type found struct{ name, reason string }

// passedOver says that something is neither a directory nor a regular file, or has a name that no key is.
func passedOver(key string) string {
	if !utf8.ValidString(key) {
		return fmt.Sprintf("the name of %q isn't UTF-8", key)
	}
	return key + " is neither a directory nor a regular file (symbolic links to directories aren't followed)"
}

// unreadable yields an error that listing the repositories below the directory of `name` has met. It
// returns whether the listing goes on: it does if the directory is broken, and isn't the root of all.
func unreadable(name string, err error, yield func(found, error) bool) bool {
	if reason, ok := reasonOf(err); ok && name != "" {
		return yield(found{name, reason}, nil)
	}
	yield(found{}, err)
	return false
}

// readable is a store whose errors about one file or directory, that it can't be read, are *broken.
type readable struct{ Store }

// brokenIf makes an error that is only about the file or directory `key` a *broken one.
func brokenIf(key string, err error) error {
	if !blob.Unreadable(err) {
		return err
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err // the rest repeats the key
	}
	return brokenf("%s can't be read: %w", key, err)
}

func (r readable) Open(ctx context.Context, key string, off, length int64) (io.ReadCloser, error) {
	o, err := r.Store.Open(ctx, key, off, length)
	return o, brokenIf(key, err)
}

func (r readable) Stat(ctx context.Context, key string) (blob.Object, error) {
	o, err := r.Store.Stat(ctx, key)
	return o, brokenIf(key, err)
}

func (r readable) Readable(ctx context.Context, key string) error {
	return brokenIf(key, r.Store.Readable(ctx, key))
}

func (r readable) Directories(ctx context.Context, dir string) ([]string, error) {
	names, err := r.Store.Directories(ctx, dir)
	return names, brokenIf(dir, err)
}

func (r readable) Files(ctx context.Context, dir string) iter.Seq2[blob.Object, error] {
	return func(yield func(blob.Object, error) bool) {
		for o, err := range r.Store.Files(ctx, dir) {
			if !yield(o, brokenIf(o.Key, err)) {
				return
			}
		}
	}
}

func (r readable) Others(ctx context.Context, dir string, deep bool) ([]string, error) {
	keys, err := r.Store.Others(ctx, dir, deep)
	return keys, brokenIf(dir, err)
}

// others yields the entries of dir, a directory in which repositories may be, that are neither
// directories nor regular files. `name` is the repository of dir. `own` returns whether a name is one
// that the imported registry uses itself.
func others(ctx context.Context, s Store, dir, name string, own func(string) bool, yield func(found, error) bool) bool {
	keys, err := s.Others(ctx, dir, false)
	if err != nil {
		return unreadable(name, err, yield)
	}
	for _, key := range keys {
		if !own(path.Base(key)) && !yield(found{path.Join(name, path.Base(key)), passedOver(key)}, nil) {
			return false
		}
	}
	return true
}

// contents are the tags and manifests of a repository.
type contents struct {
	tags      map[string]tagged
	manifests map[oci.Digest]time.Time // when each was pushed
	// complete says that the repository has no other manifests: if the file of another one is
	// there, it belongs to other repositories, or the manifest was deleted.
	complete bool
	skipped  []Skip // what can't be read
}

// tagged is the manifest to which a tag points.
type tagged struct {
	digest oci.Digest
	pushed time.Time // when it was made to point there
}

// These limit files that name a digest, and indexes of layouts.
const (
	maxLink  = 4 << 10
	maxIndex = 256 << 20
)

// open finds out what kind of storage the directory `dir` of the store has.
func open(ctx context.Context, s Store, dir string) (source, error) {
	if dir != "" && path.Clean(dir) != dir || strings.HasPrefix(dir, "..") {
		return nil, fmt.Errorf("%q isn't a directory below the blob store", dir)
	}
	root := path.Join(dir, "docker/registry/v2")
	below, unlisted := s.Directories(ctx, root)
	if _, ok := reasonOf(unlisted); unlisted != nil && !ok { // else "docker" may be a repository of zot's that is broken
		return nil, unlisted
	}
	for _, name := range below {
		if name == "repositories" {
			return &distribution{store: s, root: root}, nil
		}
	}
	l := &layouts{store: s, root: dir}
	for f, err := range l.repositories(ctx) {
		if err != nil {
			return nil, err
		}
		if f.reason != "" {
			continue
		}
		// A lone index.json may be anything.
		if _, err := s.Stat(ctx, path.Join(dir, f.name, "oci-layout")); !errors.Is(err, blob.ErrNotFound) {
			return l, err
		}
	}
	if unlisted != nil {
		return nil, unlisted
	}
	where := "the blob store"
	if dir != "" {
		where = fmt.Sprintf("the directory %q of the blob store", dir)
	}
	return nil, fmt.Errorf("there is no storage of another registry in %s: neither docker/registry/v2/repositories, as Docker's registry has it, nor OCI layouts, as zot has them", where)
}

// readFile returns a file of up to `limit` bytes.
func readFile(ctx context.Context, s blob.Store, key string, limit int64) ([]byte, error) {
	r, err := s.Open(ctx, key, 0, -1)
	if errors.Is(err, blob.ErrNotFound) {
		return nil, brokenf("the file %s is missing%s", key, instead(err))
	}
	if err != nil {
		return nil, err
	}
	defer r.Close() //nolint:errcheck // only read
	content, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = brokenf("the file %s has more than %d bytes", key, limit)
	}
	if err != nil {
		return nil, err
	}
	return content, nil
}

// instead says what there is instead of a file that is missing, if it is something.
func instead(err error) string {
	if !blob.Irregular(err) {
		return ""
	}
	return ": what has its name isn't a regular file in the blob store"
}

// hash returns the digest of a file. It may take hours, and ends with the context.
func hash(ctx context.Context, s blob.Store, key string, a oci.Algorithm) (oci.Digest, error) {
	r, err := s.Open(ctx, key, 0, -1)
	if errors.Is(err, blob.ErrNotFound) {
		return oci.Digest{}, brokenf("the file %s is missing%s", key, instead(err))
	}
	if err != nil {
		return oci.Digest{}, err
	}
	defer r.Close() //nolint:errcheck // only read
	h := a.New()
	if _, err := io.Copy(h, blob.ContextReader{Context: ctx, Reader: r}); err != nil {
		return oci.Digest{}, fmt.Errorf("reading the file %s: %w", key, err)
	}
	return oci.FromHash(a, h), nil
}

// movedAfter says whether the other registry's tag was pushed after a time. A time of the future, by a
// clock that was ahead, proves nothing.
func (p *one) movedAfter(at time.Time, tag string) bool {
	pushed := p.from.tags[tag].pushed
	return at.Before(pushed) && !pushed.After(time.Now())
}

// wants says whether the import will write the tag, which points to the manifest `d`. If not, nothing
// may need the manifest's blobs.
func (p *one) wants(tag string, d oci.Digest) bool {
	here, there := p.have.Tags[tag]
	return oci.ValidateTag(tag) == nil && (!there || here.Digest != d && p.movedAfter(here.Pushed, tag))
}

// unclear says whether the other registry's tag, which points to the manifest `d`, may have moved since it
// was imported: it has a time of the future, and Purser hasn't its manifest, but still points to one of
// the other registry.
func (p *one) unclear(here catalog.TaggedManifest, tag string, d oci.Digest) bool {
	pushed := p.from.tags[tag].pushed
	_, theirs := p.from.manifests[here.Digest]
	return theirs && here.Digest != d && pushed.After(time.Now()) && here.Pushed.Before(pushed) && !p.have.Manifests[d]
}
