// Package check compares the database with the blob store, and repairs differences if asked
// to, while registries use them. It also compares the sizes that manifests declare with the
// stored sizes.
//
// Storage keys are random, so [Run] divides them into 16 parts by their first hexadecimal
// digit. For each part it compares two lists, both in key order: the database rows that own
// objects, and the store's objects. Rows and objects are read at different moments, so a
// difference is only a suspicion. Run then looks at the object and the row a second time, in
// an order that makes the result certain whatever changes meanwhile. The proof rests on
// three facts. Every object has exactly one owner row, which is inserted before the object's
// first byte and deleted after the object. A storage key is never used twice. A key moves
// only from an upload to a blob to a pending deletion, never back.
//
//   - A blob without its object, or whose object has another size: Run looks at the object,
//     then at the blob's row. If the row still names this key, it has named the key all the
//     time, since a key can't leave a blob and come back. So the blob owned the key when Run
//     looked at the object, and the object should have existed with the size that it had when
//     the blob was committed.
//   - A blob whose object has content with another digest: Run reads the object a second time
//     and then the row, as above.
//   - An object for which Run saw no owner row: one statement looks for an owner in all
//     tables. If it finds none, the object was deleted before that statement, or has no
//     owner; so Run looks at the object again afterwards. If the object still exists, no row
//     will ever own it. A running request may have written the object, if its upload was
//     deleted meanwhile; that request deletes the object itself. So Run reports no object
//     that is younger than the longest time that a request may take.
//   - A multipart upload without an owner row: Run checks it like an object without an
//     owner row.
//   - A key with two owner rows: one statement has read both rows, so they existed at one
//     moment.
//
// An object or a directory of the store that can't be read counts neither as whole nor as missing.
// Run reports it, goes on with the others, and ends with ErrIncomplete.
//
// At the end Run compares the sizes that manifests declare with the stored sizes in the
// database. The registry accepts manifests with wrong sizes, since other registries store
// such manifests too. So Run reports a difference as a note and never repairs it.
//
// A blob whose foreign object is gone is marked as lost too (see package registryimport); a repair
// never touches a foreign object. Without the mark, clients would be told that the blob exists, and
// could not push it.
package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// Problem is a kind of disagreement between the database and the store.
type Problem string

// The problems that a check finds, and what a repair does about each. "Marked as lost" means
// that blobs.lost_at is set: the registry then answers that the blob doesn't exist, and the
// next push stores it again. "Doomed" means that the object becomes a pending deletion (a
// row of gc_doomed_objects), so that the sweeper deletes it.
const (
	Missing    Problem = "missing"    // a blob has no object: the blob is marked as lost
	WrongSize  Problem = "wrong-size" // a blob's object has another size: the blob is marked as lost
	Damaged    Problem = "damaged"    // a blob's object has other content: the blob is marked as lost
	Unreadable Problem = "unreadable" // a blob's object can't be read: no repair
	Hidden     Problem = "hidden"     // another object, or a directory of the store, can't be read: no repair
	Lost       Problem = "lost"       // a blob was marked as lost before and not pushed since: no repair
	Recovered  Problem = "recovered"  // a blob was marked as lost and its object is right: the mark is removed

	Unowned       Problem = "unowned"        // an object has no owner: the object is doomed
	UnownedUpload Problem = "unowned-upload" // a multipart upload has no owner: the upload is doomed
	Shared        Problem = "shared"         // an object has several owners: no repair

	QuotaUsage Problem = "quota-usage" // a quota's numbers differ from its namespace's content: it is counted again

	CopiedSize Problem = "copied-size" // a manifest's rows have another size of a blob than the blob's row: it is copied again

	DeclaredSize Problem = "declared-size" // a manifest declares other sizes than are stored: no repair, only a note
)

// Problems has all problems, the worst first.
var Problems = []Problem{Shared, Missing, WrongSize, Damaged, Unreadable, Hidden, Lost, Recovered, Unowned, UnownedUpload, QuotaUsage, CopiedSize, DeclaredSize}

