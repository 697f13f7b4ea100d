package registryimport

import (
	"context"
	"errors"
	"iter"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/oci"
)

// distribution is the storage of distribution, Docker's registry:
//
//	ROOT/repositories/NAME/_manifests/tags/TAG/current/link          the digest of the tag's manifest
//	ROOT/repositories/NAME/_manifests/revisions/sha256/HEX/link      a manifest that the repository has
//	ROOT/repositories/NAME/_layers/sha256/HEX/link                   a blob that it has
//	ROOT/blobs/sha256/HE/HEX/data                                    the content of manifests and blobs
//
// ROOT is docker/registry/v2 below the configured directory.
type distribution struct {
	store Store
	root  string
}

func (d *distribution) format() string { return "distribution" }

func (d *distribution) prefix() string { return d.root + "/" }

// repositories implements source. Names of directories that begin with "_" are distribution's own,
// and repositories may be nested.
func (d *distribution) repositories(ctx context.Context) iter.Seq2[found, error] {
	return func(yield func(found, error) bool) { d.walk(ctx, "", yield) }
}

// walk yields the repositories whose names begin with `name`, itself included.
func (d *distribution) walk(ctx context.Context, name string, yield func(found, error) bool) bool {
	below, err := d.store.Directories(ctx, path.Join(d.root, "repositories", name))
	if err != nil {
		return unreadable(name, err, yield)
	}
	own := func(dir string) bool { return strings.HasPrefix(dir, "_") && dir != "_manifests" }
	if !others(ctx, d.store, path.Join(d.root, "repositories", name), name, own, yield) {
		return false
	}
	for _, dir := range below {
		if dir == "_manifests" && !yield(found{name: name}, nil) {
			return false
		}
		if dir == "." || dir == ".." {
			continue // in a bucket: path.Join would lead back to where the walk has been
		}
		if !strings.HasPrefix(dir, "_") && !d.walk(ctx, path.Join(name, dir), yield) {
			return false
		}
	}
	return true
}

func (d *distribution) contents(ctx context.Context, repository string) (contents, error) {
	out := contents{tags: make(map[string]tagged), manifests: make(map[oci.Digest]time.Time), complete: true}
	named := make(map[string]bool) // tags that are in `out` or skipped
	dir := path.Join(d.root, "repositories", repository, "_manifests")
	for file, err := range d.store.Files(ctx, dir) {
		parts := strings.Split(strings.TrimPrefix(strings.TrimPrefix(file.Key, dir), "/"), "/")
		reason, odd := reasonOf(err)
		switch {
		case odd && len(parts) > 2 && parts[0] == "revisions":
			out.skipped = append(out.skipped, Skip{Repository: repository, Reason: reason})
		case odd && len(parts) > 1 && parts[0] == "tags":
			if !named[parts[1]] { // else it is the tag's history
				named[parts[1]] = true
				out.skipped = append(out.skipped, Skip{Repository: repository, Tag: parts[1], Reason: reason})
			}
		case err != nil:
			return out, err
		case len(parts) == 4 && parts[0] == "revisions" && parts[3] == "link":
			digest, err := oci.ParseDigest(parts[1] + ":" + parts[2])
			if err != nil {
				out.skipped = append(out.skipped, Skip{Repository: repository, Reason: "the file " + file.Key + ": " + err.Error()})
				continue
			}
			out.manifests[digest] = file.Modified
		case len(parts) == 4 && parts[0] == "tags" && parts[2] == "current" && parts[3] == "link":
			named[parts[1]] = true
			digest, err := d.link(ctx, file.Key)
			if reason, ok := reasonOf(err); ok {
				out.skipped = append(out.skipped, Skip{Repository: repository, Tag: parts[1], Reason: reason})
				continue
			}
			if err != nil {
				return out, err
			}
			out.tags[parts[1]] = tagged{digest, file.Modified}
		}
	}
	if err := d.withoutLink(ctx, repository, named, &out); err != nil {
		return out, err
	}
	return out, d.odd(ctx, repository, named, &out)
}

