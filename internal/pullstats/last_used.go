package pullstats

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
	"github.com/purser-registry/purser/internal/worker"
)

const (
	// lastUsedEvery is how often the recorder writes last-used times to the database.
	lastUsedEvery = 5 * time.Second
	// lastUsedRefresh is the least age that the stored last-used time of a tag or manifest
	// must have before a later one replaces it. Without this limit, the time of a tag in
	// constant use would be written every lastUsedEvery.
	lastUsedRefresh = 5 * time.Minute
	// lastUsedSlack is how much later than its stored last-used time a tag or manifest may
	// really have been used.
	lastUsedSlack = lastUsedRefresh + 12*lastUsedEvery
	// maxLastUsed bounds the number of tags and manifests whose last-used times are in
	// memory. Times that are stored make room for others (makeRoom), so only times that the
	// database hasn't taken yet can fill it.
	maxLastUsed = 100_000
	// lastUsedHurry is after how many new names in memory the recorder writes without waiting
	// for lastUsedEvery, so that memory doesn't fill while the database can be written.
	lastUsedHurry = maxLastUsed / 8
	// lastUsedBatch is how many last-used times one transaction writes.
	lastUsedBatch = 1000
)

// LastUsedOptions configures a LastUsedRecorder.
type LastUsedOptions struct {
	statsdb.Databases
	// Every is how often last-used times are written to the database. Default 5 s.
	Every time.Duration
	// ClocksFit returns an error while the clocks aren't fit to judge by. Then a stored time stays that
	// is in the future: the clock may be behind, and the time right. Nil: they always are.
	ClocksFit func(ctx context.Context) error
	Log       *slog.Logger    // default slog.Default()
	Worker    *worker.Metrics // nil: none
}

// LastUsedRecorder records last-used times: when a client used a tag or manifest other than
// by a counted pull. Such a use is a HEAD, or a pull that may not have been counted. The
// recorder gathers the times in memory and writes them to the statistics every few seconds.
// A time in the statistics may be some minutes earlier than the last use. Writing a time
// twice does no harm.
type LastUsedRecorder struct {
	opt  LastUsedOptions
	loop *worker.Loop

	mu    sync.Mutex
	clock func() time.Time // that of the statistics' database, as far as it is known
	began time.Time        // when the last save that succeeded began, by the process's monotonic clock
	names map[usedName]*lastUsed
	// added is how many entries names got since the last save began.
	added int
	// spare says that names may have entries that needn't be written now: some were written
	// since makeRoom has last removed all of them.
	spare bool
	// dropped is how many uses were dropped, since names had maxLastUsed entries that were all
	// to be written, and recorded_since hasn't moved for them yet.
	dropped int
	// uncounted is the time of the newest pull that isn't counted; zero once that time is
	// stored in the statistics.
	uncounted time.Time
}

// usedName is a tag or, if manifest is set, a manifest by its digest.
type usedName struct {
	repository int64
	manifest   bool
	name       string
}

type lastUsed struct{ at, saved time.Time }

// NewLastUsedRecorder makes the recorder of a process. It writes nothing until Run or Close
// is called.
func NewLastUsedRecorder(o LastUsedOptions) (*LastUsedRecorder, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	if o.Every <= 0 {
		o.Every = lastUsedEvery
	}
	m := &LastUsedRecorder{opt: o, names: map[usedName]*lastUsed{}, clock: time.Now}
	m.loop = worker.New(worker.Options{Name: "signs of use", Batch: m.save, Idle: o.Every, Log: o.Log, Metrics: o.Worker})
	return m, nil
}

// Run writes last-used times until ctx ends, and then returns nil. It leaves the times that
// it hasn't written in memory, and Close writes them.
func (m *LastUsedRecorder) Run(ctx context.Context) error { return m.loop.Run(ctx) }

// Close writes the last-used times that are still in memory. Call it after Recorder.Close,
// which may add further times. If Close returns an error, the database couldn't be written,
// and the times that were in memory are lost.
func (m *LastUsedRecorder) Close(ctx context.Context) error {
	if _, err := m.save(ctx); err != nil {
		return fmt.Errorf("stopping without the last last-used times: %w", err)
	}
	return nil
}

