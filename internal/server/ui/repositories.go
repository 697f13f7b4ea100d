package ui

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/server/ui/chart"
	"github.com/purser-registry/purser/internal/server/ui/format"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/catalog/browse"
)

// repositoryRow is a repository in a list.
type repositoryRow struct {
	api.ListedRepository
	Pulls  *recentPulls // nil: the registry hasn't said how often it was pulled
	Ranked int64        // pulls in the days of a list of those that were pulled most
}

// rowsOf returns the rows of a table of repositories.
func rowsOf(list []api.ListedRepository) []repositoryRow {
	rows := make([]repositoryRow, len(list))
	for i, r := range list {
		if rows[i].ListedRepository = r; r.RecentPulls != nil {
			rows[i].Pulls = &recentPulls{*r.RecentPulls}
		}
	}
	return rows
}

// showRepositories lists the repositories that the client may read.
func showRepositories(q *request) error {
	switch q.query("show") {
	case "top":
		return showTopRepositories(q)
	case "unpulled":
		return showUnpulledRepositories(q)
	}
	return q.showRepositories(http.StatusOK, typed{}, nil)
}

// showRepositories shows the list, with the form that creates a repository as it was refused, or with a
// notice.
func (q *request) showRepositories(status int, refused typed, n *notice) error {
	sort := oneOf(q.query("sort"), "name", "-name", "created", "-created")
	list, err := run(q, api.ListRepositories, api.RepositoryQuery{
		NameFilter: q.nameFilter(), Namespace: q.query("namespace"), Sort: sort, Statistics: true,
	})
	if err != nil {
		return err
	}
	keep := q.keep("q", "namespace", "sort")
	t := repositoryTable{Rows: rowsOf(list.Repositories)}
	t.head(q.columns(sort, keep, [][2]string{{"name", "Repository"}, {"-created", "Created"}}))
	create, err := q.repositoryForm(q.query("namespace"), refused)
	if err != nil {
		return err
	}
	p := q.repositoriesPage(t.CountsPulls())
	if p.Notice = n; n == nil {
		p.Notice = refused.Notice()
	}
	p.Data = repositoriesData{
		Create: create,
		Query:  q.query("q"), Namespace: q.query("namespace"), Sort: sort, Address: q.registryAddress(), Table: t, Pages: q.pagesOf(keep, list.NextPage),
	}
	p.Same = []same{command("purser repo list"), call("GET", "/repository?statistics=true")}
	if create != nil {
		p.Same = append(p.Same, command("purser repo create NAME"), call("POST", "/repository"))
	}
	return q.showStatus(status, "repositories", p)
}

// showNamespaces lists the namespaces that the client may see, with the form that creates one as it was
// refused, or with a notice.
func (q *request) showNamespaces(status int, refused typed, n *notice) error {
	list, err := run(q, api.ListNamespaces, api.NamespaceQuery{NameFilter: q.nameFilter(), Statistics: true})
	if err != nil {
		return err
	}
	type data struct {
		Query      string
		Address    registryAddress
		Namespaces []browse.NamespaceInfo
		Pages      pages
		Create     *newNamespace
		Links      map[string]string // of the namespaces' pages
	}
	links := make(map[string]string, len(list.Namespaces))
	for _, n := range list.Namespaces {
		links[n.Name] = q.namespaceLink(n.Name)
	}
	if n == nil {
		n = refused.Notice()
	}
	create, same := q.namespaceForm(refused), []same{command("purser namespace list"), call("GET", "/organization?statistics=true")}
	if create != nil {
		same = append(same, command("purser namespace create NAME"), call("POST", "/organization"))
	}
	return q.showStatus(status, "namespaces", page{
		Notice: n,
		Title:  "Namespaces", Section: "namespaces", Lead: "A namespace is the first part of its repositories' names. Policies, quotas, teams and robots belong to it.",
		Data: data{q.query("q"), q.registryAddress(), list.Namespaces, q.pagesOf(q.keep("q"), list.NextPage), create, links},
		Same: same,
	})
}

