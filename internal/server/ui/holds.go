package ui

import (
	"net/http"
	"net/url"
	"time"

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
	query := url.Values{"limit": {"100"}}
	if namespace != "" {
		query.Set("namespace", namespace)
	}
	if page := q.query("page"); page != "" {
		query.Set("next_page", page)
	}
	var list struct {
		Reporters []hold.Reporter `json:"reporters"`
		NextPage  string          `json:"next_page"`
	}
	frame, err := q.chooseNamespace(q.get("/holds", query, &list))
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
		Title: "Deployed", Section: "holds", Notice: n,
		Lead: "Reporters, such as clusters, tell the registry which images they run. What they hold isn't deleted.",
		Data: reportersData{frame, q.registryAddress(), list.Reporters, q.pagesOf(keep, list.NextPage)},
		Same: []same{command("purser hold list%s", args), call("GET", "/holds")},
	})
}

type reporterData struct {
	Reporter  hold.Reporter
	Namespace string
	Digests   []struct {
		Digest string    `json:"digest"`
		UsedBy string    `json:"used_by"`
		Since  time.Time `json:"since"`
	}
	Pages pages
}

// showReporter lists the digests that a reporter holds.
func showReporter(q *request) error {
	name := q.values["reporter"]
	d := reporterData{Namespace: q.query("namespace")}
	query, keep := url.Values{}, q.keep("namespace")
	if d.Namespace != "" {
		query.Set("namespace", d.Namespace)
	}
	if err := q.get(apiPath("/holds/%s", name), query, &d.Reporter); err != nil {
		return err
	}
	query.Set("limit", "100")
	if page := q.query("page"); page != "" {
		query.Set("next_page", page)
	}
	var list struct {
		Digests  any    `json:"digests"`
		NextPage string `json:"next_page"`
	}
	list.Digests = &d.Digests
	if err := q.get(apiPath("/holds/%s/digests", name), query, &list); err != nil {
		return err
	}
	d.Pages = q.pagesOf(keep, list.NextPage)
	args := ""
	if d.Namespace != "" {
		args = " --namespace " + d.Namespace
	}
	return q.show("hold", page{
		Title: name, Section: "holds", Crumbs: []crumb{{"Deployed", "/ui/holds" + arguments("namespace", d.Namespace)}}, Data: d,
		Same: []same{command("purser hold show %s%s", name, args), call("GET", apiPath("/holds/%s/digests", name))},
	})
}

// deleteReporter ends the holds of a reporter.
func deleteReporter(q *request) error {
	name, namespace := q.form.Get("reporter"), q.form.Get("namespace")
	path := apiPath("/holds/%s", name)
	if namespace != "" {
		path += "?" + url.Values{"namespace": {namespace}}.Encode()
	}
	err := q.call(http.MethodDelete, path, nil, nil)
	return q.showReporters(namespace, noticeOf(err, "Reporter "+clip(100, name)+" is deleted, and holds nothing any more. If it reports again, it is a new one."))
}
