package registryimport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"time"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
)

const (
	blobBatch = 500 // blobs that one transaction adds
	aheadOf   = 50  // images whose blobs are added together
)

// one imports a repository.
type one struct {
	*importer
	name string // as the other registry has it
	path string // as Purser has it
	from contents
	have catalog.Content // what Purser had before

	part   float64              // of its tagged manifests that is done, as Report.Parts has it
	done   map[oci.Digest]error // the manifests that were looked at
	linked map[oci.Digest]bool  // blobs that the import has added to the repository
}

// repository imports a repository: its tags with all that they need, then what refers to these
// manifests, then the others. It returns no error for content that it skips, and a *broken error if
// the repository itself can't be read.
func (m *importer) repository(ctx context.Context, name string) error {
	p := &one{importer: m, name: name, path: path.Join(m.opt.To, name), done: make(map[oci.Digest]error),
		linked: make(map[oci.Digest]bool)}
	if err := oci.ValidateName(p.path); err != nil {
		m.skip(Skip{Repository: name, Reason: err.Error()})
		return nil
	}
	var err error
	if p.from, err = m.source.contents(ctx, name); err != nil {
		return err
	}
	for _, s := range p.from.skipped {
		m.skip(s)
	}
	if p.have, err = m.opt.Catalog.Content(ctx, p.path); err != nil {
		return err
	}
	defer func() { m.count(func(r *Report) { r.Parts -= p.part }) }() // the caller counts it as a whole
	if err := p.tags(ctx); err != nil {
		return err
	}
	if err := p.rest(ctx); err != nil {
		return err
	}
	return p.verify(ctx)
}

// tags imports the tagged manifests, oldest first, and writes the tags.
func (p *one) tags(ctx context.Context) error {
	byDigest := make(map[oci.Digest][]string)
	for _, tag := range slices.Sorted(maps.Keys(p.from.tags)) {
		d := p.from.tags[tag].digest
		byDigest[d] = append(byDigest[d], tag)
		if here, there := p.have.Tags[tag]; p.wants(tag, d) || there && p.unclear(here, tag, d) {
			p.differs(p.name, tag, p.from.tags[tag].pushed)
		}
	}
	oldestFirst := func(a, b oci.Digest) int {
		return cmp.Or(p.from.manifests[a].Compare(p.from.manifests[b]), cmp.Compare(a.String(), b.String()))
	}
	for group := range slices.Chunk(slices.SortedFunc(maps.Keys(byDigest), oldestFirst), aheadOf) {
		wanted := slices.DeleteFunc(slices.Clone(group), func(d oci.Digest) bool {
			return !slices.ContainsFunc(byDigest[d], func(tag string) bool { return p.wants(tag, d) })
		})
		if err := p.ahead(ctx, wanted); err != nil {
			return err
		}
		for _, d := range group {
			if err := p.tagged(ctx, d, byDigest[d]); err != nil {
				return err
			}
			p.count(func(r *Report) { r.Parts += 1 / float64(len(byDigest)) })
			p.part += 1 / float64(len(byDigest))
		}
	}
	return nil
}

// ahead adds the blobs of several images at once, which halves the number of transactions. If it
// skips an image, because something is wrong with it, tagged finds the same.
func (p *one) ahead(ctx context.Context, digests []oci.Digest) error {
	var list []catalog.ForeignBlob
	for _, d := range digests {
		if _, listed := p.from.manifests[d]; p.have.Manifests[d] || !listed && p.from.complete {
			continue
		}
		m, _, err := p.read(ctx, d)
		if err == nil && m.Kind == oci.KindImage {
			var needs []catalog.ForeignBlob
			if needs, err = p.needs(ctx, m); err == nil {
				list = append(list, needs...)
			}
		}
		if _, ok := reasonOf(err); err != nil && !ok {
			return err
		}
	}
	err := p.add(ctx, list)
	if _, refused := reasonOf(err); refused {
		return nil // for a quota, for example: tagged says so of each image
	}
	return err
}

