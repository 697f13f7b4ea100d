package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/oci"
)

// part is the state of the check of one of the 16 parts of the storage keys: those that
// begin with the part's hexadecimal digit.
type part struct {
	*checker
	index  int
	above  []Owner           // the rows of the last upload, which own all objects whose keys begin with its key
	hidden map[string]string // directories that can't be read, by the first two digits of their keys, and why
	buf    []byte            // for hashing
}

// bounds returns, for part i, the prefix of the keys of its objects in the store, and the
// range of storage keys of its owner rows: keys that are at least `from` and less than `to`
// ("": no upper limit). The ranges of all parts together cover every key, including keys of
// objects of other programs that a blob's row names.
func bounds(i int) (prefix, from, to string) {
	const digits = "0123456789abcdef"
	prefix = digits[i : i+1]
	if i > 0 {
		from = prefix
	}
	if i+1 < len(digits) {
		to = digits[i+1 : i+2]
	}
	return prefix, from, to
}

// merge compares the owner rows and the objects of the part: it reads the rows and the
// objects in key order and calls settle for each key.
func (p *part) merge(ctx context.Context) error {
	prefix, from, to := bounds(p.index)
	owners, stopOwners := iter.Pull2(readOwners(ctx, p.opt.Lists, from, to))
	defer stopOwners()
	objects, stopObjects := iter.Pull2(p.opt.Store.List(ctx, prefix))
	defer stopObjects()
	row, rowErr, rows := owners()
	object, objectErr, more := p.next(objects)
	for rows || more {
		if rowErr != nil || objectErr != nil && !blob.Unreadable(objectErr) {
			return errors.Join(rowErr, objectErr)
		}
		key := row.Key
		if !rows || more && object.Key < key {
			key = object.Key
		}
		p.reached(p.index, key)
		var same []Owner // rows with this very key
		for rows && rowErr == nil && row.Key == key {
			same = append(same, row)
			row, rowErr, rows = owners()
		}
		var found *blob.Object
		var unread error
		if more && object.Key == key {
			if unread = objectErr; unread == nil {
				found = new(object)
			}
			object, objectErr, more = p.next(objects)
		}
		if err := p.settle(ctx, key, same, found, unread); err != nil {
			return err
		}
	}
	return errors.Join(rowErr, objectErr)
}

// next returns the next element of the listing `objects`. It reports directories that can't be read, and
// passes over them. An object that can't be read is returned with its error.
func (p *part) next(objects func() (blob.Object, error, bool)) (blob.Object, error, bool) {
	for {
		o, err, more := objects()
		if _, ours := blob.UploadOf(o.Key); !more || err == nil || ours || !blob.Unreadable(err) {
			return o, err, more
		}
		if p.hidden == nil {
			p.hidden = make(map[string]string)
		}
		p.hidden[o.Key] = err.Error()
		p.add(Finding{Problem: Hidden, Key: "objects/" + o.Key, Detail: err.Error()})
	}
}

// settle checks one storage key. `same` has the owner rows with this key; `object` is the
// object with this key, nil if the store has none, or has one of which nothing is known because of
// the error `unread`.
func (p *part) settle(ctx context.Context, key string, same []Owner, object *blob.Object, unread error) error {
	owners := same
	base, _ := blob.UploadOf(key)
	for _, o := range p.above {
		if o.OfUpload() && o.Key == base && o.Keep != key {
			owners = append(owners, o)
		}
	}
	if len(same) > 0 && same[0].OfUpload() {
		p.above = same
	}
	p.count(owners, object)
	if err := p.shared(key, owners, object); err != nil {
		return err
	}
	for _, o := range same {
		if o.Kind == OwnerBlob {
			if err := p.blob(ctx, o, object); err != nil {
				return err
			}
		}
	}
	ofBlob := func(o Owner) bool { return o.Kind == OwnerBlob }
	switch {
	case unread != nil && !slices.ContainsFunc(same, ofBlob): // a blob was reported, if it can't be read either
		p.add(Finding{Problem: Hidden, Key: key, Detail: unread.Error()})
	case object != nil && len(owners) == 0:
		return p.stray(ctx, *object)
	}
	return nil
}

func (p *part) count(owners []Owner, object *blob.Object) {
	p.mu.Lock()
	defer p.mu.Unlock()
	doomed := false
	for _, o := range owners {
		switch o.Kind {
		case OwnerBlob:
			p.report.Blobs++
		case OwnerDoomed, OwnerDoomedUpload:
			doomed = true
		case OwnerUpload, OwnerForeign:
		}
	}
	if object != nil && doomed {
		p.report.Doomed++
		p.report.DoomedBytes += object.Size
	}
	if object != nil {
		p.report.Objects++
		p.report.ObjectBytes += object.Size
	}
}

