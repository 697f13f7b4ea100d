// Package registryimport takes over the storage of another registry in place: the files of its blobs
// become the objects of Purser's blobs, under the paths that they have. It copies no blob, and
// changes and deletes nothing in that storage, so the other registry can serve pulls meanwhile. It
// knows the storage of distribution (Docker's registry) and OCI layouts, as zot keeps them.
//
// Nothing is lost, and nothing of the other registry is harmed:
//
//   - Until the import is finished ([catalog.Catalog.FinishImports]), its objects are foreign: when
//     garbage collection deletes a blob with such an object, a trigger writes the object to
//     gc_foreign_objects, and not to the pending deletions (db/routines/imports.sql). No sweeper
//     sees it there. When the import is finished, the trigger's transactions have ended, and later
//     ones find that it is finished.
//   - Blobs, manifests and tags are inserted by the transactions of pushes, with their locks, so
//     an import and pushes, garbage collection, policies and deletions may run at the same time.
//     [catalog.Catalog.AddForeignBlobs] says why an object that garbage collection gave up can
//     become a blob's object again.
//   - A tag is written after everything that it needs, and in the statement that inserts its
//     manifest. So an import that is killed leaves no tag that can't be pulled. What it leaves
//     without a tag is collected, unless the import is repeated before.
//
// An import can be repeated, to go on after an interruption or to fetch what the other registry got
// since. If a tag differs in the two registries, the one that was pushed last wins. A tag that was
// deleted in Purser comes back.
//
// A trigger keeps foreign objects out of the pending deletions, and not the statements of garbage
// collection. So whatever deletes a blob need not think of them, and the sweeper's statements and
// indexes don't know foreign objects at all. A foreign object that no blob names any more is in a
// table of its own, so it still has exactly one owner.
//
// An import is finished by what the storage has, not by what was promised. "purser import --finish"
// looks at each storage once more, since nobody sees from here whether the other registry runs.
// Only imports that came to their end count, each with the time at which it began. The audit log
// has them, and a storage that it has lost is looked at as a whole.
package registryimport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
)

// Store is a blob store whose files can be listed.
type Store interface {
	blob.Store
	blob.Tree
}

// Options say what to import.
type Options struct {
	Catalog *catalog.Catalog // required
	Store   Store            // the registry's own store, in which the other registry's files are; required
	// Dir is the directory in the store in which the other registry's storage is, with slashes:
	// distribution's rootdirectory or zot's rootDirectory. "": the store itself.
	Dir string
	// To is put in front of the names of repositories, with a "/" between. "": the names stay.
	To           string
	Repositories *regexp.Regexp // only repositories in whose names it is found; nil: all
	// Untagged imports manifests too that have no tag and to which nothing refers.
	Untagged bool
	// Sparse imports an index although some of its manifests can't be imported. The Catalog must
	// accept such indexes.
	Sparse bool
	DryRun bool // change nothing
	// Parallel is the number of repositories that are imported at the same time. Default 4.
	Parallel int
	// Skipped is called for everything that isn't imported, never concurrently. May be nil.
	Skipped func(Skip)
	// Differs is called for each tag that the import writes or, with DryRun, would write, and for each of
	// which it can't tell whether the other registry's push or Purser's was later, never
	// concurrently. `pushed` is when the other registry got it. May be nil.
	Differs func(repository, tag string, pushed time.Time)
	// Progress is called after each manifest and each repository, never concurrently. May be nil. With it, the
	// repositories are counted while the import goes on, for Report.Whole.
	Progress func(Report)
	Log      *slog.Logger // default slog.Default()
}

// Skip is something that isn't imported, and why.
type Skip struct {
	Repository string     `json:"repository"` // as the other registry names it
	Tag        string     `json:"tag,omitempty"`
	Digest     oci.Digest `json:"digest,omitzero"` // of a manifest
	Reason     string     `json:"reason"`
}

// Report says what an import has done or, with DryRun, would do.
type Report struct {
	Format       string        `json:"format"`
	Source       string        `json:"-"`            // what the keys of the storage's objects begin with
	Repositories int64         `json:"repositories"` // that were looked at
	Tags         int64         `json:"tags"`         // written
	UpToDate     int64         `json:"up_to_date"`   // tags that point to the same manifest in both
	Newer        int64         `json:"newer"`        // tags that stay, since they were pushed to Purser later
	Manifests    int64         `json:"manifests"`    // new ones
	Blobs        int64         `json:"blobs"`        // that manifests need and their repository didn't have, counted once per repository
	Bytes        int64         `json:"bytes"`        // of these blobs
	Untagged     int64         `json:"untagged"`     // manifests that were left out, without Options.Untagged
	Skipped      int64         `json:"skipped"`
	Took         time.Duration `json:"-"`
	// Whole is the number of repositories to look at; 0: not known yet, or they couldn't be counted.
	Whole int64 `json:"-"`
	// Parts is Repositories and, of each repository under way, the part of its tagged manifests that is done.
	Parts float64 `json:"-"`
}