// tagged imports a manifest with its tags.
func (p *one) tagged(ctx context.Context, d oci.Digest, tags []string) error {
	var fresh, moved []string
	for _, tag := range tags {
		here, there := p.have.Tags[tag]
		reason := ""
		if err := oci.ValidateTag(tag); err != nil {
			reason = err.Error()
		}
		switch {
		case reason != "":
			p.skip(Skip{Repository: p.name, Tag: tag, Digest: d, Reason: reason})
		case !there:
			fresh = append(fresh, tag)
		case here.Digest == d:
			p.count(func(r *Report) { r.UpToDate++ })
		case p.movedAfter(here.Pushed, tag):
			moved = append(moved, tag)
		case p.unclear(here, tag, d):
			p.skip(Skip{Repository: p.name, Tag: tag, Digest: d, Reason: fmt.Sprintf(
				"it points to %s in Purser, and its time in the other registry, %s, is in the future, so it isn't known which push was later: if that of the other registry was, push it again there with a right clock, or copy it",
				here.Digest, p.from.tags[tag].pushed.UTC().Format(time.RFC3339))})
			delete(p.from.tags, tag)
		default:
			p.count(func(r *Report) { r.Newer++ })
		}
	}
	if len(fresh)+len(moved) == 0 {
		return nil
	}
	err := p.manifest(ctx, d, fresh)
	if reason, ok := reasonOf(err); ok {
		for _, tag := range append(fresh, moved...) {
			p.skip(Skip{Repository: p.name, Tag: tag, Digest: d, Reason: reason})
			delete(p.from.tags, tag)
		}
		return nil
	}
	if err != nil {
		return err
	}
	for _, tag := range moved {
		if err := p.move(ctx, tag, d); err != nil {
			return err
		}
	}
	return nil
}

// move points a tag that Purser has to another manifest, unless somebody has moved it since.
func (p *one) move(ctx context.Context, tag string, d oci.Digest) error {
	expected := &catalog.Validators{Digests: []oci.Digest{p.have.Tags[tag].Digest}}
	err := p.put(ctx, d, []string{tag}, catalog.Condition{Tag: tag, IfMatch: expected})
	if reason, ok := reasonOf(err); ok {
		p.skip(Skip{Repository: p.name, Tag: tag, Digest: d, Reason: reason})
		delete(p.from.tags, tag)
		return nil
	}
	return err
}

// manifest imports a manifest with its children and blobs, and writes new tags that point to it.
// It returns a *broken error or a client's error if it can't be imported.
func (p *one) manifest(ctx context.Context, d oci.Digest, tags []string) error {
	if err, seen := p.done[d]; seen && (err != nil || len(tags) == 0) {
		return err
	}
	err := p.store(ctx, d, tags)
	if code := oci.CodeOf(err); code == oci.ManifestBlobUnknown && p.have.Manifests[d] {
		// It was deleted from Purser after it was seen there.
		delete(p.have.Manifests, d)
		err = p.store(ctx, d, tags)
	}
	if _, ok := reasonOf(err); err == nil || ok {
		p.done[d] = err
	}
	return err
}

// store imports a manifest that may be in Purser, and what it needs.
func (p *one) store(ctx context.Context, d oci.Digest, tags []string) error {
	err := p.content(ctx, d)
	if err == nil && (len(tags) > 0 || !p.have.Manifests[d]) {
		err = p.put(ctx, d, tags, catalog.Condition{})
	}
	return err
}

// content imports what a manifest needs: its children and its blobs.
func (p *one) content(ctx context.Context, d oci.Digest) error {
	if p.have.Manifests[d] {
		return nil
	}
	if _, listed := p.from.manifests[d]; !listed && p.from.complete {
		return brokenf("manifest %s was deleted from the repository", d)
	}
	m, _, err := p.read(ctx, d)
	if err != nil {
		return err
	}
	for _, child := range m.DistinctManifests() {
		if !child.IsManifest() {
			continue
		}
		if err := p.manifest(ctx, child.Digest, nil); err != nil {
			reason, ok := reasonOf(err)
			switch {
			case ok && p.opt.Sparse:
				continue
			case ok:
				err = brokenf("its manifest %s can't be imported: %s", child.Digest, reason)
			}
			return err
		}
	}
	return p.blobs(ctx, m)
}