// shared reports a key that has several owner rows, unless all of these rows are pending
// deletions.
func (p *part) shared(key string, owners []Owner, object *blob.Object) error {
	if len(owners) < 2 {
		return nil
	}
	f := Finding{Problem: Shared, Key: key}
	wanted := false
	for i, o := range owners {
		if i > 0 {
			f.Detail += ", "
		}
		f.Detail += string(o.Kind)
		if o.Kind == OwnerBlob {
			f.Detail += " " + o.Digest.String()
			f.Digest = o.Digest
		}
		wanted = wanted || o.Kind == OwnerBlob || o.Kind == OwnerUpload
	}
	if !wanted {
		return nil
	}
	if object != nil {
		f.Size = object.Size
	}
	p.add(f)
	return nil
}

// blob checks a blob. `listed` is the object that the store's listing has under the blob's
// key, nil if it has none. Before blob reports a problem, it looks at the object and at the
// blob's row a second time.
func (p *part) blob(ctx context.Context, b Owner, listed *blob.Object) error {
	if listed != nil && listed.Size == b.Size && !b.Lost {
		if !p.opt.Deep {
			return nil
		}
		if sum, err := p.hash(ctx, b); err == nil && sum == b.Digest {
			return nil
		}
	}
	problem, detail, err := p.look(ctx, b, p.opt.Deep || b.Lost)
	if err != nil {
		return err
	}
	if problem == "" && !b.Lost {
		return nil
	}
	now, there, err := p.opt.Catalog.StoredBlob(ctx, b.Digest)
	switch {
	case err != nil:
		return err
	case !there || now.Key != b.Key:
		return nil // deleted, or pushed again
	case now.Lost && problem == "":
		problem = Recovered
	case now.Lost:
		problem, detail = Lost, strings.TrimSpace(string(problem)+" "+detail)
	case problem == "":
		return nil // another check has removed the lost mark already
	}
	f := Finding{Problem: problem, Key: b.Key, Digest: b.Digest, Size: b.Size, Detail: detail}
	if f.Repositories, err = p.browser.Sources(ctx, browse.Everyone, b.Digest, 3); err != nil {
		return err
	}
	return p.mark(ctx, f)
}

// look compares a blob with its object as the store has it now. If `read` is set, it also
// reads the object and compares the digest of its content with the blob's. It returns the
// problem and a description of it; "" if the object is right.
func (p *part) look(ctx context.Context, b Owner, read bool) (Problem, string, error) {
	o, err := p.opt.Store.Stat(ctx, b.Key)
	why, inHidden := p.hidden[b.Key[:min(2, len(b.Key))]]
	switch {
	case errors.Is(err, blob.ErrNotFound) && inHidden && !strings.Contains(b.Key, "/"):
		return Unreadable, why, nil
	case errors.Is(err, blob.ErrNotFound):
		return Missing, "", nil
	case blob.Unreadable(err):
		return Unreadable, err.Error(), nil
	case err != nil:
		return "", "", err
	case o.Size != b.Size:
		return WrongSize, fmt.Sprintf("the object has %d bytes, not %d", o.Size, b.Size), nil
	case !read:
		return "", "", nil
	}
	sum, err := p.hash(ctx, b)
	switch {
	case ctx.Err() != nil:
		return "", "", ctx.Err()
	case errors.Is(err, blob.ErrNotFound):
		return Missing, "", nil
	case err != nil:
		return Unreadable, err.Error(), nil
	case sum != b.Digest:
		return Damaged, "its content is " + sum.String(), nil
	}
	return "", "", nil
}

// hash reads a blob's object and returns the digest of the content.
func (p *part) hash(ctx context.Context, b Owner) (oci.Digest, error) {
	r, err := p.opt.Store.Open(ctx, b.Key, 0, -1)
	if err != nil {
		return oci.Digest{}, err
	}
	defer r.Close() //nolint:errcheck // only read
	if p.buf == nil {
		p.buf = make([]byte, 256<<10)
	}
	h := b.Digest.Algorithm().New()
	for {
		if err := ctx.Err(); err != nil {
			return oci.Digest{}, err
		}
		n, err := r.Read(p.buf)
		h.Write(p.buf[:n])
		p.hashedBytes.Add(int64(n))
		if err == io.EOF { //nolint:errorlint // io.Reader returns EOF itself; an error that wraps it is a failure
			p.mu.Lock()
			p.report.Hashed++
			p.mu.Unlock()
			return oci.FromHash(b.Digest.Algorithm(), h), nil
		}
		if err != nil {
			return oci.Digest{}, fmt.Errorf("reading object %s: %w", b.Key, err)
		}
	}
}