// odd names what is neither a directory nor a regular file among a repository's links, and directories in
// the place of a manifest's link. `named` has the tags that are imported or named already. A
// manifest's link may be a symbolic link to a file of the store. A directory of a manifest without a
// link is what a deletion leaves.
func (d *distribution) odd(ctx context.Context, repository string, named map[string]bool, out *contents) error {
	dir := path.Join(d.root, "repositories", repository, "_manifests")
	keys, err := d.store.Others(ctx, dir, true)
	if err != nil {
		return err
	}
	for _, key := range keys {
		parts := strings.Split(strings.TrimPrefix(key, dir+"/"), "/")
		if parts[0] == "tags" && len(parts) > 2 && named[parts[1]] {
			continue
		}
		if len(parts) == 4 && parts[0] == "revisions" && parts[3] == "link" {
			file, err := d.store.Stat(ctx, key)
			digest, wrong := oci.ParseDigest(parts[1] + ":" + parts[2])
			if err == nil && wrong == nil {
				out.manifests[digest] = file.Modified
				continue
			}
			if err != nil && !errors.Is(err, blob.ErrNotFound) {
				return err
			}
		}
		out.skipped = append(out.skipped, Skip{Repository: repository, Reason: passedOver(key)})
	}
	return d.revisionsWithoutLink(ctx, repository, path.Join(dir, "revisions"), out)
}

// revisionsWithoutLink names the manifests whose link is a directory.
func (d *distribution) revisionsWithoutLink(ctx context.Context, repository, dir string, out *contents) error {
	algorithms, err := d.store.Directories(ctx, dir)
	if err != nil {
		return err
	}
	for _, algorithm := range algorithms {
		below, err := d.store.Directories(ctx, path.Join(dir, algorithm))
		if err != nil {
			return err
		}
		for _, hex := range below {
			if digest, err := oci.ParseDigest(algorithm + ":" + hex); err == nil && !out.manifests[digest].IsZero() {
				continue
			}
			links, err := d.store.Directories(ctx, path.Join(dir, algorithm, hex))
			if _, ok := reasonOf(err); ok {
				continue // the listing of files has named it
			}
			if err != nil {
				return err
			}
			if slices.Contains(links, "link") {
				out.skipped = append(out.skipped, Skip{Repository: repository, Reason: path.Join(dir, algorithm, hex, "link") + " is a directory"})
			}
		}
	}
	return nil
}

// withoutLink finds the directories of tags for which the listing of files had no current/link, which
// an interrupted push or a damaged disk leaves: distribution lists them as tags too. `named` has the
// tags that are known. A link may have come since the listing.
func (d *distribution) withoutLink(ctx context.Context, repository string, named map[string]bool, out *contents) error {
	dir := path.Join(d.root, "repositories", repository, "_manifests/tags")
	below, err := d.store.Directories(ctx, dir)
	if err != nil {
		return err
	}
	for _, tag := range below {
		if named[tag] || tag == "." || tag == ".." {
			continue
		}
		named[tag] = true
		key := path.Join(dir, tag, "current/link")
		digest, err := d.link(ctx, key)
		if reason, ok := reasonOf(err); ok {
			out.skipped = append(out.skipped, Skip{Repository: repository, Tag: tag, Reason: reason})
			continue
		}
		if err != nil {
			return err
		}
		file, err := d.store.Stat(ctx, key)
		if errors.Is(err, blob.ErrNotFound) {
			out.skipped = append(out.skipped, Skip{Repository: repository, Tag: tag, Reason: "the file " + key + " is missing"})
			continue
		}
		if err != nil {
			return err
		}
		out.tags[tag] = tagged{digest, file.Modified}
	}
	return nil
}

// link reads a file that has only a digest.
func (d *distribution) link(ctx context.Context, key string) (oci.Digest, error) {
	text, err := readFile(ctx, d.store, key, maxLink)
	if err != nil {
		return oci.Digest{}, err
	}
	digest, err := oci.ParseDigest(strings.TrimSpace(string(text)))
	if err != nil {
		err = brokenf("the file %s: %w", key, err)
	}
	return digest, err
}

func (d *distribution) manifestKey(_ string, digest oci.Digest) string { return d.blobKey("", digest) }

func (d *distribution) blobKey(_ string, digest oci.Digest) string {
	return path.Join(d.root, "blobs", digest.Algorithm().String(), digest.Hex()[:2], digest.Hex(), "data")
}

func (d *distribution) elsewhere(context.Context, oci.Digest) (string, error) { return "", nil }
