package mirror

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/upstream"
)

// jobs is how many children of the index that a tag points to, and how many blobs of an image, are copied
// at once.
const jobs = 4

// repository copies tags of one repository.
type repository struct {
	*copier
	from   *upstream.Repository
	source name.Repository // from, as references name it
	to     name.Repository
}

// tag copies a tag with what is attached to its manifest.
func (r *repository) tag(ctx context.Context, tag string) Tag {
	from, to := r.source.Tag(tag), r.to.Tag(tag)
	done := Tag{Source: from.Name(), Destination: to.Name(), Outcome: UpToDate}
	fail := func(err error) Tag {
		done.Outcome, done.Error = Failed, printable(err)
		return done
	}
	digest, kind, err := r.from.Resolve(ctx, tag)
	if err != nil {
		return fail(err)
	}
	done.Digest = digest.String()
	walk := r.from.Walk()
	if done.manifests, err = r.listed(ctx, walk, digest, kind, 0); err != nil {
		return fail(err)
	}
	there, err := r.look(ctx, to)
	if err != nil && !missing(err) {
		return fail(err)
	}
	if err != nil || there.Digest.String() != digest.String() {
		done.Outcome = WouldBe
		if !r.DryRun {
			if err := r.manifest(ctx, digest, to); err != nil {
				return fail(err)
			}
			done.Outcome = Copied
		}
	}
	if r.NoReferrers || r.DryRun {
		return done
	}
	for _, m := range done.manifests {
		n, err := r.attached(ctx, walk, m)
		done.Attached += n
		if err != nil {
			return fail(fmt.Errorf("copying what is attached to it: %w", err))
		}
	}
	return done
}

// look returns what the destination has.
func (r *repository) look(ctx context.Context, ref name.Reference) (*v1.Descriptor, error) {
	d, err := r.looker.Head(ctx, ref)
	if err == nil || missing(err) {
		return d, err
	}
	full, err := r.looker.Get(ctx, ref) // some registries know no HEAD, or don't say the digest
	if err != nil {
		return nil, err
	}
	return &full.Descriptor, nil
}

// listed returns the digest of a manifest and, of an index, those of all manifests that it lists,
// each once: to each of them something may be attached.
func (r *repository) listed(ctx context.Context, walk *upstream.Walk, d oci.Digest, kind oci.Kind, depth int) ([]oci.Digest, error) {
	if enter, err := walk.Enter(d, depth); !enter {
		return nil, err
	}
	list := []oci.Digest{d}
	if kind != oci.KindIndex {
		return list, nil
	}
	index, err := r.from.Manifest(ctx, d)
	if err != nil {
		return nil, err
	}
	for _, m := range index.DistinctManifests() {
		kind, isManifest := oci.KindOf(m.MediaType)
		if !isManifest {
			continue
		}
		below, err := r.listed(ctx, walk, m.Digest, kind, depth+1)
		if err != nil {
			return nil, err
		}
		list = append(list, below...)
	}
	return list, nil
}

// tree is a manifest that is being copied with all that it lists. Each manifest of it is copied once,
// and whoever needs one that another is copying waits for it.
type tree struct {
	*repository
	walk *upstream.Walk

	mu     sync.Mutex
	copies map[oci.Digest]func() error
}

// manifest copies a manifest, after its blobs and children, to a tag or a digest.
func (r *repository) manifest(ctx context.Context, d oci.Digest, to name.Reference) error {
	t := &tree{repository: r, walk: r.from.Walk(), copies: make(map[oci.Digest]func() error)}
	return t.put(ctx, d, to, 0)
}

func (t *tree) put(ctx context.Context, d oci.Digest, to name.Reference, depth int) error {
	if enter, err := t.walk.Enter(d, depth); !enter {
		return err
	}
	m, err := t.from.Manifest(ctx, d)
	if err != nil {
		return err
	}
	if err := t.blobs(ctx, m); err != nil {
		return err
	}
	var children []oci.Digest
	for _, child := range m.DistinctManifests() {
		if child.IsManifest() {
			children = append(children, child.Digest)
		}
	}
	waiting := taggable{m.Content, m.MediaType} // the rest of m needn't stay in memory
	if err := t.children(ctx, children, depth+1); err != nil {
		return err
	}
	return t.pusher.Put(ctx, to, waiting)
}

// children copies the manifests that an index lists. The index stays in memory meanwhile. So only the first
// one of a tree has several copied at once: if each did, the manifests in memory would multiply with each
// level.
func (t *tree) children(ctx context.Context, list []oci.Digest, depth int) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(jobs)
	if depth > 1 {
		group.SetLimit(1)
	}
	for _, d := range list {
		group.Go(func() error { return t.child(ctx, d, depth) })
	}
	return group.Wait()
}