// used records that a manifest was used at `at` and, unless tag is "", that the tag was used
// then.
func (m *LastUsedRecorder) used(repository int64, tag string, d oci.Digest, at time.Time) {
	if tag != "" {
		m.tagUsed(repository, tag, at)
	}
	if !d.IsZero() {
		m.usedAt(usedName{repository, true, d.String()}, at)
	}
}

func (m *LastUsedRecorder) tagUsed(repository int64, tag string, at time.Time) {
	m.usedAt(usedName{repository, false, tag}, at)
}

func (m *LastUsedRecorder) usedAt(k usedName, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.names[k]
	switch {
	case known == nil && len(m.names) >= maxLastUsed && !m.makeRoom():
		m.dropped++
	case known == nil:
		m.names[k] = &lastUsed{at: at}
		if m.added++; m.added == lastUsedHurry {
			m.loop.Wake()
		}
	case at.After(known.at), known.at.Sub(at) > lastUsedRefresh && known.at.After(m.clock().Add(lastUsedRefresh)):
		known.at = at
	}
}

// makeRoom removes entries from names that needn't be written now, and returns whether it has
// removed any. That loses nothing, since the stored time stands for the one in memory (see
// lastUsedSlack). Its only effect is that the next use of the tag or manifest is written at once
// instead of lastUsedRefresh after the last one.
//
// It begins with the entries of repositories that have more than an equal share of memory. So a
// client that asks for very many names mostly removes those that it has asked for itself. The
// caller holds mu.
func (m *LastUsedRecorder) makeRoom() bool {
	if !m.spare {
		return false
	}
	now := m.clock()
	entries := map[int64]int{}
	for k := range m.names {
		entries[k.repository]++
	}
	for _, share := range []int{len(m.names) / len(entries), 0} {
		before := len(m.names)
		for k, v := range m.names {
			if entries[k.repository] > share && !v.due(now) {
				delete(m.names, k)
			}
		}
		if len(m.names) < before {
			return true
		}
	}
	m.spare = false
	return false
}

// setClock makes the recorder go by the clock `now`, which the times of uses come from.
func (m *LastUsedRecorder) setClock(now func() time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clock = now
}

// savedSince says whether all uses that were recorded before `at`, by the process's monotonic
// clock, are in the database, or a stored time of the same tag or manifest stands for them (see
// lastUsedSlack).
func (m *LastUsedRecorder) savedSince(at time.Time) bool {
	m.mu.Lock()
	began := m.began
	m.mu.Unlock()
	return began.After(at) || !m.unsaved()
}

// markUncounted records that the pull that happened at `at` may be missing in the counts.
func (m *LastUsedRecorder) markUncounted(at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if at.After(m.uncounted) {
		m.uncounted = at
	}
}

// unsaved says whether the recorder has times in memory that should be written by now, and
// that would be lost if the process were killed.
func (m *LastUsedRecorder) unsaved() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dropped > 0 || !m.uncounted.IsZero() {
		return true
	}
	now := m.clock()
	for _, v := range m.names {
		if v.due(now) {
			return true
		}
	}
	return false
}

// due says whether the last-used time v.at should be written: it is later than the stored
// time v.saved, and the stored time is at least lastUsedRefresh ago. A stored time that is far in
// the future was written before a clock was set back: it says nothing about the use.
func (v *lastUsed) due(now time.Time) bool {
	if v.saved.Sub(now) > lastUsedRefresh {
		return true
	}
	return v.at.After(v.saved) && now.Sub(v.saved) >= lastUsedRefresh
}

// save writes the last-used times that are due. It removes from memory the tags and
// manifests that haven't been used for lastUsedRefresh.
func (m *LastUsedRecorder) save(ctx context.Context) (more bool, err error) {
	began := time.Now()
	if err := m.saveGap(ctx); err != nil {
		return false, err
	}
	if err := m.saveUncounted(ctx); err != nil {
		return false, err
	}
	for batch := range slices.Chunk(m.due(), lastUsedBatch) {
		if err := m.write(ctx, batch); err != nil {
			return false, err
		}
	}
	m.mu.Lock()
	m.began = began
	m.mu.Unlock()
	return false, nil
}