// repositoryTable is a table of repositories with their sizes and pulls.
type repositoryTable struct {
	Columns []column
	Rows    []repositoryRow
	Ranked  string // the head of the column with the numbers by which rows are ranked, "" for none
}

// CountsPulls says whether the registry has said how often repositories were pulled. If it doesn't
// count pulls, or can't read the counts, the table has no columns for them.
func (t repositoryTable) CountsPulls() bool {
	return slices.ContainsFunc(t.Rows, func(r repositoryRow) bool { return r.Pulls != nil })
}

// head sets the heads of the columns. The first and the last of them are given.
func (t *repositoryTable) head(ends []column) {
	t.Columns = []column{ends[0]}
	if t.Ranked != "" {
		t.Columns = append(t.Columns, column{Text: t.Ranked, Number: true})
	}
	t.Columns = append(t.Columns, column{Text: "Size", Number: true}, column{Text: "Tags", Number: true})
	if t.CountsPulls() {
		t.Columns = append(t.Columns, column{Text: "Pulls in 30 days", Number: true}, column{Text: "Last pull"})
	}
	t.Columns = append(t.Columns, column{Text: "Last push"}, ends[1])
}

// plainEnds are the first and the last column of a table that isn't sorted by them.
var plainEnds = []column{{Text: "Repository"}, {Text: "Created"}}

// recentPulls is how often a repository was pulled on each of the last days.
type recentPulls struct{ api.RecentPulls }

// Measures of a sparkline, in the units of its viewBox.
const sparkWidth, sparkHeight = 96, 20

// Path returns the sparkline: a line upwards for each day with pulls.
func (p recentPulls) Path() string {
	most := max(slices.Max(append([]int64{0}, p.Days...)), 1)
	var b strings.Builder
	first := chart.PlotDays - len(p.Days)
	for i, n := range p.Days {
		if n <= 0 || first+i < 0 {
			continue
		}
		height := max(float64(sparkHeight)*float64(n)/float64(most), 2) // a small number is still seen
		fmt.Fprintf(&b, "M%g %dV%g", chart.Round(float64(first+i)*sparkWidth/chart.PlotDays+sparkWidth/chart.PlotDays/2.), sparkHeight, chart.Round(sparkHeight-height))
	}
	return b.String()
}

// Text says in a sentence what the sparkline shows.
func (p recentPulls) Text() string {
	if p.Count == 0 {
		return "No pulls in the last 30 days."
	}
	most := slices.Max(p.Days)
	ago := len(p.Days) - 1 - slices.Index(p.Days, most)
	return fmt.Sprintf("Pulls on each of the last 30 days: %s in all, at most %s on a day, %s.", format.Number(p.Count), format.Number(most),
		time.Now().UTC().AddDate(0, 0, -ago).Format("2 January"))
}

// repositoriesData is what the page of repositories shows.
type repositoriesData struct {
	Query, Namespace, Sort string
	Address                registryAddress
	Show, Days             string
	Refused                string // why there is no list
	Since                  string // the first day that a list by pulls examined, "" if nothing was counted
	Table                  repositoryTable
	Pages                  pages
	Create                 *newRepository // nil: the client may not
}

// repositoriesPage returns the frame of the page of repositories. The lists by pulls have tabs if
// the registry counts pulls.
func (q *request) repositoriesPage(pulls bool) page {
	p := page{Title: "Repositories", Section: "repositories"}
	if !pulls {
		return p
	}
	show := q.query("show")
	for _, t := range [][2]string{{"", "All"}, {"top", "Most pulled"}, {"unpulled", "Not pulled"}} {
		p.Tabs = append(p.Tabs, tab{Text: t[1], Link: "/ui/repositories" + arguments("show", t[0], "namespace", q.query("namespace")), Current: t[0] == show})
	}
	return p
}