// Note says whether the problem is for information only. A check whose only findings are
// such problems counts as successful.
func (p Problem) Note() bool { return p == DeclaredSize }

// Finding is one problem of one blob, object, upload, manifest or quota. Unless the problem is
// Shared or DeclaredSize, a second look at the row or the object has confirmed it.
type Finding struct {
	Problem Problem `json:"problem"`
	// Key is the object's storage key or, for a multipart upload, the prefix of the keys of
	// the upload's objects (its base). For a directory that can't be read it is the directory's
	// path in the store. It is empty if the finding is about a manifest or a quota.
	Key    string     `json:"key"`
	Digest oci.Digest `json:"digest,omitzero"` // of the blob or manifest, if the finding is about one
	Size   int64      `json:"size"`            // bytes: the blob's, else the object's
	Detail string     `json:"detail,omitempty"`
	// Repositories has up to three of the repositories that have the blob, or the repository
	// of the manifest.
	Repositories []string `json:"repositories,omitempty"`
	// Contradiction says which declared sizes of a manifest differ from the stored sizes;
	// nil if the finding isn't about declared sizes.
	Contradiction *Contradiction `json:"contradiction,omitempty"`
	Repaired      bool           `json:"repaired"` // a repair has changed the row
}

// Tally sums up the findings of one problem.
type Tally struct {
	Count    int64 `json:"count"`
	Bytes    int64 `json:"bytes"`
	Repaired int64 `json:"repaired"`
}

// CheckReport sums up a check.
type CheckReport struct {
	Objects     int64 `json:"objects"` // in the store, without objects of other programs
	ObjectBytes int64 `json:"object_bytes"`
	Blobs       int64 `json:"blobs"` // in the database
	Hashed      int64 `json:"hashed"`
	HashedBytes int64 `json:"hashed_bytes"`
	// Manifests counts the manifests whose declared sizes were compared. UnreadableManifests
	// counts those that were skipped because they can't be parsed.
	Manifests           int64 `json:"manifests"`
	UnreadableManifests int64 `json:"unreadable_manifests"`
	// Young counts objects without an owner that are so young that a running request may
	// have written them. They are no findings.
	Young int64 `json:"young"`
	// Kept counts objects without an owner that are younger than gc.keep_doomed. After a
	// restore of the database they may be blobs that were pushed after the backup. They are
	// no findings, and a repair leaves them alone.
	Kept      int64 `json:"kept"`
	KeptBytes int64 `json:"kept_bytes"`
	// Doomed counts objects of pending deletions, including those that are kept for
	// gc.keep_doomed.
	Doomed      int64              `json:"doomed"`
	DoomedBytes int64              `json:"doomed_bytes"`
	Problems    map[Problem]*Tally `json:"problems"`
	Took        time.Duration      `json:"-"`
}

// Remaining says whether something is left for an operator to do: a finding that wasn't
// repaired, or a lost blob that somebody has to push again. Notes don't count.
func (r CheckReport) Remaining() bool {
	for p, t := range r.Problems {
		switch p {
		case DeclaredSize:
		case Unowned, UnownedUpload, Recovered, QuotaUsage, CopiedSize:
			if t.Repaired < t.Count {
				return true
			}
		default:
			if t.Count > 0 {
				return true
			}
		}
	}
	return false
}

// Progress says how far a check has come.
type Progress struct {
	Share       float64 // of all keys, from 0 to 1
	Objects     int64
	Blobs       int64
	Manifests   int64 // which come after all keys
	HashedBytes int64
	Findings    int64
}

