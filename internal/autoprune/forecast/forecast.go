package forecast

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/autoprune/snapshot"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
)

// Options says what to forecast.
type Options struct {
	// Policy is a policy to try out: the forecast then shows what it alone would have deleted.
	// Nil: the policies that apply now.
	Policy *policy.Policy
	// Days is the number of days that end now. Default 90, most MaxDays.
	Days int
	// Settings are other ages, numbers or sizes of Policy: for each, the forecast says what
	// would be stored now. At most MaxSettings.
	Settings []string
	// Within limits how long Forecast takes. Default 1 min.
	Within time.Duration

	deleted func(day int, repository, tag string) // for tests: called for each deleted tag
}

// Bounds of a forecast.
const (
	MaxDays     = 365
	MaxSettings = 16
	defaultDays = 90
)

// These bound the memory of a forecast: the tags of one repository and their states, the
// manifests of all repositories. Tests change them.
var (
	maxStates    = 2_000_000
	maxManifests = 2_000_000
)

// Forecast says what policies would have deleted, if a run had taken place once a day. The API's document
// names the types of its parts as they are named here.
type Forecast struct {
	Now          time.Time                `json:"now" doc:"The time of the last day's run"`
	Since        time.Time                `json:"since" doc:"The time of the first day's run"`
	Complete     bool                     `json:"complete" doc:"False if the forecast ran out of time, or a repository is too large, before it had looked at everything"`
	Repositories int64                    `json:"repositories" doc:"Repositories that were looked at"`
	Days         []ForecastDay            `json:"days" nullable:"false" doc:"What a run would have deleted on each day, oldest first"`
	Deleted      int64                    `json:"tags_deleted" doc:"The sum of the days"`
	Tags         int64                    `json:"tags" doc:"Tags that exist now"`
	Bytes        *int64                   `json:"bytes,omitempty" doc:"Bytes of the blobs that the tags of now need, each blob counted once"`
	Freed        *int64                   `json:"bytes_freed,omitempty" doc:"Those of bytes that would be gone by now: the sum of the days"`
	Settings     []ForecastSetting        `json:"settings" nullable:"false" doc:"What would be stored now at each setting, smallest first"`
	Notes        []string                 `json:"notes" nullable:"false" doc:"What the forecast couldn't know, and what it assumes"`
	Policies     []policies.PreviewPolicy `json:"policies" nullable:"false" doc:"The policies that were applied: the first 1000"`
}

// ForecastDay is one day of a forecast.
type ForecastDay struct {
	At      time.Time `json:"at" doc:"The time of the day's run"`
	Tags    int64     `json:"tags" doc:"Tags that the run would have found: those that earlier runs had deleted are missing, unless they were pushed again"`
	Deleted int64     `json:"tags_deleted" doc:"Tags that the run would have deleted"`
	Freed   *int64    `json:"bytes_freed,omitempty" doc:"Bytes of blobs that the tags of now need, and that would be gone since this run. Blobs that were deleted in reality aren't counted"`
}

// ForecastSetting says what would be stored now if a policy had another age, number or size.
type ForecastSetting struct {
	Value   string `json:"value" doc:"olderThan, numTags or maxBytes of the policy" example:"30d"`
	Tags    int64  `json:"tags" doc:"Tags that would stay"`
	Deleted int64  `json:"tags_deleted" doc:"Tags that would be deleted"`
	Bytes   *int64 `json:"bytes,omitempty" doc:"Bytes of the blobs that the tags that stay need, each blob counted once"`
}

// Forecaster makes forecasts. It may be used concurrently.
type Forecaster struct {
	repositories *snapshot.Reader
	policies     *policies.Store
}

// New makes a forecaster, which reads repositories and policies of the same database.
func New(repositories *snapshot.Reader, p *policies.Store) *Forecaster {
	return &Forecaster{repositories, p}
}