// importer is the state of an import.
type importer struct {
	opt    Options
	source source

	mu     sync.Mutex
	report Report
	hashed map[blob.Object]oci.Digest // files that were read, since they have another size than a manifest says
}

// Run imports. Content that can't be imported is skipped, and reported to o.Skipped. If Run returns
// an error, it has stopped early, and can be repeated.
func Run(ctx context.Context, o Options) (Report, error) {
	o.Parallel = cmp.Or(o.Parallel, 4)
	o.Log = cmp.Or(o.Log, slog.Default())
	o.Store = readable{o.Store}
	began := time.Now()
	src, err := open(ctx, o.Store, strings.Trim(o.Dir, "/"))
	if err != nil {
		return Report{}, err
	}
	if o.DryRun {
		err = o.Catalog.CanImport(ctx, src.prefix())
	} else {
		err = o.Catalog.BeginImport(ctx, src.prefix(), src.format())
	}
	if err != nil {
		return Report{}, err
	}
	m := &importer{opt: o, source: src, report: Report{Format: src.format(), Source: src.prefix()},
		hashed: make(map[blob.Object]oci.Digest)}
	err = m.run(ctx)
	m.report.Took = time.Since(began)
	return m.report, err
}

func (m *importer) run(ctx context.Context) error {
	if m.opt.Progress != nil {
		countCtx, stop := context.WithCancel(ctx)
		counted := make(chan struct{})
		go func() {
			defer close(counted)
			m.countRepositories(countCtx)
		}()
		defer func() { stop(); <-counted }()
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(m.opt.Parallel)
	var listErr error
	for f, err := range m.source.repositories(groupCtx) {
		if err != nil {
			listErr = err
			break
		}
		if f.reason != "" { // whatever Options.Repositories says: nobody knows which ones it has
			m.skip(Skip{Repository: f.name, Reason: f.reason})
			continue
		}
		name := f.name
		if !m.wants(name) {
			continue
		}
		group.Go(func() error {
			err := m.repository(groupCtx, name)
			if b, ok := errors.AsType[*broken](err); ok {
				m.skip(Skip{Repository: name, Reason: b.reason})
			} else if err != nil {
				return fmt.Errorf("importing %s: %w", name, err)
			}
			m.count(func(r *Report) { r.Repositories++; r.Parts++ })
			return nil
		})
	}
	err := group.Wait()
	if err != nil {
		return err // it is the cause of listErr too
	}
	return listErr
}

// wants says whether a repository is to be imported.
func (m *importer) wants(name string) bool {
	return m.opt.Repositories == nil || m.opt.Repositories.MatchString(name)
}

// countRepositories sets Report.Whole. It looks at directories alone, so it is ahead of the import. An error
// means that nobody knows the number; the import itself meets it too.
func (m *importer) countRepositories(ctx context.Context) {
	var n int64
	for f, err := range m.source.repositories(ctx) {
		if err != nil {
			return
		}
		if f.reason == "" && m.wants(f.name) {
			n++
		}
	}
	m.count(func(r *Report) { r.Whole = n })
}

// differs calls opt.Differs.
func (m *importer) differs(repository, tag string, pushed time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.opt.Differs != nil {
		m.opt.Differs(repository, tag, pushed)
	}
}

// count changes the report and passes it to opt.Progress.
func (m *importer) count(change func(*Report)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.report)
	if m.opt.Progress != nil {
		m.opt.Progress(m.report)
	}
}

func (m *importer) skip(s Skip) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.report.Skipped++
	if m.opt.Skipped != nil {
		m.opt.Skipped(s)
	}
}

// broken is the error for content that can't be imported, while the import can go on.
type broken struct{ reason string }

func (b *broken) Error() string { return b.reason }

func brokenf(format string, args ...any) error {
	return &broken{fmt.Errorf(format, args...).Error()}
}

// reasonOf returns why content isn't imported, if err only means that: because it is broken, or
// because the registry refuses it as it would refuse a push.
func reasonOf(err error) (string, bool) {
	if b, ok := errors.AsType[*broken](err); ok {
		return b.reason, true
	}
	if e, ok := errors.AsType[*oci.Error](err); ok {
		return cmp.Or(e.Message, e.Error()), true
	}
	return "", false
}
