package ui

import (
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/api"
)

func (u *UI) addNamespace() { u.add("/ui/namespaces/{namespace}", showNamespace, nil) }

// namespaceInfo is what the registry says about a namespace.
type namespaceInfo struct {
	Name         string    `json:"name"`
	CreatedAt    time.Time `json:"created_at"`
	Repositories int64     `json:"repositories"`
	Size         struct {
		Blobs int64  `json:"blobs"`
		Bytes int64  `json:"bytes"`
		Own   *int64 `json:"own_bytes"`
		Exact bool   `json:"exact"`
	} `json:"size"`
	Teams map[string]api.TeamView `json:"teams"`
}

type namespaceData struct {
	Place        place
	Info         namespaceInfo
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
	if d.Info.Size.Own == nil {
		return nil
	}
	n := d.Info.Size.Bytes - *d.Info.Size.Own
	return &n
}

// showNamespace describes a namespace.
func showNamespace(q *request) error {
	p := q.place()
	d := namespaceData{Place: p}
	if err := q.get(p.api(""), fewLinks, &d.Info); err != nil {
		return err
	}
	for _, t := range d.Info.Teams {
		d.Teams = append(d.Teams, t)
	}
	slices.SortFunc(d.Teams, func(a, b api.TeamView) int { return strings.Compare(a.Name, b.Name) })
	var err error
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
	if d.Plot, err = q.pullPlot(p.api("")); err != nil {
		return err
	}
	out := q.placePage(p, "")
	out.Data = d
	out.Same = []same{command("purser namespace show %s", p.namespace), call("GET", p.api(""))}
	return q.show("namespace", out)
}

// namespaceRows is how many repositories the page of a namespace has.
const namespaceRows = "15"

// listRepositories sets the first repositories of the namespace.
func (d *namespaceData) listRepositories(q *request) error {
	var list struct {
		Repositories []repositoryRow `json:"repositories"`
		NextPage     string          `json:"next_page"`
	}
	query := url.Values{"namespace": {d.Info.Name}, "limit": {namespaceRows}, "statistics": {"true"}}
	if err := q.get("/repository", query, &list); err != nil && !hidden(err) {
		return err
	}
	d.Table.Rows, d.More = list.Repositories, list.NextPage != ""
	d.Table.head(plainEnds)
	return nil
}
