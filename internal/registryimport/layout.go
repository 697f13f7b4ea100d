package registryimport

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"path"
	"strings"
	"sync"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/oci"
)

// layouts is a directory with an OCI layout for each repository, as zot has it:
//
//	ROOT/NAME/oci-layout
//	ROOT/NAME/index.json            the manifests, with their tags as annotations
//	ROOT/NAME/blobs/sha256/HEX      the content of manifests and blobs
//
// zot keeps the content of a blob that several repositories have only once: in a directory as hard
// links, in S3 as one object, and empty objects in the other repositories.
type layouts struct {
	store Store
	root  string

	// full has the paths of files that aren't empty, by digest (hexadecimal). It is read when the
	// first empty file is found.
	full func() (map[string]string, error)
	once sync.Once
}

func (l *layouts) format() string { return "layout" }

func (l *layouts) prefix() string {
	if l.root == "" {
		return ""
	}
	return l.root + "/"
}

func (l *layouts) repositories(ctx context.Context) iter.Seq2[found, error] {
	return func(yield func(found, error) bool) { l.walk(ctx, "", yield) }
}

// walk yields the repositories below the directory `name`, itself included.
func (l *layouts) walk(ctx context.Context, name string, yield func(found, error) bool) bool {
	isLayout, err := l.isLayout(ctx, name)
	if err != nil {
		return unreadable(name, err, yield)
	}
	if isLayout && !yield(found{name: name}, nil) {
		return false
	}
	below, err := l.store.Directories(ctx, path.Join(l.root, name))
	if err != nil {
		return unreadable(name, err, yield)
	}
	// zot's own directories begin with "_" or ".". Purser's objects are in a directory objects.
	own := func(dir string) bool {
		return isLayout && (dir == "blobs" || dir == "index.json" || dir == "oci-layout") || strings.HasPrefix(dir, "_") || strings.HasPrefix(dir, ".") ||
			l.root == "" && name == "" && dir == "objects"
	}
	if !others(ctx, l.store, path.Join(l.root, name), name, own, yield) {
		return false
	}
	for _, dir := range below {
		if own(dir) {
			continue
		}
		if !l.walk(ctx, path.Join(name, dir), yield) {
			return false
		}
	}
	return true
}

// isLayout says whether the directory is a layout, or what is left of one: contents names what it lacks.
func (l *layouts) isLayout(ctx context.Context, name string) (bool, error) {
	if name == "" {
		return false, nil
	}
	for _, file := range []string{"oci-layout", "index.json"} {
		_, err := l.store.Stat(ctx, path.Join(l.root, name, file))
		if err == nil || blob.Irregular(err) {
			return true, nil
		}
		if !errors.Is(err, blob.ErrNotFound) {
			return false, err
		}
	}
	return false, nil
}

// contents implements source. An index has no times, so those of the manifests' files are used.
func (l *layouts) contents(ctx context.Context, repository string) (contents, error) {
	out := contents{tags: make(map[string]tagged), manifests: make(map[oci.Digest]time.Time)}
	key := path.Join(l.root, repository, "index.json")
	var text []byte
	_, err := readFile(ctx, l.store, path.Join(l.root, repository, "oci-layout"), maxLink)
	if err == nil {
		text, err = readFile(ctx, l.store, key, maxIndex)
	}
	var list []v1.Descriptor
	if err == nil {
		if list, err = manifestsOf(text); err != nil {
			err = brokenf("the file %s: %w", key, err)
		}
	}
	if reason, ok := reasonOf(err); ok {
		out.skipped = append(out.skipped, Skip{Repository: repository, Reason: reason})
		return out, nil
	}
	if err != nil {
		return out, err
	}
	for _, m := range list {
		tag := m.Annotations[v1.AnnotationRefName]
		d, err := oci.ParseDigest(string(m.Digest))
		if err != nil {
			out.skipped = append(out.skipped, Skip{Repository: repository, Tag: tag, Reason: "the file " + key + ": " + err.Error()})
			continue
		}
		if _, seen := out.manifests[d]; !seen {
			file, err := l.store.Stat(ctx, l.manifestKey(repository, d))
			if _, ok := reasonOf(err); err != nil && !ok && !errors.Is(err, blob.ErrNotFound) {
				return out, err // else reading it says why it can't be imported
			}
			out.manifests[d] = file.Modified
		}
		if tag != "" {
			if other, twice := out.tags[tag]; twice && other.digest != d {
				out.skipped = append(out.skipped, Skip{Repository: repository, Tag: tag, Digest: other.digest,
					Reason: "the file " + key + " gives the tag to a later manifest too, " + d.String() + ", which is taken"})
			}
			out.tags[tag] = tagged{d, out.manifests[d]}
		}
	}
	return out, nil
}

// manifestsOf returns the list of an index.json: an empty one if it is null, as some programs write it.
func manifestsOf(text []byte) ([]v1.Descriptor, error) {
	var index struct {
		Manifests json.RawMessage `json:"manifests"`
	}
	if err := json.Unmarshal(text, &index); err != nil {
		return nil, err
	}
	if index.Manifests == nil {
		return nil, errors.New("it has no manifests, not even an empty list")
	}
	var list []v1.Descriptor
	err := json.Unmarshal(index.Manifests, &list)
	return list, err
}

func (l *layouts) manifestKey(repository string, d oci.Digest) string {
	return l.blobKey(repository, d)
}

func (l *layouts) blobKey(repository string, d oci.Digest) string {
	return path.Join(l.root, repository, "blobs", d.Algorithm().String(), d.Hex())
}

func (l *layouts) elsewhere(ctx context.Context, d oci.Digest) (string, error) {
	l.once.Do(func() {
		l.full = sync.OnceValues(func() (map[string]string, error) {
			found := make(map[string]string)
			for file, err := range l.store.Files(ctx, l.root) {
				if _, ok := reasonOf(err); ok {
					continue // that it can't be read is named where it is needed
				}
				if err != nil {
					return nil, err
				}
				dir, hex := path.Split(file.Key)
				if file.Size > 0 && (strings.HasSuffix(dir, "/blobs/sha256/") || strings.HasSuffix(dir, "/blobs/sha512/")) {
					found[hex] = file.Key
				}
			}
			return found, nil
		})
	})
	found, err := l.full()
	return found[d.Hex()], err
}
