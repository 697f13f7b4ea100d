package ui

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/purser-registry/purser/internal/server/ui/format"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/gc"
)

// concern is something that an operator should look at.
type concern struct {
	State string // bad or warn
	Text  string
	Link  string // of the page that helps
	Do    string // the text of the link
}

// Word is the state in a word, since colour alone tells too little.
func (c concern) Word() string {
	if c.State == "bad" {
		return "broken"
	}
	return "check"
}

const (
	// lateReviews and lateKeys are the delays from which reviews and loose foreign keys are late,
	// lateStatistics is that of pull statistics: beyond it, policies by last use delete nothing.
	lateReviews    = time.Hour
	lateKeys       = time.Hour
	lateStatistics = 15 * time.Minute
	// fullQuota is the part of a quota, in percent, from which it is nearly full.
	fullQuota = 90
)

// concerns returns what needs attention in the whole registry, the worst first.
func (q *request) concerns(s *gc.GCStatus) []concern {
	list := garbageConcerns(s)
	for _, find := range []func() ([]concern, error){q.systemConcerns, q.keyConcerns, q.statisticsConcerns, q.pruneConcerns, q.askConcerns, q.holdConcerns, q.quotaConcerns} {
		found, err := find()
		// 503 and 409: the process has this switched off.
		if status := statusOf(err); err != nil && !hidden(err) && status != http.StatusServiceUnavailable && status != http.StatusConflict {
			found = append(found, concern{"bad", format.Sentence(err.Error()), "/ui/system", "System"})
		}
		list = append(list, found...)
	}
	var bad, others []concern
	for _, c := range list {
		if c.State == "bad" {
			bad = append(bad, c)
		} else {
			others = append(others, c)
		}
	}
	return append(bad, others...)
}

func garbageConcerns(s *gc.GCStatus) (list []concern) {
	if n := s.Manifests.Failed.Rows + s.Blobs.Failed.Rows; n > 0 {
		list = append(list, concern{"bad", format.Plural(n, "review has", "reviews have") + " failed too often and aren't tried again. What they would delete stays.", "/ui/gc#failed", "See why, and retry"})
	}
	if n := s.Lost.Rows; n > 0 {
		list = append(list, concern{"bad", format.Plural(n, "blob is", "blobs are") + " missing in the store. Pulls of them fail until somebody pushes them again.", "/ui/gc#check", "Check the store"})
	}
	if n := s.Doomed.Failing.Rows; n > 0 {
		list = append(list, concern{"bad", "The store fails to delete " + format.Plural(n, "object", "objects") + ". " + format.Sentence(format.Clip(200, s.Doomed.LastError)), "/ui/gc#deletions", "Pending deletions"})
	}
	if late := overdue(s); late > int64(lateReviews/time.Second) {
		list = append(list, concern{"warn", "Reviews are overdue by " + format.Duration(late) + ": the workers don't keep up, or don't run.", "/ui/gc", "Review queues"})
	}
	return list
}

func (q *request) systemConcerns() (list []concern, err error) {
	s, err := q.system()
	if err != nil {
		return nil, err
	}
	for _, part := range []struct {
		name string
		of   api.PartState
	}{{"The database", s.Database}, {"The blob store", s.Storage}} {
		if !part.of.OK {
			list = append(list, concern{"bad", part.name + " doesn't answer.", "/ui/system", "System"})
		}
	}
	for _, d := range s.Disks {
		if c, is := (diskState{d}).concern(); is {
			list = append(list, c)
		}
	}
	clocks, err := q.clock()
	if err != nil {
		return list, err
	}
	if !clocks.Deletes {
		list = append(list, concern{"bad", "Nothing is deleted for its age: " + format.Clip(300, clocks.Problem) + ".", "/ui/system#clock", "Clocks"})
	}
	if n := s.Schema.Pending; n > 0 {
		list = append(list, concern{"warn", format.Plural(n, "migration of the database is", "migrations of the database are") + " pending. Run “purser migrate up”.", "/ui/system", "System"})
	}
	return list, nil
}