// Options says what to check and how.
type Options struct {
	Catalog *catalog.Catalog // required
	Store   blob.Store       // required
	// Tree lists the files of finished imports. nil: they aren't looked at.
	Tree blob.Tree
	// KeepDoomed is the setting gc.keep_doomed: how long the objects of deleted blobs are
	// kept. A repair leaves younger objects without an owner alone.
	KeepDoomed time.Duration
	Deep       bool // read and hash every blob
	Repair     bool // else nothing is changed
	// Force allows a repair even if more than half of the blobs, or of the objects, that
	// the check has looked at are wrong. Without Force such a repair stops with
	// ErrImplausible.
	Force bool
	// Lists is the pool from whose connections the rows that own objects are read. Each part keeps a
	// connection as long as it is compared, so the pool needs Parallel of them beyond what else uses it.
	// Default the catalog's.
	Lists *db.DB
	// Parallel bounds how many of the 16 parts of the keys are compared at the same time.
	// Default DefaultParallel, maximum 16.
	Parallel int
	// Found, unless nil, is called for each finding, never concurrently. It should return
	// quickly.
	Found func(Finding)
	// Progress, unless nil, is called every second, and at the end.
	Progress func(Progress)
}

// DefaultParallel is how many parts of the keys a check compares at the same time.
const DefaultParallel = 4

// ErrImplausible says that a repair was stopped because so much is wrong that the database
// and the store probably belong to different registries, or one of them is incomplete.
var ErrImplausible = errors.New("more than half of what was looked at is wrong, so this is probably another registry's database, another bucket, or a volume that isn't mounted: nothing more was repaired")

// ErrIncomplete says that a check has come to its end, and couldn't read a part of the store. Its findings
// Unreadable and Hidden name what that is.
var ErrIncomplete = errors.New("the check is incomplete")

// unownedDelay is the least time between two steps of a repair: recording an object without
// an owner for deletion, and the deletion. It gives an operator who repaired with the wrong
// database a day to notice.
const unownedDelay = 24 * time.Hour

// Run compares the database with the store; the package comment says how. It passes its
// findings to o.Found. If Run returns an error, the report is valid for what was compared
// until then, which is all that can be read if the error is ErrIncomplete.
func Run(ctx context.Context, o Options) (CheckReport, error) {
	if o.Catalog == nil || o.Store == nil {
		return CheckReport{}, errors.New("check: a check needs a catalog and a store")
	}
	if o.Parallel <= 0 {
		o.Parallel = DefaultParallel
	}
	o.Lists = cmp.Or(o.Lists, o.Catalog.DB())
	began := time.Now()
	if err := refuseRepair(ctx, o); err != nil {
		return CheckReport{}, err
	}
	k := &checker{opt: o, browser: browse.New(o.Catalog), young: began.Add(-o.Catalog.LongestWrite()), kept: began.Add(-o.KeepDoomed)}
	k.report.Problems = make(map[Problem]*Tally)
	stop := k.tell()
	err := k.run(ctx)
	stop()
	k.report.Took = time.Since(began)
	k.report.HashedBytes = k.hashedBytes.Load()
	if err == nil {
		err = k.report.incomplete()
	}
	return k.report, errors.Join(err, k.refused)
}

// incomplete returns ErrIncomplete with the number of objects and directories that couldn't be read,
// nil if all could.
func (r CheckReport) incomplete() error {
	var n int64
	for _, p := range []Problem{Unreadable, Hidden} {
		if t := r.Problems[p]; t != nil {
			n += t.Count
		}
	}
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%w: objects or directories of the store that couldn't be read: %d", ErrIncomplete, n)
}

// refuseRepair returns an error if a repair is requested but the store has another
// database's identity.
func refuseRepair(ctx context.Context, o Options) error {
	if !o.Repair {
		return nil
	}
	return blob.RefuseWrong(ctx, o.Store)
}

// checker is the state of one check.
type checker struct {
	opt     Options
	browser *browse.Browser
	young   time.Time // objects modified after this time are only counted (report.Young)
	kept    time.Time // objects modified after this time aren't recorded for deletion

	hashedBytes atomic.Int64
	done        [parts]atomic.Uint32 // progress of each part, in 65536ths

	mu      sync.Mutex
	report  CheckReport
	strays  []blob.Object // objects suspected to have no owner
	marks   []Finding     // findings to be reported once the blobs' lost marks are set or removed
	refused error         // why repairing stopped
}

