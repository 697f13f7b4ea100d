package check

import (
	"context"
	"maps"
	"math"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/blob"
)

// imported looks for files of finished imports that nothing owns: what the other registry kept
// besides the blobs that were imported. They are checked like other objects without an owner. This is
// right although their keys weren't made by an upload: a file of a finished import never becomes a
// blob's object again, since no import may begin there (catalog.BeginImport).
//
// Files of unfinished imports belong to the other registry.
func (k *checker) imported(ctx context.Context) error {
	if k.opt.Tree == nil {
		return nil
	}
	list, _, _, err := k.opt.Catalog.Imports(ctx)
	if err != nil {
		return err
	}
	for _, m := range list {
		if m.Finished.IsZero() {
			continue
		}
		var young []blob.Object
		for file, err := range k.opt.Tree.Files(ctx, strings.TrimSuffix(m.Source, "/")) {
			if err != nil && !blob.Unreadable(err) {
				return err
			}
			if err != nil {
				if !strings.HasPrefix(file.Key+"/", "objects/") { // this registry's objects are compared already
					k.add(Finding{Problem: Hidden, Key: file.Key, Detail: err.Error()})
				}
				continue
			}
			if !ofImport(m.Format, file.Key) {
				continue
			}
			if file.Modified.After(k.young) || file.Modified.After(k.kept) {
				if young = append(young, file); len(young) == maxStrays {
					if err := k.youngImported(ctx, young); err != nil {
						return err
					}
					young = young[:0]
				}
				continue
			}
			if err := k.stray(ctx, file); err != nil {
				return err
			}
		}
		if err := k.youngImported(ctx, young); err != nil {
			return err
		}
		if err := k.settleStrays(ctx, 0, math.MaxInt64); err != nil {
			return err
		}
	}
	return nil
}

// youngImported counts those files that nothing owns. They are too young to be findings, so that no
// second look tells whether they have an owner.
func (k *checker) youngImported(ctx context.Context, files []blob.Object) error {
	keys := make(map[string]blob.Object, len(files))
	for _, f := range files {
		keys[f.Key] = f
	}
	unowned, err := FindUnowned(ctx, k.opt.Catalog.DB(), slices.Collect(maps.Keys(keys)))
	if err != nil {
		return err
	}
	for _, key := range unowned {
		if err := k.stray(ctx, keys[key]); err != nil {
			return err
		}
	}
	return nil
}

// inLayout matches the last parts of the path of a file in an OCI layout.
var inLayout = regexp.MustCompile(`(^|/)(index\.json|oci-layout|blobs/sha256/[0-9a-f]{64}|blobs/sha512/[0-9a-f]{128})$`)

// ofImport says whether another registry has made the file. A directory of layouts may have other
// files, and the objects of this registry.
func ofImport(format, key string) bool {
	if _, ours := blob.UploadOf(path.Base(key)); ours || strings.HasPrefix(key, "objects/") {
		return false
	}
	return format == "distribution" || inLayout.MatchString(key)
}