// Forecast returns what policies would have deleted over the last days in a namespace or a
// repository, if a run had taken place once a day at the present time of day. It takes the
// tags of the past from the audit log, and judges them for each day by the function Evaluate,
// as a run does; what this deletes is missing on later days. It changes nothing. A process
// makes at most two previews and forecasts at a time; further calls wait.
//
// Error: NAME_UNKNOWN if the target doesn't exist, and UNSUPPORTED with status 400 for settings
// that don't fit the policy.
func (m *Forecaster) Forecast(ctx context.Context, t policies.Target, o Options) (*Forecast, error) {
	if t.Scope() == policy.DefaultScope {
		return nil, oci.Invalid("a forecast is of a namespace or of a repository: name one")
	}
	o.Days = min(cmp.Or(max(0, o.Days), defaultDays), MaxDays)
	o.Within = cmp.Or(o.Within, time.Minute)
	settings, err := settingsOf(o.Policy, o.Settings)
	if err != nil {
		return nil, err
	}
	giveBack, err := m.repositories.TakePlace(ctx)
	if err != nil {
		return nil, err
	}
	defer giveBack()
	found, err := t.Find(ctx, m.repositories.DB.Pool, false)
	if err != nil {
		return nil, err
	}
	l, err := m.policies.Load(ctx, found.Namespace)
	if err != nil {
		return nil, err
	}
	f := &forecasting{
		r: m.repositories, o: o, policies: l, settings: settings, until: time.Now().Add(o.Within),
		out:     &Forecast{Complete: true, Days: []ForecastDay{}, Settings: []ForecastSetting{}, Notes: []string{}, Policies: []policies.PreviewPolicy{}},
		notices: make(map[string]string),
	}
	if err := f.begin(ctx); err != nil {
		return nil, err
	}
	if err := f.all(ctx, t, found); err != nil {
		return nil, err
	}
	if err := f.addBytes(ctx); err != nil {
		return nil, err
	}
	f.finish()
	return f.out, nil
}

// forecasting is a forecast that is being made.
type forecasting struct {
	r        *snapshot.Reader
	o        Options
	policies *policies.Set
	settings []setting
	until    time.Time
	out      *Forecast
	begun    time.Time // of the audit log; zero: it is empty
	stored   storedManifests
	blobs    storedBlobs
	listed   policies.Listed
	notices  map[string]string // by policy
	unknown  unknown
}

// unknown counts states of tags about which something isn't known.
type unknown struct{ pushed, uses, manifests, images int64 }

// setting is another age, number or size of the policy.
type setting struct {
	policy policy.Policy
	value  string
}

// settingsOf reads the settings of a policy, and sorts them: the first keeps the fewest
// tags.
func settingsOf(tried *policy.Policy, values []string) ([]setting, error) {
	wrong := func(format string, args ...any) error {
		return oci.Invalid(format, args...).WithDetail(map[string]string{"field": "settings"})
	}
	switch {
	case len(values) == 0:
		return nil, nil
	case tried == nil:
		return nil, wrong("settings: they are ages, numbers or sizes of one policy, so the request needs a policy")
	case len(values) > MaxSettings:
		return nil, wrong("settings: %d are too many: at most %d", len(values), MaxSettings)
	}
	list := make([]setting, len(values))
	for i, text := range values {
		s := setting{policy: *tried}
		var err error
		switch tried.Method {
		case policy.NumberOfTags:
			if s.policy.NumTags, err = strconv.Atoi(text); err == nil && (s.policy.NumTags < 1 || s.policy.NumTags > policy.MaxNumTags) {
				err = fmt.Errorf("it must be between 1 and %d", policy.MaxNumTags)
			}
		case policy.MaxBytes:
			s.policy.MaxBytes, err = policy.ParseSize(text)
		default:
			s.policy.OlderThan, err = policy.ParseAge(text)
		}
		s.value = fmt.Sprint(s.policy.Value())
		if err != nil {
			return nil, wrong("settings: %q: %v", text, err)
		}
		list[i] = s
	}
	compare := func(a, b setting) int {
		return cmp.Or(cmp.Compare(a.policy.OlderThan.Duration(), b.policy.OlderThan.Duration()), cmp.Compare(a.policy.NumTags, b.policy.NumTags),
			cmp.Compare(a.policy.MaxBytes, b.policy.MaxBytes))
	}
	slices.SortStableFunc(list, compare)
	return slices.CompactFunc(list, func(a, b setting) bool { return compare(a, b) == 0 }), nil
}

