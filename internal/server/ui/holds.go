package ui

import (
	"net/url"

	"github.com/purser-registry/purser/internal/server/ui/format"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/hold"
)

func (u *UI) addHolds() {
	u.add("/ui/holds", showReporters, deleteReporter)
	u.add("/ui/holds/{reporter}", showReporter, nil)
}

type reportersData struct {
	scopedList
	Address   registryAddress
	Reporters []hold.Reporter
	Pages     pages
}

func showReporters(q *request) error { return q.showReporters(q.query("namespace"), nil) }

// showReporters lists the reporters of a namespace, or those of the whole registry.
func (q *request) showReporters(namespace string, n *notice) error {
	list, err := run(q, api.ListHoldReporters, api.HoldReporterQuery{Namespace: namespace, NextPage: q.query("page"), Limit: 100})
	frame, err := q.chooseNamespace(err)
	if err != nil {
		return err
	}
	frame.Namespace = namespace
	keep := url.Values{}
	args := ""
	if namespace != "" {
		keep.Set("namespace", namespace)
		args = " --namespace " + namespace
	}
	return q.show("holds", page{
		Title: "Holds", Section: "holds", Notice: n,
		Lead: "Reporters, such as clusters, tell the registry which images they run. What they hold isn't deleted.",
		Data: reportersData{frame, q.registryAddress(), list.Reporters, q.pagesOf(keep, list.NextPage)},
		Same: []same{command("purser hold list%s", args), call("GET", "/holds")},
	})
}

type reporterData struct {
	Reporter  hold.Reporter
	Namespace string
	Digests   []hold.Held
	Pages     pages
}

// showReporter lists the digests that a reporter holds.
func showReporter(q *request) error {
	name := q.values["reporter"]
	d := reporterData{Namespace: q.query("namespace")}
	item := api.HoldReporterItem{Reporter: name, Namespace: d.Namespace}
	var err error
	if d.Reporter, err = run(q, api.GetHoldReporter, item); err != nil {
		return err
	}
	list, err := run(q, api.ListHeldDigests, api.HeldDigestQuery{HoldReporterItem: item, NextPage: q.query("page"), Limit: 100})
	if err != nil {
		return err
	}
	d.Digests, d.Pages = list.Digests, q.pagesOf(q.keep("namespace"), list.NextPage)
	args := ""
	if d.Namespace != "" {
		args = " --namespace " + d.Namespace
	}
	return q.show("hold", page{
		Title: name, Section: "holds", Crumbs: []crumb{{"Holds", "/ui/holds" + arguments("namespace", d.Namespace)}}, Data: d,
		Same: []same{command("purser hold show %s%s", name, args), call("GET", apiPath("/holds/%s/digests", name))},
	})
}

// deleteReporter ends the holds of a reporter.
func deleteReporter(q *request) error {
	name, namespace := q.form.Get("reporter"), q.form.Get("namespace")
	_, err := run(q, api.DeleteHoldReporter, api.HoldReporterItem{Reporter: name, Namespace: namespace})
	return q.showReporters(namespace, noticeOf(err, "Reporter "+format.Clip(100, name)+" is deleted, and holds nothing any more. If it reports again, it is a new one."))
}
