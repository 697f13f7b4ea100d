package ui

import (
	"net/http"
	"time"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/server/ui/chart"
	"github.com/purser-registry/purser/internal/server/ui/format"
	"github.com/purser-registry/purser/internal/usage"
)

// namespaceUsagePath is the page of what a namespace stores.
const namespaceUsagePath = "/ui/namespaces/{namespace}/-/usage"

func (u *UI) addUsage() {
	u.add("/ui/usage", showUsage, nil)
	u.add(namespaceUsagePath, showNamespaceUsage, nil)
}

// Rows of the tables on the page of what is stored, areas of its pictures, and the days of its chart.
const (
	usageRows  = 25
	usageAreas = 1000
	usageDays  = 90
)

// usageData is what the page of what is stored shows.
type usageData struct {
	Wait                     string // why there is nothing to show yet
	Usage                    api.RegistryUsage
	Used                     int64 // bytes that repositories have
	Disks                    []diskState
	ByNamespace, ByRepo      chart.Treemap
	Growth                   chart.Chart
	Freed                    *chart.Plot // by garbage collection
	Namespaces, Repositories []usage.Sums
}

// showUsage shows what the registry stores, where, and how that grew.
func showUsage(q *request) error {
	found, err := run(q, api.GetUsage, api.UsageQuery{Limit: usageAreas, Days: usageDays})
	d := usageData{Usage: found}
	switch {
	case statusOf(err) == http.StatusServiceUnavailable:
		d.Wait = format.Sentence(err.Error())
	case err != nil:
		return err
	default:
		d.draw()
		if d.Freed, err = freedPlot(q); err != nil {
			return err
		}
	}
	return q.show("usage", page{
		Title: "Storage", Section: "usage", Data: d,
		Lead: "What namespaces and repositories store. Each blob counts once, however many of them have it.",
		Same: []same{call("GET", "/usage"), command("purser usage")},
	})
}

// draw makes the pictures and the tables.
func (d *usageData) draw() {
	u := &d.Usage
	d.Used = u.InRepositories()
	for _, disk := range u.Disks {
		d.Disks = append(d.Disks, diskState{disk})
	}
	d.ByNamespace = treemap("namespaces", "Bytes by namespace", u.Namespaces, func(name string) string { return link(namespaceUsagePath, name) })
	d.ByRepo = treemap("repositories", "Bytes by repository", u.Repositories, largestTags)
	d.Growth = growth(u.Days, func(day usage.RegistryDay) (time.Time, int64) { return day.Day, day.Bytes })
	d.Namespaces, d.Repositories = u.Namespaces[:min(len(u.Namespaces), usageRows)], u.Repositories[:min(len(u.Repositories), usageRows)]
}

// freedPlot draws the bytes that garbage collection has deleted, by day.
func freedPlot(q *request) (*chart.Plot, error) {
	activity, err := run(q, api.GetGCActivity, api.ActivityQuery{Days: chart.PlotDays})
	if err != nil {
		return nil, err
	}
	freed := make(map[time.Time]int64, len(activity.Days))
	for _, day := range activity.Days {
		freed[day.Day.UTC()] = day.Bytes
	}
	return chart.PlotOfDays("freed", "Freed by garbage collection", time.Now(), freed, func(n int64) string { return format.Bytes(n) }), nil
}

// prunedPlot draws the tags that auto-pruning has deleted, by day.
func prunedPlot(days []autoprune.PrunedDay) *chart.Plot {
	pruned := make(map[time.Time]int64, len(days))
	for _, day := range days {
		pruned[day.Day.UTC()] = day.Deleted - day.Restored
	}
	return chart.PlotOfDays("pruned", "Tags deleted by policies", time.Now(), pruned, func(n int64) string { return format.Plural(n, "tag", "tags") })
}

// largestTags is the link to the tags of a repository, the largest first.
func largestTags(repository string) string {
	return link("/ui/repositories/{repository}", repository) + "?sort=-size"
}

// treemap is a picture of the sums in a list, each of which leads to the page of `to`.
func treemap(id, title string, list []usage.Sums, to func(name string) string) chart.Treemap {
	areas := make([]chart.Area, len(list))
	for i, s := range list {
		areas[i] = chart.Area{Name: format.Clip(200, s.Name), Link: to(s.Name), Size: s.Bytes}
	}
	return chart.NewTreemap(id, title, areas, format.Bytes)
}

// growth is a chart of stored bytes by day.
func growth[D any](days []D, of func(D) (time.Time, int64)) chart.Chart {
	s := chart.Series{ID: "growth", Title: "Stored bytes", Unit: "Stored", Format: format.Bytes, Binary: true}
	for _, d := range days {
		day, bytes := of(d)
		s.Labels, s.Values = append(s.Labels, day.Format(time.DateOnly)), append(s.Values, bytes)
	}
	return chart.LineChart(s)
}

// namespaceUsageData is what the page of what a namespace stores shows.
type namespaceUsageData struct {
	Wait   string // why there is nothing to show yet
	Usage  api.NamespaceUsage
	First  bool          // it is the page of the largest repositories
	ByRepo chart.Treemap // with the next two, on the first page
	Growth chart.Chart
	Pruned *chart.Plot
	Pages  pages
}

// Shared returns the bytes that other namespaces have, too, nil if the client may not know.
func (d namespaceUsageData) Shared() *int64 {
	if d.Usage.Own == nil {
		return nil
	}
	n := d.Usage.Bytes - *d.Usage.Own
	return &n
}

// showNamespaceUsage shows what a namespace stores, by repository, and how that grew.
func showNamespaceUsage(q *request) error {
	p := q.place()
	in := api.NamespaceUsageQuery{InNamespace: api.InNamespace{Namespace: p.namespace}, Paging: q.paging("page", usageRows), Days: usageDays}
	found, err := run(q, api.GetNamespaceUsage, in)
	d := namespaceUsageData{Usage: found, First: in.NextPage == ""}
	switch {
	case statusOf(err) == http.StatusServiceUnavailable:
		d.Wait = format.Sentence(err.Error())
	case err != nil:
		return err
	default:
		d.Pages = q.pagesOf(q.keep(), found.NextPage)
	}
	if d.First && d.Wait == "" {
		in.Limit = usageAreas
		all, err := run(q, api.GetNamespaceUsage, in)
		if err != nil {
			return err
		}
		d.ByRepo = treemap("repositories", "Bytes by repository", all.Repositories, largestTags)
		if len(found.Pruned) > 0 {
			d.Pruned = prunedPlot(found.Pruned)
		}
		d.Growth = growth(found.Days, func(day usage.Day) (time.Time, int64) { return day.Day, day.Bytes })
	}
	out := q.placePage(p, "/-/usage")
	out.Title, out.Heading, out.Data = "Storage of "+p.namespace, p.namespace, d
	out.Lead = "What the namespace stores. Each blob counts once, however many of its repositories have it."
	out.Same = []same{call("GET", api.GetNamespaceUsage.URL(api.NamespaceUsageQuery{InNamespace: in.InNamespace})), command("purser usage %s", p.namespace)}
	return q.show("namespace-usage", out)
}