// begin sets the times of the days. The first isn't before the audit log's beginning.
func (f *forecasting) begin(ctx context.Context) error {
	if err := f.r.DB.Pool.QueryRow(ctx, "SELECT now()").Scan(&f.out.Now); err != nil {
		return fmt.Errorf("asking for the database's time: %w", err)
	}
	f.out.Now = f.out.Now.UTC()
	var err error
	if f.begun, err = audit.Beginning(ctx, f.r.DB.Pool); err != nil {
		return err
	}
	for i := f.o.Days - 1; i >= 0; i-- {
		at := f.out.Now.Add(-time.Duration(i) * policy.Day)
		if i == 0 || !f.begun.IsZero() && !at.Before(f.begun) {
			f.out.Days = append(f.out.Days, ForecastDay{At: at})
		}
	}
	f.out.Since = f.out.Days[0].At
	for _, s := range f.settings {
		f.out.Settings = append(f.out.Settings, ForecastSetting{Value: s.value})
	}
	return nil
}

// all goes through the repositories of the target.
func (f *forecasting) all(ctx context.Context, t policies.Target, found policies.Owner) error {
	var err error
	if t.Scope() == policy.RepositoryScope {
		err = f.take(f.look(ctx, catalog.Repository{NamespaceID: found.Namespace, ID: found.Repository, Path: t.Repository}))
	} else {
		err = snapshot.InOrder(ctx, f.r, found.Namespace, f.look, f.take)
	}
	if errors.Is(err, snapshot.ErrTimeOver) {
		f.out.Complete, err = false, nil
	}
	return err
}

// errTooLarge says that a repository has too many tags, or too long a history.
var errTooLarge = errors.New("the repository is too large for a forecast")

// look judges the days of a repository, and changes nothing of the forecast. It returns snapshot.ErrTimeOver once
// the time for the forecast is over.
func (f *forecasting) look(ctx context.Context, target catalog.Repository) (*history, error) {
	h := &history{f: f, target: target}
	err := f.r.ConfigurationsUntil(ctx, target, f.rules(target).Policies, f.until, f.alive)
	if err == nil {
		err = snapshot.Read(ctx, f.r.DB.Pool, target, func(s *snapshot.Snapshot) error {
			if err := f.limit(ctx, s.Tx); err != nil {
				return err
			}
			h.s = s
			return h.forecast(ctx)
		})
	}
	if db.Code(err) == db.CodeQueryCanceled && ctx.Err() == nil {
		err = snapshot.ErrTimeOver
	}
	return h, err
}

// take adds a repository to the forecast, completely or not at all.
func (f *forecasting) take(h *history, err error) error {
	if errors.Is(err, errTooLarge) {
		f.out.Complete = false
		f.note("%s is missing: it has more than %d states of tags in these days", h.target.Path, maxStates)
		return nil
	}
	if err == nil {
		f.add(h)
	}
	return err
}

// limit lets the statements of a transaction end when the time for the forecast is over.
func (f *forecasting) limit(ctx context.Context, q db.Querier) error {
	left := time.Until(f.until)
	if left <= 0 {
		return snapshot.ErrTimeOver
	}
	// The server must end a statement before the client gives up waiting for it.
	_, err := q.Exec(ctx, "SELECT set_config('statement_timeout', $1, true)", fmt.Sprint(max(1, min(left, 25*time.Second).Milliseconds())))
	return err
}

