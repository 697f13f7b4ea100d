package ui

import (
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/api"
)

func (u *UI) addNamespace() { u.add("/ui/namespaces/{namespace}", showNamespace, nil) }

type namespaceData struct {
	Place        place
	Info         api.NamespaceDetails
	Teams        []api.TeamView
	Quota        *api.QuotaView
	Policies     []policyRow
	SeesPolicies bool
	Table        repositoryTable // the first repositories
	More         bool            // there are more
	Plot         *plot           // of pulls, nil if there is nothing to show
}

// Shared returns the bytes that other namespaces have, too, nil if the client may not know.
func (d namespaceData) Shared() *int64 {
	if d.Info.Size.OwnBytes == nil {
		return nil
	}
	n := d.Info.Size.Bytes - *d.Info.Size.OwnBytes
	return &n
}

// showNamespace describes a namespace.
func showNamespace(q *request) error {
	p := q.place()
	d := namespaceData{Place: p}
	of := api.InNamespace{Namespace: p.namespace}
	var err error
	if d.Info, err = run(q, api.GetNamespace, api.NamespaceSizes{InNamespace: of, SizeLinks: fewLinks}); err != nil {
		return err
	}
	for _, t := range d.Info.Teams {
		d.Teams = append(d.Teams, t)
	}
	slices.SortFunc(d.Teams, func(a, b api.TeamView) int { return strings.Compare(a.Name, b.Name) })
	if d.Quota, _, err = q.quota(p.namespace); err != nil {
		return err
	}
	d.Policies, err = q.policyRows(p.At(), "", &p)
	if err != nil && !hidden(err) {
		return err
	}
	d.SeesPolicies = err == nil
	if err := d.listRepositories(q); err != nil {
		return err
	}
	if d.Plot, err = pullPlot(q, api.GetNamespaceHistory, api.NamespaceHistory{InNamespace: of, HistoryDays: lastDays}); err != nil {
		return err
	}
	out := q.placePage(p, "")
	out.Data = d
	if q.query("done") == "created" {
		out.Notice = &notice{Text: "The namespace was created."}
		if len(d.Policies) > 0 {
			out.Notice.Text += " Its policy observes: look at what it would delete, and switch it on then."
		}
	}
	out.Same = []same{command("purser namespace show %s", p.namespace), call("GET", p.api(""))}
	return q.show("namespace", out)
}

// namespaceRows is how many repositories the page of a namespace has.
const namespaceRows = 15

// listRepositories sets the first repositories of the namespace.
func (d *namespaceData) listRepositories(q *request) error {
	list, err := run(q, api.ListRepositories, api.RepositoryQuery{Namespace: d.Info.Name, Limit: namespaceRows, Statistics: true})
	if err != nil && !hidden(err) {
		return err
	}
	d.Table.Rows, d.More = rowsOf(list.Repositories), list.NextPage != ""
	d.Table.head(plainEnds)
	return nil
}
