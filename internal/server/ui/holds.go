package ui

import (
	"cmp"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/ui/format"
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
	Digests   []heldRow
	Pages     pages
}

// heldRow is a digest that a reporter holds, with what it says about it in parts.
type heldRow struct {
	hold.Held
	Where, Workload string // such as shop, and deployment web; Where is "" for what isn't in a namespace of a cluster
	Images          []heldImage
}

// heldImage is a name of an image. Link is empty if the registry doesn't show the repository to the client.
type heldImage struct{ Name, Link string }

var inCluster = regexp.MustCompile(`^(\S+) ([^\s/]+)/(\S+)$`)

const (
	shownNames = 2  // of a digest
	maxLooked  = 20 // repositories of a page that are looked for
)

// heldRows returns the digests of a page by namespace and workload of the cluster.
func (q *request) heldRows(list []hold.Held) ([]heldRow, error) {
	rows, here := make([]heldRow, len(list)), make(map[string]bool)
	for i, h := range list {
		row := heldRow{Held: h, Workload: h.UsedBy}
		if m := inCluster.FindStringSubmatch(h.UsedBy); m != nil {
			row.Where, row.Workload = m[2], m[1]+" "+m[3]
		}
		for _, name := range h.Names[:min(len(h.Names), shownNames)] {
			image := heldImage{Name: withoutHost(name)}
			tagged, _, byDigest := strings.Cut(image.Name, "@")
			repository, tag, _ := strings.Cut(tagged, ":")
			if _, known := here[repository]; !known && len(here) < maxLooked {
				_, err := run(q, api.GetRepository, api.RepositorySizes{InRepository: repositoryOf(repository), SizeLinks: oneLink})
				if err != nil && statusOf(err) == 0 {
					return nil, err
				}
				here[repository] = err == nil
			}
			switch {
			case !here[repository]:
			case byDigest:
				image.Link = link(manifestPath, repository, h.Digest.String())
			case tag != "" && oci.ValidateTag(tag) == nil:
				image.Link = link("/ui/repositories/{repository}", repository) + arguments("q", tag)
			default:
				image.Link = link("/ui/repositories/{repository}", repository)
			}
			row.Images = append(row.Images, image)
		}
		rows[i] = row
	}
	slices.SortStableFunc(rows, func(a, b heldRow) int {
		return cmp.Or(cmp.Compare(a.Where, b.Where), cmp.Compare(a.Workload, b.Workload))
	})
	return rows, nil
}

// withoutHost returns the name of an image without that of its registry.
func withoutHost(name string) string {
	host, rest, found := strings.Cut(name, "/")
	if found && (strings.ContainsAny(host, ".:") || host == "localhost") {
		return rest
	}
	return name
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
	if d.Digests, err = q.heldRows(list.Digests); err != nil {
		return err
	}
	d.Pages = q.pagesOf(q.keep("namespace"), list.NextPage)
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
