package gc

import (
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
	"github.com/purser-registry/purser/internal/oci"
)

// Problem is a way in which the database and the store disagree.
type Problem string

// The problems that a check finds, and what a repair does about each.
const (
	Missing    Problem = "missing"    // a blob has no object: it is marked as lost
	WrongSize  Problem = "wrong-size" // its object has another size: it is marked as lost
	Damaged    Problem = "damaged"    // its object has other content: it is marked as lost
	Unreadable Problem = "unreadable" // its object can't be read: nothing
	Lost       Problem = "lost"       // it was marked as lost and nobody has pushed it since: nothing
	Recovered  Problem = "recovered"  // it was marked as lost and its object is right: it is unmarked

	Unowned       Problem = "unowned"        // an object has no owner: it is doomed
	UnownedUpload Problem = "unowned-upload" // a multipart upload has no owner: it is doomed
	Shared        Problem = "shared"         // an object has several owners: nothing

	DeclaredSize Problem = "declared-size" // a manifest declares other sizes than are stored: nothing, it is a note
)

// Problems lists them all, the worst first.
var Problems = []Problem{Shared, Missing, WrongSize, Damaged, Unreadable, Lost, Recovered, Unowned, UnownedUpload, DeclaredSize}

// Note says that nothing is to be done about the problem: it leaves the rest of the
// check well.
func (p Problem) Note() bool { return p == DeclaredSize }

// Finding is one problem, confirmed by looking again.
type Finding struct {
	Problem Problem `json:"problem"`
	// Key is that of the object or, of a multipart upload, the base. It is "" for a
	// manifest.
	Key    string     `json:"key"`
	Digest oci.Digest `json:"digest,omitzero"` // of the blob or manifest, if it is about one
	Size   int64      `json:"size"`            // bytes: the blob's, else the object's
	Detail string     `json:"detail,omitempty"`
	// Repositories are some of those that have the blob, or the one of the manifest.
	Repositories []string `json:"repositories,omitempty"`
	// Contradiction is what a manifest declares otherwise than it is stored.
	Contradiction *catalog.Contradiction `json:"contradiction,omitempty"`
	Repaired      bool                   `json:"repaired"` // as far as a repair can
}

// Tally sums up the findings of one problem.
type Tally struct {
	Count    int64 `json:"count"`
	Bytes    int64 `json:"bytes"`
	Repaired int64 `json:"repaired"`
}

// CheckReport is what a check has seen.
type CheckReport struct {
	Objects     int64 `json:"objects"` // in the store, foreign ones left out
	ObjectBytes int64 `json:"object_bytes"`
	Blobs       int64 `json:"blobs"` // in the database
	Hashed      int64 `json:"hashed"`
	HashedBytes int64 `json:"hashed_bytes"`
	// Manifests are those whose declared sizes were compared. UnreadableManifests were
	// passed over: another version took them, and this one would refuse them.
	Manifests           int64 `json:"manifests"`
	UnreadableManifests int64 `json:"unreadable_manifests"`
	// Young objects without an owner may belong to a request that is being
	// answered. They are no findings.
	Young int64 `json:"young"`
	// Kept objects without an owner are younger than gc.keep_doomed: a database that
	// was restored doesn't know what was pushed since its backup was made. They are no
	// findings, and no repair dooms them.
	Kept      int64 `json:"kept"`
	KeptBytes int64 `json:"kept_bytes"`
	// Doomed objects wait to be deleted, or are kept for gc.keep_doomed until then.
	Doomed      int64              `json:"doomed"`
	DoomedBytes int64              `json:"doomed_bytes"`
	Problems    map[Problem]*Tally `json:"problems"`
	Took        time.Duration      `json:"-"`
}

