package ui

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/server/ui/chart"
	"github.com/purser-registry/purser/internal/server/ui/format"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/gc"
)

func (u *UI) addOverview() { u.add("/ui/", showOverview, nil) }

// figure is a number with its name.
type figure struct{ Label, Value, More, Link string }

// overview is what the first page shows. Members that the client may not see are empty.
type overview struct {
	Address      registryAddress
	Empty        bool // nothing was ever pushed
	Operator     bool
	Attention    []concern
	Figures      []figure
	Plots        []*chart.Plot
	NoPlots      string // why there is no chart of pushes
	Repositories []newestRepository
	Namespaces   []api.QuayOrganization
	// MoreNamespaces says that there are more than these.
	MoreNamespaces bool
	Maintains      bool // one of these, so that there is an audit log to read
	LoggedIn       bool
}

// inOwn says what the client may do in a namespace in which it has a role.
func inOwn(n api.QuayOrganization) string {
	switch {
	case n.IsOrgAdmin:
		return "administers it"
	case n.MayMaintain:
		return "maintains it"
	case n.CanCreateRepo:
		return "may push"
	}
	return "may read"
}

// newestRepository is a repository with its namespace, and the page that leads to.
type newestRepository struct {
	api.ListedRepository
	Namespace, Home string
}

func (q *request) newest(list []api.ListedRepository) []newestRepository {
	rows, homes := make([]newestRepository, len(list)), make(map[string]string)
	for i, r := range list {
		name, _, _ := strings.Cut(r.Repository, "/")
		if homes[name] == "" {
			homes[name] = q.namespaceLink(name)
		}
		rows[i] = newestRepository{r, name, homes[name]}
	}
	return rows
}

// showOverview shows what is stored, what happened and what needs attention. Clients that may not
// operate the registry see what is theirs.
func showOverview(q *request) error {
	d := overview{Address: q.registryAddress(), LoggedIn: q.account() != ""}
	list, err := run(q, api.ListRepositories, api.RepositoryQuery{Sort: "-created", Limit: 8})
	if err != nil {
		return err
	}
	d.Repositories, d.Empty = q.newest(list.Repositories), len(list.Repositories) == 0
	garbage, err := run(q, api.GetGCStatus, struct{}{})
	switch {
	case err == nil:
		d.Operator = true
		d.Attention = q.concerns(&garbage)
		d.Figures = figuresOf(&garbage)
		if err := q.plotAll(&d); err != nil {
			return err
		}
	case hidden(err):
		if err := q.showOwn(&d); err != nil {
			return err
		}
	default:
		return err
	}
	p := page{Title: "Overview", Section: "overview", Data: d}
	if d.Operator {
		p.Same = []same{command("purser gc status"), call("GET", "/gc/status"), call("GET", "/gc/activity"), call("GET", "/superuser/aggregatelogs"), call("GET", "/pull_statistics/history")}
	} else {
		p.Same = []same{command("purser repo list"), call("GET", "/user"), call("GET", "/repository"), call("GET", "/user/pull_statistics/history")}
	}
	return q.show("overview", p)
}

func figuresOf(s *gc.GCStatus) []figure {
	about := func(c catalog.Count, text string) string {
		if c.Exact {
			return text
		}
		return "about " + text
	}
	shared := "each kept once"
	if s.Stored.Shared.Bytes > 0 {
		shared = about(s.Stored.Shared.Blobs, format.Bytes(s.Stored.Shared.Bytes)) + " of it in several repositories"
	}
	waiting := s.Manifests.Waiting.Rows + s.Manifests.Due.Rows + s.Blobs.Waiting.Rows + s.Blobs.Due.Rows
	list := []figure{
		{"Stored", about(s.Stored.Blobs, format.Bytes(s.Stored.Bytes)), about(s.Stored.Blobs, format.Plural(s.Stored.Blobs.Rows, "blob", "blobs")) + ", " + shared, ""},
		{"Reclaimable", about(s.Reclaimable.Blobs, format.Bytes(s.Reclaimable.Bytes)), "in unused blobs; " +
			format.Plural(waiting, "review waits", "reviews wait") + ", " + format.Number(s.Manifests.Due.Rows+s.Blobs.Due.Rows) + " due now", "/ui/gc"},
		{"Pending deletion", about(s.Doomed.Objects, format.Bytes(s.Doomed.Bytes)), format.Plural(s.Doomed.Objects.Rows, "object", "objects"), "/ui/gc#deletions"},
		{"Reclaimed in a day", format.Bytes(s.LastDay.Bytes), format.Plural(s.LastDay.Objects, "object", "objects") + " of the store", "/ui/gc#done"},
	}
	if s.Uploads.Uploads.Rows > 0 {
		list = append(list, figure{"Uploads in progress", format.Number(s.Uploads.Uploads.Rows), format.Bytes(s.Uploads.Bytes), "/ui/gc#deletions"})
	}
	return list
}