// keys returns the deleted rows whose children are still to be deleted.
func (q *request) keys() ([]api.PendingRecords, error) {
	out, err := run(q, api.GetLooseStatus, struct{}{})
	return out.Pending, err
}

func (q *request) keyConcerns() (list []concern, err error) {
	pending, err := q.keys()
	for _, p := range pending {
		switch {
		case p.Untracked:
			list = append(list, concern{"bad", "Nobody cleans up after " + format.Plural(p.Count, "deleted row", "deleted rows") + " of " + p.Table + ": its trigger is missing.", "/ui/gc#keys", "Loose foreign keys"})
		case p.OldestSeconds > lateKeys.Seconds():
			list = append(list, concern{"warn", "Rows of deleted parents in " + p.Table + " have waited for " + format.Duration(p.OldestSeconds) + " to be cleaned up.", "/ui/gc#keys", "Loose foreign keys"})
		}
	}
	return list, err
}

// pullState says how far pulls are counted.
type pullState struct{ api.PullState }

// Late says that pull statistics are late.
func (s pullState) Late() bool { return s.Behind > lateStatistics.Seconds() }

func (q *request) statisticsConcerns() (list []concern, err error) {
	state, err := run(q, api.GetPullState, struct{}{})
	if err != nil {
		return nil, err
	}
	s := pullState{state}
	if text := cmp.Or(s.Problem, s.Unseen); text != "" {
		list = append(list, concern{"bad", format.Sentence(text), "/ui/gc#statistics", "Pull statistics"})
	}
	if s.Late() {
		list = append(list, concern{"warn", "Pull statistics are " + format.Duration(s.Behind) + " behind, so policies by last pull delete nothing now.", "/ui/gc#statistics", "Pull statistics"})
	}
	if s.Redis != nil && !s.Redis.Reachable {
		list = append(list, concern{"bad", "Redis, which counts pulls, can't be reached.", "/ui/gc#statistics", "Pull statistics"})
	}
	return list, nil
}

// pruneConcerns returns the namespaces whose last run has failed, of the latest runs.
func (q *request) pruneConcerns() (list []concern, err error) {
	out, err := run(q, api.ListPruneRuns, api.PruneRunQuery{Limit: 50})
	if err != nil {
		return nil, err
	}
	seen := make(map[string]bool)
	for _, r := range out.Runs {
		if seen[r.Namespace] || r.State == "running" {
			continue
		}
		seen[r.Namespace] = true
		if r.State == "failure" || r.Failed > 0 {
			text := "Pruning of namespace " + r.Namespace + " has failed"
			if r.Failed > 0 {
				text += " in " + format.Plural(r.Failed, "repository", "repositories")
			}
			if r.Error != "" {
				text += ": " + format.Clip(200, r.Error)
			}
			list = append(list, concern{"bad", format.Sentence(text), "/ui/runs" + arguments("namespace", r.Namespace), "Runs"})
		}
	}
	return shorten(list, "/ui/runs"), nil
}

func (q *request) askConcerns() (list []concern, err error) {
	out, err := run(q, api.ListWaitingAsks, api.WaitingQuery{Limit: 20})
	if err != nil {
		return nil, err
	}
	for _, n := range out.Namespaces {
		list = append(list, askConcern(n.Namespace, n.Policies, n.Tags))
	}
	return shorten(list, "/ui/runs"), nil
}

func askConcern(namespace string, policies, tags int64) concern {
	return concern{
		"warn", format.Plural(policies, "policy of namespace "+namespace+" asks", "policies of namespace "+namespace+" ask") + " whether to delete " + format.Plural(tags, "tag", "tags") + ".",
		link("/ui/namespaces/{namespace}", namespace), "Decide",
	}
}

// reporterPages is how many pages of reporters the overview reads to find silent ones. A page is short if
// its reporters tell of many images without a digest.
const reporterPages = 3

