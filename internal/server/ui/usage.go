package ui

import (
	"net/http"
	"time"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/server/ui/chart"
	"github.com/purser-registry/purser/internal/server/ui/format"
	"github.com/purser-registry/purser/internal/usage"
)

func (u *UI) addUsage() { u.add("/ui/usage", showUsage, nil) }

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
	}
	return q.show("usage", page{
		Title: "Storage", Section: "usage", Data: d,
		Lead: "What namespaces and repositories store. Each blob counts once, however many of them have it.",
		Same: []same{call("GET", "/usage"), command("purser namespace list"), command("purser repo list")},
	})
}

// draw makes the pictures and the tables.
func (d *usageData) draw() {
	u := &d.Usage
	d.Used = u.Bytes - u.Trash - u.Unreferenced
	for _, disk := range u.Disks {
		d.Disks = append(d.Disks, diskState{disk})
	}
	areas := func(list []usage.Sums, pattern, below string) (areas []chart.Area) {
		for _, s := range list {
			areas = append(areas, chart.Area{Name: format.Clip(200, s.Name), Link: link(pattern, s.Name) + below, Size: s.Bytes})
		}
		return areas
	}
	d.ByNamespace = chart.NewTreemap("namespaces", "Bytes by namespace", areas(u.Namespaces, "/ui/namespaces/{namespace}", ""), format.Bytes)
	d.ByRepo = chart.NewTreemap("repositories", "Bytes by repository", areas(u.Repositories, "/ui/repositories/{repository}", "?sort=-size"), format.Bytes)
	growth := chart.Series{ID: "growth", Title: "Stored bytes", Unit: "Stored", Format: format.Bytes, Binary: true}
	for _, day := range u.Days {
		growth.Labels, growth.Values = append(growth.Labels, day.Day.Format(time.DateOnly)), append(growth.Values, day.Bytes)
	}
	d.Growth = chart.LineChart(growth)
	d.Namespaces, d.Repositories = u.Namespaces[:min(len(u.Namespaces), usageRows)], u.Repositories[:min(len(u.Repositories), usageRows)]
}