// plotAll draws the charts of the whole registry.
func (q *request) plotAll(d *overview) error {
	now := time.Now()
	if err := q.plotPushes(d, now, "Pushes", []api.LogAt{{}}); err != nil {
		return err
	}
	if err := d.addPlot(pullPlot(q, api.GetHistory, lastDays)); err != nil {
		return err
	}
	return d.addPlot(freedPlot(q))
}

// addPlot adds a chart unless it is nil.
func (d *overview) addPlot(p *chart.Plot, err error) error {
	if p != nil {
		d.Plots = append(d.Plots, p)
	}
	return err
}

// plotPushes draws pushes, which audit logs count, if the client may see them.
func (q *request) plotPushes(d *overview, now time.Time, title string, logs []api.LogAt) error {
	pushes, seen := make(map[time.Time]int64), false
	for _, log := range logs {
		err := q.addPushes(pushes, now, log)
		if status := statusOf(err); status == 400 || status == 503 { // too many entries to count, or no log
			d.NoPlots, seen = format.Sentence(err.Error()), false
			break
		}
		if err != nil && !hidden(err) {
			return err
		}
		seen = seen || err == nil
	}
	if seen {
		d.Plots = append(d.Plots, chart.PlotOfDays("pushes", title, now, pushes, func(n int64) string { return format.Plural(n, "push", "pushes") }))
	}
	return nil
}

// addPushes adds the pushes of an audit log, by day.
func (q *request) addPushes(pushes map[time.Time]int64, now time.Time, log api.LogAt) error {
	first := now.UTC().AddDate(0, 0, 1-chart.PlotDays).Format(time.DateOnly)
	counts, err := run(q, api.AggregateLogs, api.LogExport{LogAt: log, LogFilter: api.LogFilter{Kinds: []string{string(audit.PushRepo)}, From: first}})
	if err != nil {
		return err
	}
	for _, c := range counts.Aggregated {
		day, err := time.Parse(api.QuayTime, c.Datetime)
		if err != nil {
			return err
		}
		pushes[day.UTC()] += c.Count
	}
	return nil
}

// maxOwn is how many namespaces of a client the overview asks about, one by one.
const maxOwn = 5

// showOwn fills the overview of a client that doesn't operate the registry.
func (q *request) showOwn(d *overview) error {
	user, err := run(q, api.GetOwnUser, api.Paging{Limit: 50})
	if err != nil && !hidden(err) {
		return err
	}
	d.Namespaces, d.MoreNamespaces = user.Organizations, user.NextPage != ""
	d.Maintains = slices.ContainsFunc(user.Organizations, func(n api.QuayOrganization) bool { return n.MayMaintain })
	if !d.LoggedIn {
		return nil
	}
	for _, n := range user.Organizations[:min(len(user.Organizations), maxOwn)] {
		list, err := q.namespaceConcerns(n.Name)
		if err != nil {
			return err
		}
		d.Attention = append(d.Attention, list...)
	}
	// The account's own namespace, of which /user/aggregatelogs is, may not exist, and is rarely all
	// that is the client's. Only who maintains a namespace may see its log, so the title names these.
	var names []string
	var logs []api.LogAt
	for _, n := range user.Organizations {
		if n.MayMaintain && len(logs) < maxOwn {
			names, logs = append(names, format.Clip(40, n.Name)), append(logs, api.LogAt{Namespace: n.Name})
		}
	}
	if err := q.plotPushes(d, time.Now(), "Pushes to "+strings.Join(names, ", "), logs); err != nil {
		return err
	}
	return d.addPlot(pullPlot(q, api.GetUserHistory, lastDays))
}

// overdue returns the greater delay of the two queues, in seconds.
func overdue(s *gc.GCStatus) int64 {
	return max(s.Manifests.OldestOverdueSeconds, s.Blobs.OldestOverdueSeconds)
}

// lastDays are the days of the charts in the inputs of histories.
var lastDays = api.HistoryDays{Days: chart.PlotDays}

// pullPlot draws the pulls on each day, from a history. It returns nil if the registry doesn't count
// pulls or can't read the counts now, or if the client may not see them.
func pullPlot[I any](q *request, of api.Operation[I, api.PullHistory], in I) (*chart.Plot, error) {
	history, err := run(q, of, in)
	switch {
	case hidden(err) || statusOf(err) == http.StatusServiceUnavailable:
		return nil, nil
	case err != nil:
		return nil, err
	}
	pulls := make(map[time.Time]int64, len(history.Days))
	for _, d := range history.Days {
		day, err := time.Parse(time.DateOnly, d.Day)
		if err != nil {
			return nil, err
		}
		pulls[day] = d.Pulls
	}
	return chart.PlotOfDays("pulls", "Pulls", time.Now(), pulls, func(n int64) string { return format.Plural(n, "pull", "pulls") }), nil
}