// saveUncounted stores the time of the newest uncounted pull in the statistics
// (uncounted_at).
func (m *LastUsedRecorder) saveUncounted(ctx context.Context) error {
	m.mu.Lock()
	at := m.uncounted
	m.mu.Unlock()
	if at.IsZero() {
		return nil
	}
	if _, err := m.opt.Stats.Pool.Exec(ctx, `
		INSERT INTO pullstatisticsprocessingstate AS s (recorded_since, uncounted_at) VALUES ($1, $1)
		ON CONFLICT (id) DO UPDATE SET uncounted_at = GREATEST(s.uncounted_at, EXCLUDED.uncounted_at)`, at); err != nil {
		return fmt.Errorf("telling that pulls weren't counted: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.uncounted.Equal(at) {
		m.uncounted = time.Time{}
	}
	return nil
}

// owed is a tag or manifest with the last-used time that is to be written for it.
type owed struct {
	usedName
	at time.Time
}

// due returns the last-used times that are to be written, ordered by repository and name, so
// that concurrent transactions lock rows in the same order.
func (m *LastUsedRecorder) due() (list []owed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.added = 0
	now := m.clock()
	for k, v := range m.names {
		switch {
		case v.due(now):
			list = append(list, owed{k, v.at})
		case !v.at.After(v.saved) && now.Sub(v.at) > lastUsedRefresh:
			delete(m.names, k)
		}
	}
	slices.SortFunc(list, func(a, b owed) int {
		return cmp.Or(cmp.Compare(a.repository, b.repository), cmp.Compare(a.name, b.name))
	})
	return list
}

func (m *LastUsedRecorder) write(ctx context.Context, list []owed) error {
	ids := make([]int64, len(list))
	for i, o := range list {
		ids[i] = o.repository
	}
	fit := m.opt.ClocksFit == nil || m.opt.ClocksFit(ctx) == nil
	err := m.opt.WithAlive(ctx, slices.Compact(ids), func(alive statsdb.Living, tx pgx.Tx) error {
		return upsertLastUsed(ctx, tx, list, alive, fit)
	})
	if err != nil {
		return fmt.Errorf("writing last-used times: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range list {
		if v := m.names[o.usedName]; v != nil {
			v.saved, m.spare = o.at, true
		}
	}
	return nil
}

// upsertLastUsed writes times that are later than the stored ones, and with `fit` also instead of those
// of the future, which are from before the clock was set back.
func upsertLastUsed(ctx context.Context, tx pgx.Tx, list []owed, alive statsdb.Living, fit bool) error {
	for _, part := range []struct {
		manifests  bool
		table, key string
	}{{false, "tagpullstatistics", "tag_name"}, {true, "manifestpullstatistics", "manifest_digest"}} {
		var repositories []int64
		var names []string
		var times []time.Time
		for _, o := range list {
			if o.manifest == part.manifests && alive.Has(o.repository) {
				repositories, names, times = append(repositories, o.repository), append(names, o.name), append(times, o.at)
			}
		}
		if len(names) == 0 {
			continue
		}
		if _, err := tx.Exec(ctx, fmt.Sprintf(`
			INSERT INTO %[1]s AS s (repository_id, %[2]s, last_check_date)
			SELECT * FROM unnest($1::bigint[], $2::text[], $3::timestamptz[])
			ON CONFLICT (repository_id, %[2]s) DO UPDATE SET last_check_date = EXCLUDED.last_check_date
			WHERE s.last_check_date IS NULL OR s.last_check_date < EXCLUDED.last_check_date
				OR $4 AND s.last_check_date > now() + interval '10 minutes'`, part.table, part.key),
			repositories, names, times, fit); err != nil {
			return err
		}
	}
	return nil
}

// saveGap records that statistics are complete only from now on, if uses were dropped.
func (m *LastUsedRecorder) saveGap(ctx context.Context) error {
	m.mu.Lock()
	n := m.dropped
	m.mu.Unlock()
	if n == 0 {
		return nil
	}
	if err := statsdb.Unrecorded(ctx, m.opt.Stats, 0); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dropped -= n
	return nil
}