// showTopRepositories lists the repositories that were pulled most.
func showTopRepositories(q *request) error {
	d := repositoriesData{Show: "top", Namespace: q.query("namespace"), Address: q.registryAddress(), Days: oneOf(q.query("days"), "7", "1", "30", "90")}
	list, err := run(q, api.ListTopRepositories, api.TopRepositoriesQuery{
		HistoryDays: d.days(), TopLimit: api.TopLimit{Limit: 50}, Namespace: d.Namespace,
	})
	if err := d.refusedBy(err); err != nil {
		return err
	}
	names, pulls := make([]string, len(list.Repositories)), make(map[string]int64)
	for i, r := range list.Repositories {
		names[i], pulls[r.Repository] = r.Repository, r.Pulls
	}
	if err := d.describe(q, names); err != nil {
		return err
	}
	for i := range d.Table.Rows {
		d.Table.Rows[i].Ranked = pulls[d.Table.Rows[i].Repository]
	}
	if d.Table.Ranked = "Pulls in " + d.Days + " days"; d.Days == "1" {
		d.Table.Ranked = "Pulls today"
	}
	d.since(list.Since)
	p := q.repositoriesPage(true)
	p.Title, p.Heading = "Most pulled repositories", "Repositories"
	p.Same = []same{command("purser pulls top --days %s", d.Days), call("GET", "/pull_statistics/top?days="+d.Days)}
	d.Table.head(plainEnds)
	p.Data = d
	return q.show("repositories", p)
}

// A page of repositories without pulls is made of up to unpulledAnswers answers of the API, each of
// which examines unpulledRows repositories, and ends with the one that makes it as long as that.
const unpulledAnswers, unpulledRows = 5, 50

// showUnpulledRepositories lists the repositories that nobody has pulled.
func showUnpulledRepositories(q *request) error {
	d := repositoriesData{Show: "unpulled", Namespace: q.query("namespace"), Address: q.registryAddress(), Days: oneOf(q.query("days"), "3660", "30", "90", "365")}
	in := api.UnpulledQuery{HistoryDays: d.days(), Namespace: d.Namespace, Limit: unpulledRows, NextPage: q.query("page")}
	var names []string
	for range unpulledAnswers {
		list, err := run(q, api.ListUnpulled, in)
		if err := d.refusedBy(err); err != nil {
			return err
		}
		d.since(list.Since)
		names, in.NextPage = append(names, list.Repositories...), list.NextPage
		if len(names) >= unpulledRows || in.NextPage == "" {
			break
		}
	}
	if err := d.describe(q, names); err != nil {
		return err
	}
	d.Pages = q.pagesOf(q.keep("show", "days", "namespace"), in.NextPage)
	d.Table.head(plainEnds)
	p := q.repositoriesPage(true)
	p.Title, p.Heading = "Repositories that nobody pulled", "Repositories"
	p.Same = []same{command("purser pulls unpulled --days %s", d.Days), call("GET", "/pull_statistics/unpulled?days="+d.Days)}
	p.Data = d
	return q.show("repositories", p)
}

// refusedBy keeps the words of a refusal for the page, and returns other errors.
func (d *repositoriesData) refusedBy(err error) error {
	if err == nil || statusOf(err) == 0 {
		return err
	}
	d.Refused = format.Sentence(err.Error())
	return nil
}

// days returns the days of the list.
func (d *repositoriesData) days() api.HistoryDays {
	n, _ := strconv.Atoi(d.Days) //nolint:errcheck // it is one of those that the page offers
	return api.HistoryDays{Days: n}
}

func (d *repositoriesData) since(day *string) {
	if day != nil {
		d.Since = *day
	}
}

// describe fills the table with the repositories of the given names, in their order.
func (d *repositoriesData) describe(q *request, names []string) error {
	if len(names) == 0 {
		return nil
	}
	list, err := run(q, api.ListRepositories, api.RepositoryQuery{Names: names, Statistics: true, Limit: len(names)})
	if err != nil {
		return err
	}
	d.Table.Rows = rowsOf(list.Repositories)
	return nil
}