// read returns a manifest and its text.
func (p *one) read(ctx context.Context, d oci.Digest) (*oci.Manifest, []byte, error) {
	key := p.source.manifestKey(p.name, d)
	text, err := readFile(ctx, p.opt.Store, key, oci.MaxManifestSize)
	if err == nil && len(text) == 0 {
		if other, findErr := p.source.elsewhere(ctx, d); findErr != nil {
			return nil, nil, findErr
		} else if other != "" {
			text, err = readFile(ctx, p.opt.Store, other, oci.MaxManifestSize)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	if sum := oci.Compute(d.Algorithm(), text); sum != d {
		return nil, nil, brokenf("the file %s is damaged: its content is %s", key, sum)
	}
	m, err := oci.ParseManifest("", text)
	return m, text, err
}

// blobs adds the blobs that a manifest needs to the repository.
func (p *one) blobs(ctx context.Context, m *oci.Manifest) error {
	list, err := p.needs(ctx, m)
	if err != nil {
		return err
	}
	return p.add(ctx, list)
}

// needs returns the blobs that a manifest needs and that the import hasn't added to the repository.
func (p *one) needs(ctx context.Context, m *oci.Manifest) ([]catalog.ForeignBlob, error) {
	var list []catalog.ForeignBlob
	all := slices.Concat(m.Layers, slices.DeleteFunc(slices.Clone(m.Manifests), oci.Descriptor.IsManifest))
	if m.Config != nil {
		all = append(all, *m.Config)
	}
	for _, need := range all {
		if need.Foreign() || p.linked[need.Digest] {
			continue
		}
		b, err := p.blob(ctx, need)
		if err != nil {
			return nil, err
		}
		list = append(list, b)
	}
	return list, nil
}

// add adds blobs, in which one may occur twice, to the repository.
func (p *one) add(ctx context.Context, list []catalog.ForeignBlob) error {
	slices.SortFunc(list, func(a, b catalog.ForeignBlob) int { return cmp.Compare(a.Digest.String(), b.Digest.String()) })
	list = slices.CompactFunc(list, func(a, b catalog.ForeignBlob) bool { return a.Digest == b.Digest })
	for batch := range slices.Chunk(list, blobBatch) {
		fresh, err := p.fresh(ctx, batch)
		if err != nil {
			return err
		}
		if !p.opt.DryRun {
			if err := p.opt.Catalog.AddForeignBlobs(ctx, p.path, p.source.prefix(), batch); err != nil {
				return err
			}
		}
		var bytes int64
		for _, b := range fresh {
			bytes = oci.AddSizes(bytes, b.Size)
		}
		for _, b := range batch {
			p.linked[b.Digest] = true
		}
		p.count(func(r *Report) { r.Blobs += int64(len(fresh)); r.Bytes = oci.AddSizes(r.Bytes, bytes) })
	}
	return nil
}

// fresh returns those blobs that the repository doesn't have, which an earlier import may have added.
// The others are added again too, so that garbage collection leaves them alone meanwhile.
func (p *one) fresh(ctx context.Context, list []catalog.ForeignBlob) ([]catalog.ForeignBlob, error) {
	digests := make([]oci.Digest, len(list))
	for i, b := range list {
		digests[i] = b.Digest
	}
	linked, err := p.opt.Catalog.LinkedBlobs(ctx, p.path, digests)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(list), func(b catalog.ForeignBlob) bool { return linked[b.Digest] }), nil
}

// blob finds a blob's file. If the file has another size than the manifest says, its content is
// read: registries keep manifests that say it wrong, but the file may also be incomplete.
func (p *one) blob(ctx context.Context, need oci.Descriptor) (catalog.ForeignBlob, error) {
	b := catalog.ForeignBlob{Digest: need.Digest, Key: p.source.blobKey(p.name, need.Digest)}
	file, err := p.opt.Store.Stat(ctx, b.Key)
	if err == nil && file.Size == 0 && need.Size != 0 {
		var other string
		if other, err = p.source.elsewhere(ctx, need.Digest); err == nil && other != "" {
			b.Key = other
			file, err = p.opt.Store.Stat(ctx, other)
		}
	}
	if errors.Is(err, blob.ErrNotFound) {
		return b, brokenf("blob %s is missing: there is no file %s%s", need.Digest, b.Key, instead(err))
	}
	if err != nil {
		return b, err
	}
	if b.Size = file.Size; file.Size == need.Size {
		return b, p.opt.Store.Readable(ctx, b.Key)
	}
	sum, err := p.digestOf(ctx, file, need.Digest.Algorithm())
	if err == nil && sum != need.Digest {
		err = brokenf("blob %s is damaged: the file %s has %d bytes and the digest %s, not %d bytes", need.Digest, b.Key, file.Size, sum, need.Size)
	}
	return b, err
}

// digestOf returns a file's digest. Many manifests may need the file, and each is looked at twice: it is
// read once.
func (m *importer) digestOf(ctx context.Context, file blob.Object, a oci.Algorithm) (oci.Digest, error) {
	m.mu.Lock()
	sum, known := m.hashed[file]
	m.mu.Unlock()
	if known && sum.Algorithm() == a {
		return sum, nil
	}
	sum, err := hash(ctx, m.opt.Store, file.Key, a)
	if err == nil {
		m.mu.Lock()
		m.hashed[file] = sum
		m.mu.Unlock()
	}
	return sum, err
}

// put stores a manifest and points tags to it. Without a condition, the tags are new.
func (p *one) put(ctx context.Context, d oci.Digest, tags []string, condition catalog.Condition) error {
	m, text, err := p.read(ctx, d)
	if err != nil {
		return err
	}
	pushed := p.from.manifests[d]
	if pushed.IsZero() {
		pushed = time.Now()
	}
	imported := &catalog.Imported{Manifest: pushed, Tags: make(map[string]time.Time, len(tags))}
	for _, tag := range tags {
		imported.Tags[tag] = p.from.tags[tag].pushed
	}
	if !p.opt.DryRun {
		err = p.opt.Catalog.PutManifest(ctx, catalog.NewManifest{
			Repository: p.path, Digest: d, Manifest: m, Payload: text, Tags: tags, Condition: condition,
			KeepTags: condition.Tag == "", Imported: imported,
		})
	}
	if err != nil {
		return err
	}
	fresh := !p.have.Manifests[d]
	p.have.Manifests[d] = true
	p.count(func(r *Report) {
		r.Tags += int64(len(tags))
		if fresh {
			r.Manifests++
		}
	})
	return nil
}

// rest imports the manifests without a tag that refer to an imported one, such as signatures, and
// with opt.Untagged all others too.
func (p *one) rest(ctx context.Context) error {
	waiting := make(map[oci.Digest][]oci.Digest) // by subject
	for _, d := range slices.SortedFunc(maps.Keys(p.from.manifests), func(a, b oci.Digest) int { return cmp.Compare(a.String(), b.String()) }) {
		if _, seen := p.done[d]; seen || p.have.Manifests[d] {
			continue
		}
		m, _, err := p.read(ctx, d)
		if reason, ok := reasonOf(err); ok {
			if p.opt.Untagged {
				p.done[d] = err
				p.skip(Skip{Repository: p.name, Digest: d, Reason: reason})
			} else {
				p.count(func(r *Report) { r.Untagged++ })
			}
			continue
		}
		if err != nil {
			return err
		}
		switch {
		case p.opt.Untagged:
			if err := p.untagged(ctx, d); err != nil {
				return err
			}
		case m.Subject != nil:
			waiting[m.Subject.Digest] = append(waiting[m.Subject.Digest], d)
		default:
			p.count(func(r *Report) { r.Untagged++ })
		}
	}
	// A referrer may have referrers.
	queue := slices.SortedFunc(maps.Keys(waiting), func(a, b oci.Digest) int { return cmp.Compare(a.String(), b.String()) })
	for len(queue) > 0 {
		subject := queue[0]
		queue = queue[1:]
		if !p.have.Manifests[subject] {
			continue
		}
		for _, d := range waiting[subject] {
			if err := p.untagged(ctx, d); err != nil {
				return err
			}
			if len(waiting[d]) > 0 {
				queue = append(queue, d)
			}
		}
		delete(waiting, subject)
	}
	for _, left := range waiting {
		p.count(func(r *Report) { r.Untagged += int64(len(left)) })
	}
	return nil
}

// untagged imports a manifest without a tag.
func (p *one) untagged(ctx context.Context, d oci.Digest) error {
	err := p.manifest(ctx, d, nil)
	if reason, ok := reasonOf(err); ok {
		p.skip(Skip{Repository: p.name, Digest: d, Reason: reason})
		return nil
	}
	return err
}

// verify compares the tags in Purser with those of the other registry.
func (p *one) verify(ctx context.Context) error {
	if p.opt.DryRun {
		return nil
	}
	now, err := p.opt.Catalog.Content(ctx, p.path)
	if err != nil {
		return err
	}
	for _, tag := range slices.Sorted(maps.Keys(p.from.tags)) {
		want, have := p.from.tags[tag], now.Tags[tag]
		switch {
		case oci.ValidateTag(tag) != nil, have.Digest == want.digest, !have.Digest.IsZero() && !p.movedAfter(have.Pushed, tag):
		case have.Digest.IsZero():
			p.skip(Skip{Repository: p.name, Tag: tag, Digest: want.digest, Reason: "it isn't in Purser after the import: it was deleted meanwhile"})
		default:
			p.skip(Skip{Repository: p.name, Tag: tag, Digest: want.digest, Reason: fmt.Sprintf("it points to %s in Purser after the import", have.Digest)})
		}
	}
	return nil
}