// Remaining says whether something is left for an operator to do: a finding that
// wasn't repaired, or a blob that somebody has to push again. Notes are neither.
func (r CheckReport) Remaining() bool {
	for p, t := range r.Problems {
		switch p {
		case DeclaredSize:
		case Unowned, UnownedUpload, Recovered:
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

// CheckProgress is how far a check has come.
type CheckProgress struct {
	Share       float64 // of all keys, from 0 to 1
	Objects     int64
	Blobs       int64
	Manifests   int64 // which come after all keys
	HashedBytes int64
	Findings    int64
}

// CheckOptions says what to check and how.
type CheckOptions struct {
	Catalog *catalog.Catalog // required
	Store   blob.Store       // required
	Deep    bool             // read and hash every blob
	Repair  bool             // else nothing is changed
	// Force repairs even when more than half of what was looked at is wrong,
	// which else ends in ErrImplausible.
	Force bool
	// Parallel bounds what is listed, and hashed, at once. Default 4, at most 16.
	Parallel int
	// Found is called for each finding, one after the other; it should be quick.
	Found func(Finding)
	// Progress is called every second, and at the end.
	Progress func(CheckProgress)
}

// ErrImplausible says that a repair was refused: so much is wrong that the
// database and the store are probably not of the same registry, or one of them
// isn't whole.
var ErrImplausible = errors.New("more than half of what was looked at is wrong, so this is probably another registry's database, another bucket, or a volume that isn't mounted: nothing more was repaired")

// unownedDelay is how long objects without an owner are kept after they are
// doomed: whoever repaired against the wrong database has a day to notice.
const unownedDelay = 24 * time.Hour

// Check compares the database with the store while registries run on both.
//
// Keys are random, so they are divided by their first digit into parts, and of
// each part the rows that own objects and the list of objects, both in the order
// of keys, are merged. The two are of different moments, so that what they say
// is only a suspicion; what became of it is decided by looking again, in an order
// in which nothing that moves can be missed. The argument rests on these facts:
// every object has exactly one owner row, which is there before its first byte
// and goes after it; a key is never used again; a key only ever goes from an
// upload to a blob to the doomed objects, never back.
//
//   - A blob without its object, or with another size: the object is looked at,
//     then the row. If the row still gives the blob this key, it did all the
//     time, since the key can't have gone and come back; so the blob owned the
//     key when the object was looked at, and it should have been there, as long
//     as it was when it was committed.
//   - A blob whose content has another hash: the same, and it is read twice.
//   - An object that no row was seen to own: its owners are looked for, all by one
//     statement. If there is none, it was deleted before that, or has no owner;
//     so the object is looked at again, after the row. What no row owns then no
//     row ever will. Only a request that lost its upload can write such an
//     object, and it deletes it again: so what is younger than the longest
//     request isn't judged.
//   - A multipart upload is looked at like an object.
//   - A key with two owners: both were read by one statement, at one moment.
//
// At last the sizes that manifests declare are compared with those that the database
// has. It takes manifests as they are, since other registries store such ones too:
// what differs is told as a note, and never repaired.
//
// Its findings are handed to o.Found. The report is good as far as it goes even
// with an error.
func Check(ctx context.Context, o CheckOptions) (CheckReport, error) {
	if o.Catalog == nil || o.Store == nil {
		return CheckReport{}, errors.New("gc: a check needs a catalog and a store")
	}
	if o.Parallel <= 0 {
		o.Parallel = 4
	}
	began := time.Now()
	if err := refuseRepair(ctx, o); err != nil {
		return CheckReport{}, err
	}
	k := &checker{opt: o, young: began.Add(-o.Catalog.LongestWrite()), kept: began.Add(-o.Catalog.KeepDoomed())}
	k.report.Problems = make(map[Problem]*Tally)
	stop := k.tell()
	err := k.run(ctx)
	stop()
	k.report.Took = time.Since(began)
	k.report.HashedBytes = k.hashedBytes.Load()
	return k.report, errors.Join(err, k.refused)
}

// refuseRepair fails when a repair is asked for and the store isn't the database's.
func refuseRepair(ctx context.Context, o CheckOptions) error {
	if !o.Repair {
		return nil
	}
	return refuseWrong(ctx, o.Store)
}

// checker is one run of a check.
type checker struct {
	opt   CheckOptions
	young time.Time // what was modified after this isn't judged
	kept  time.Time // what was modified after this isn't doomed

	hashedBytes atomic.Int64
	done        [parts]atomic.Uint32 // of each part, in 65536ths

	mu      sync.Mutex
	report  CheckReport
	strays  []blob.Object // suspected to have no owner
	marks   []Finding     // of blobs, to be marked and then reported
	refused error         // why nothing more is repaired
}

const (
	parts = 16
	// maxStrays bounds the objects in memory whose owners are looked for at once:
	// that costs the database a look at every blob.
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
	if err := k.settleStrays(ctx, 0); err != nil {
		return err
	}
	if err := k.settleMarks(ctx, 0); err != nil {
		return err
	}
	if err := k.unfinished(ctx); err != nil {
		return err
	}
	return k.manifests(ctx)
}

// tell reports progress every second until the function that it returns is called.
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

func (k *checker) progress() CheckProgress {
	share := 0.0
	for i := range k.done {
		share += float64(k.done[i].Load()) / (1 << 16) / parts
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	p := CheckProgress{Share: share, Objects: k.report.Objects, Blobs: k.report.Blobs, Manifests: k.report.Manifests, HashedBytes: k.hashedBytes.Load()}
	for _, t := range k.report.Problems {
		p.Findings += t.Count
	}
	return p
}

// reached notes how far a part has come: keys are random, so their digits tell.
func (k *checker) reached(part int, key string) {
	if len(key) < 5 {
		return
	}
	if n, err := strconv.ParseUint(key[1:5], 16, 16); err == nil {
		k.done[part].Store(uint32(n))
	}
}

// add reports a finding.
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
		t.Bytes = catalog.AddSizes(t.Bytes, f.Size)
		if f.Repaired {
			t.Repaired++
		}
		if k.opt.Found != nil {
			k.opt.Found(f)
		}
	}
}

// mayRepair says whether to repair n more of some problems, of which as many as
// seen were looked at. Keys are random, so what was looked at stands for all.
func (k *checker) mayRepair(n int, seen int64, problems ...Problem) bool {
	const few = 100 // may be anything, in a small registry
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