// alive returns an error once the time for the forecast is over.
func (f *forecasting) alive(ctx context.Context) error {
	if time.Now().After(f.until) {
		return snapshot.ErrTimeOver
	}
	return ctx.Err()
}

// rules returns the rules by which the days of a repository are judged: those of a run, but
// policies that observe or wait delete tags.
func (f *forecasting) rules(t catalog.Repository) judge.Rules {
	rules, _ := f.policies.Of(t)
	if f.o.Policy != nil {
		rules.Policies = nil
		if f.o.Policy.AppliesIn(t.Path) {
			rules.Policies = []judge.Applied{{Scope: policy.NamespaceScope, Policy: *f.o.Policy}}
		}
	}
	rules.Would = true
	return rules
}

// add adds what a repository's history gave.
func (f *forecasting) add(h *history) {
	f.out.Repositories++
	f.out.Tags += h.current
	for _, told := range h.told {
		f.o.deleted(told.day, h.target.Path, told.tag)
	}
	for i := range h.days {
		f.out.Days[i].Tags += h.days[i].Tags
		f.out.Days[i].Deleted += h.days[i].Deleted
		f.out.Deleted += h.days[i].Deleted
	}
	for i := range h.stay {
		f.out.Settings[i].Tags += h.stay[i]
		f.out.Settings[i].Deleted += h.current - h.stay[i]
	}
	f.unknown.pushed += h.unknown.pushed
	f.unknown.uses += h.unknown.uses
	f.unknown.manifests += h.unknown.manifests
	f.unknown.images += h.unknown.images
	f.stored.add(h)
	f.blobs.add(h)
	f.listed.Add(h.target.Path, h.rules.Policies)
	for _, n := range h.notices {
		f.notices[h.rules.Policies[n.Policy].ID] = n.Text
	}
}

func (f *forecasting) note(format string, args ...any) {
	f.out.Notes = append(f.out.Notes, fmt.Sprintf(format, args...))
}

// finish writes the notes.
func (f *forecasting) finish() {
	f.out.Policies = append(f.out.Policies, f.listed.List...)
	for i := range f.out.Policies {
		f.out.Policies[i].Notice = f.notices[f.out.Policies[i].ID]
	}
	if len(f.out.Days) < f.o.Days {
		began := "is empty"
		if !f.begun.IsZero() {
			began = "begins at " + judge.Stamp(f.begun)
		}
		f.note("the audit log %s, so the forecast has %d of %d days", began, len(f.out.Days), f.o.Days)
	}
	if u := f.unknown; u.pushed > 0 {
		f.note("of %d tags the audit log doesn't say when they were pushed before the first day; they count as pushed at the beginning of the log, so they may go too late in the forecast", u.pushed)
	}
	if u := f.unknown; u.uses > 0 {
		f.note("of %d tags only a later use is known, or none, since statistics have only the last use; on days for which their last use isn't known, they stay and max_bytes policies don't count them, so policies by last use may really have deleted more", u.uses)
	}
	if u := f.unknown; u.manifests > 0 {
		f.note("of %d tags the manifests are gone by now, so max_bytes policies, and selectors by type or size, can't judge them; they stay until they were deleted or moved", u.manifests)
	}
	if u := f.unknown; u.images > 0 {
		f.note("of %d signatures and the like the image is gone by now; they count as belonging to it as long as it had a tag", u.images)
	}
	for _, told := range f.out.Policies {
		if told.Policy == nil {
			continue
		}
		guard := &told.Policy.Safeguards
		switch {
		case guard.Mode == policy.Off:
			f.note("policy %s is off, so it deletes nothing", told.Policy)
		case guard.Mode == policy.Observe, len(guard.Windows) > 0, guard.Grace.Duration() > 0, guard.MaxDeleted+guard.MaxDeletedPercent > 0:
			f.note("the mode observe, windows, grace periods and caps aren't taken into account: policy %s counts as one that deletes at once", told.Policy)
		}
	}
}