const (
	parts = 16
	// maxStrays is how many objects without a known owner row the check gathers in memory
	// before one statement looks for the owners of all of them. That statement reads the
	// whole table of blobs, so it should run rarely.
	maxStrays = 100_000
	maxMarks  = 1000
)

func (k *checker) run(ctx context.Context) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(min(k.opt.Parallel, parts))
	for i := range parts {
		group.Go(func() error {
			p := &part{checker: k, index: i}
			if err := p.merge(groupCtx); err != nil {
				return err
			}
			k.done[i].Store(1 << 16)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	k.mu.Lock()
	seen := k.report.Objects
	k.mu.Unlock()
	if err := k.settleStrays(ctx, 0, seen); err != nil {
		return err
	}
	if err := k.imported(ctx); err != nil {
		return err
	}
	if err := k.settleMarks(ctx, 0); err != nil {
		return err
	}
	if err := k.unfinished(ctx); err != nil {
		return err
	}
	if err := k.quotas(ctx); err != nil {
		return err
	}
	if err := k.copiedSizes(ctx); err != nil {
		return err
	}
	return k.manifests(ctx)
}

// tell starts a goroutine that calls opt.Progress every second and once more when stop is
// called.
func (k *checker) tell() (stop func()) {
	if k.opt.Progress == nil {
		return func() {}
	}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-end:
				k.opt.Progress(k.progress())
				return
			case <-tick.C:
				k.opt.Progress(k.progress())
			}
		}
	}()
	return func() { close(end); <-ended }
}

func (k *checker) progress() Progress {
	share := 0.0
	for i := range k.done {
		share += float64(k.done[i].Load()) / (1 << 16) / parts
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	p := Progress{Share: share, Objects: k.report.Objects, Blobs: k.report.Blobs, Manifests: k.report.Manifests, HashedBytes: k.hashedBytes.Load()}
	for _, t := range k.report.Problems {
		p.Findings += t.Count
	}
	return p
}

// reached records the progress of a part: the comparison of its rows and objects has come
// to `key`. Keys are random, so the digits of `key` after the first show which share of the
// part is done.
func (k *checker) reached(part int, key string) {
	if len(key) < 5 {
		return
	}
	if n, err := strconv.ParseUint(key[1:5], 16, 16); err == nil {
		k.done[part].Store(uint32(n))
	}
}

// add counts findings in the report and passes them to opt.Found.
func (k *checker) add(list ...Finding) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, f := range list {
		t := k.report.Problems[f.Problem]
		if t == nil {
			t = new(Tally)
			k.report.Problems[f.Problem] = t
		}
		t.Count++
		t.Bytes = oci.AddSizes(t.Bytes, f.Size)
		if f.Repaired {
			t.Repaired++
		}
		if k.opt.Found != nil {
			k.opt.Found(f)
		}
	}
}

// mayRepair says whether n further findings may be repaired; without opt.Repair none may.
// These n findings, and the earlier findings of the given problems, count as wrong. `seen`
// is how many objects or blobs the check has looked at so far: a fair sample of all, since
// keys are random. If at least 100 of the sample, and more than half of it, are wrong,
// mayRepair returns false now and for the rest of the check, unless opt.Force is set.
func (k *checker) mayRepair(n int, seen int64, problems ...Problem) bool {
	const few = 100 // below this the share says nothing, as in a small registry
	if !k.opt.Repair || n == 0 {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	wrong := int64(n)
	for _, p := range problems {
		if t := k.report.Problems[p]; t != nil {
			wrong += t.Count
		}
	}
	if k.refused == nil && !k.opt.Force && wrong >= few && wrong > seen/2 {
		k.refused = fmt.Errorf("%d of %d: %w", wrong, seen, ErrImplausible)
	}
	return k.refused == nil
}