// child copies a manifest that an index lists, unless the destination has it: then that has all that
// the manifest needs.
func (t *tree) child(ctx context.Context, d oci.Digest, depth int) error {
	t.mu.Lock()
	once, begun := t.copies[d]
	if !begun {
		once = sync.OnceValue(func() error {
			to := t.to.Digest(d.String())
			_, err := t.look(ctx, to)
			if missing(err) {
				err = t.put(ctx, d, to, depth)
			}
			return err
		})
		t.copies[d] = once
	}
	t.mu.Unlock()
	return once()
}

// blobs copies the blobs that a manifest needs.
func (r *repository) blobs(ctx context.Context, m *upstream.Manifest) error {
	need := m.DistinctLayers()
	if m.Config != nil {
		need = append(need, *m.Config)
	}
	for _, child := range m.DistinctManifests() {
		if !child.IsManifest() { // such as a layer of a build's cache
			need = append(need, child)
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(jobs)
	for _, d := range need {
		group.Go(func() error {
			from := &layer{ctx: ctx, repository: r, is: d}
			err := r.pusher.Upload(ctx, r.to, &remote.MountableLayer{Layer: from, Reference: r.source.Digest(d.Digest.String())})
			if d.Foreign() && upstream.Missing(err) {
				return nil // it is elsewhere, as its descriptor says
			}
			return err
		})
	}
	return group.Wait()
}

// attached copies the referrers of a manifest, then theirs, and so on. It returns how many the
// destination didn't have.
func (r *repository) attached(ctx context.Context, walk *upstream.Walk, subject oci.Digest) (copied int, err error) {
	level := []oci.Digest{subject}
	for depth := 1; len(level) > 0; depth++ {
		var next []oci.Digest
		for _, subject := range level {
			list, err := r.from.Referrers(ctx, subject)
			if err != nil {
				return copied, err
			}
			for _, m := range list {
				enter, err := walk.Enter(m.Digest, depth)
				if err != nil {
					return copied, err
				}
				if !enter {
					continue
				}
				next = append(next, m.Digest)
				fresh, err := r.referrer(ctx, m.Digest)
				if err != nil {
					return copied, err
				}
				copied += fresh
			}
		}
		level = next
	}
	return copied, nil
}

// referrer copies a referrer unless the destination has it. It returns 1 if it copied it.
func (r *repository) referrer(ctx context.Context, d oci.Digest) (int, error) {
	to := r.to.Digest(d.String())
	_, err := r.look(ctx, to)
	if err == nil || !missing(err) {
		return 0, err
	}
	if err := r.manifest(ctx, d, to); err != nil {
		return 0, err
	}
	return 1, nil
}

// taggable is a manifest of the source as the destination's client takes it.
type taggable struct {
	content   []byte
	mediaType string
}

func (t taggable) RawManifest() ([]byte, error) { return t.content, nil }

func (t taggable) MediaType() (types.MediaType, error) { return types.MediaType(t.mediaType), nil }

// layer is a blob of the source as the destination's client takes it.
type layer struct {
	ctx        context.Context
	repository *repository
	is         oci.Descriptor
}

var errNotUnpacked = errors.New("blobs are copied as they are")

// Digest implements v1.Layer.
func (l *layer) Digest() (v1.Hash, error) {
	return v1.Hash{Algorithm: l.is.Digest.Algorithm().String(), Hex: l.is.Digest.Hex()}, nil
}

// DiffID implements v1.Layer.
func (l *layer) DiffID() (v1.Hash, error) { return v1.Hash{}, errNotUnpacked }

// Uncompressed implements v1.Layer.
func (l *layer) Uncompressed() (io.ReadCloser, error) { return nil, errNotUnpacked }

// Size implements v1.Layer.
func (l *layer) Size() (int64, error) { return l.is.Size, nil }

// MediaType implements v1.Layer.
func (l *layer) MediaType() (types.MediaType, error) { return types.MediaType(l.is.MediaType), nil }

// Compressed implements v1.Layer. It waits while enough other blobs are being fetched.
func (l *layer) Compressed() (io.ReadCloser, error) {
	select {
	case l.repository.fetches <- struct{}{}:
	case <-l.ctx.Done():
		return nil, l.ctx.Err()
	}
	content, err := l.repository.from.Blob(l.ctx, l.is)
	if err != nil {
		<-l.repository.fetches
		return nil, err
	}
	return &fetch{ReadCloser: content, done: sync.OnceFunc(func() { <-l.repository.fetches })}, nil
}

// fetch is a blob that is being fetched.
type fetch struct {
	io.ReadCloser
	done func()
}

// Close implements io.Closer.
func (f *fetch) Close() error {
	defer f.done()
	return f.ReadCloser.Close()
}
