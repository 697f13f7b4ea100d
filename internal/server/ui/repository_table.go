package ui

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

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
type recentPulls struct {
	Since   *string `json:"since"`
	Days    []int64 `json:"days"` // the last is today
	Count   int64   `json:"pull_count"`
	Display string  `json:"pull_count_display"`
}

// Measures of a sparkline, in the units of its viewBox.
const sparkWidth, sparkHeight = 96, 20

// Path returns the sparkline: a line upwards for each day with pulls.
func (p recentPulls) Path() string {
	most := max(slices.Max(append([]int64{0}, p.Days...)), 1)
	var b strings.Builder
	first := plotDays - len(p.Days)
	for i, n := range p.Days {
		if n <= 0 || first+i < 0 {
			continue
		}
		height := max(float64(sparkHeight)*float64(n)/float64(most), 2) // a small number is still seen
		fmt.Fprintf(&b, "M%g %dV%g", round(float64(first+i)*sparkWidth/plotDays+sparkWidth/plotDays/2.), sparkHeight, round(sparkHeight-height))
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
	return fmt.Sprintf("Pulls on each of the last 30 days: %s in all, at most %s on a day, %s.", formatNumber(p.Count), formatNumber(most),
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
	var list struct {
		Since        *string `json:"since"`
		Repositories []struct {
			Repository string `json:"repository"`
			Pulls      int64  `json:"pulls"`
		} `json:"repositories"`
	}
	query := url.Values{"days": {d.Days}, "limit": {"50"}}
	if d.Namespace != "" {
		query.Set("namespace", d.Namespace)
	}
	if err := d.refusedBy(q.get("/pull_statistics/top", query, &list)); err != nil {
		return err
	}
	names, pulls := make([]string, len(list.Repositories)), make(map[string]int64)
	for i, r := range list.Repositories {
		names[i], pulls[r.Repository] = r.Repository, r.Pulls
	}
	err := d.describe(q, names)
	if err != nil {
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
	query := url.Values{"days": {d.Days}, "limit": {strconv.Itoa(unpulledRows)}}
	for from, to := range map[string]string{"namespace": "namespace", "page": "next_page"} {
		if value := q.query(from); value != "" {
			query.Set(to, value)
		}
	}
	var names []string
	next := ""
	for range unpulledAnswers {
		var list struct {
			Since        *string  `json:"since"`
			Repositories []string `json:"repositories"`
			NextPage     string   `json:"next_page"`
		}
		if err := d.refusedBy(q.get("/pull_statistics/unpulled", query, &list)); err != nil {
			return err
		}
		d.since(list.Since)
		names, next = append(names, list.Repositories...), list.NextPage
		if len(names) >= unpulledRows || next == "" {
			break
		}
		query.Set("next_page", next)
	}
	if err := d.describe(q, names); err != nil {
		return err
	}
	d.Pages = q.pagesOf(q.keep("show", "days", "namespace"), next)
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
	d.Refused = sentence(err.Error())
	return nil
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
	var list struct {
		Repositories []repositoryRow `json:"repositories"`
	}
	query := url.Values{"names": {strings.Join(names, ",")}, "statistics": {"true"}, "limit": {strconv.Itoa(len(names))}}
	if err := q.get("/repository", query, &list); err != nil {
		return err
	}
	d.Table.Rows = list.Repositories
	return nil
}