func (q *request) holdConcerns() (list []concern, err error) {
	in := api.HoldReporterQuery{Limit: 1000}
	for range reporterPages {
		out, err := run(q, api.ListHoldReporters, in)
		if err != nil {
			return nil, err
		}
		for _, r := range out.Reporters {
			switch r.State {
			case "silent":
				list = append(list, concern{"warn", "Nothing was heard from " + format.Clip(80, r.Name) + " for " + format.Unit(time.Since(r.Reported)) + ": what it runs will soon no longer be kept.", "/ui/holds", "Holds"})
			case "ended":
				list = append(list, concern{"warn", format.Clip(80, r.Name) + " is silent for so long that what it ran is no longer kept.", "/ui/holds", "Holds"})
			}
		}
		if out.NextPage == "" || len(list) > shortList {
			break
		}
		in.NextPage = out.NextPage
	}
	return shorten(list, "/ui/holds"), nil
}

// quotaConcern returns the fullest limit of a quota if it is nearly full.
func quotaConcern(s api.QuotaView) (c concern, full bool) {
	var most int64
	what := ""
	for _, l := range []struct {
		limit *int64
		used  int64
		what  string
	}{{s.LimitBytes, s.UsedBytes, "bytes"}, {s.LimitRepositories, s.UsedRepositories, "repositories"}, {s.LimitTags, s.UsedTags, "tags"}} {
		if l.limit == nil || *l.limit <= 0 {
			continue
		}
		if part := int64(100 * float64(l.used) / float64(*l.limit)); part > most || what == "" {
			most, what = part, l.what
		}
	}
	if !s.Counted || most < fullQuota {
		return c, false
	}
	text := fmt.Sprintf("Namespace %s uses %d %% of its quota of %s", s.Namespace, most, what)
	refuses := slices.ContainsFunc(s.Limits, func(l api.QuotaLimit) bool { return l.Type == "Reject" })
	switch {
	case !refuses: // nothing happens but notices
		text += "; nothing is refused, since no step refuses"
	case most >= 100:
		text += ": pushes that need more are refused"
	}
	return concern{"warn", text + ".", link("/ui/namespaces/{namespace}", s.Namespace), "Namespace"}, true
}

func (q *request) quotaConcerns() (list []concern, err error) {
	out, err := run(q, api.ListQuotas, api.QuotaPage{Limit: 100})
	if err != nil {
		return nil, err
	}
	for _, s := range out.Quotas {
		if c, full := quotaConcern(s); full {
			list = append(list, c)
		}
	}
	return shorten(list, "/ui/namespaces"), nil
}

// namespaceConcerns returns what needs attention in a namespace, as far as the client may see it.
func (q *request) namespaceConcerns(namespace string) (list []concern, err error) {
	asks, err := run(q, api.ListAsks, api.AskQuery{PruneNamespace: api.PruneNamespace{Namespace: namespace}})
	if err != nil && !hidden(err) {
		return nil, err
	}
	var policies, tags int64
	for _, a := range asks.Asks {
		if a.Approved == nil {
			policies, tags = policies+1, tags+a.Would
		}
	}
	if policies > 0 {
		list = append(list, askConcern(namespace, policies, tags))
	}
	quotas, err := run(q, api.ListQuota, api.QuotaQuery{At: api.At{Namespace: namespace}})
	if err != nil && !hidden(err) {
		return nil, err
	}
	for _, s := range quotas {
		if c, full := quotaConcern(s); full {
			list = append(list, c)
		}
	}
	return list, nil
}

// shortList is how many concerns of one sort the overview lists.
const shortList = 5

// shorten replaces what is too much in a list of concerns by their number.
func shorten(list []concern, page string) []concern {
	if len(list) <= shortList {
		return list
	}
	more := len(list) - shortList + 1
	return append(list[:shortList-1:shortList-1], concern{list[shortList-1].State, format.Plural(more, "more like this.", "more like these."), page, "See all"})
}
