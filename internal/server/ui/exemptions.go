package ui

import (
	"net/url"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/autoprune"
)

// exemptionsData is the content of the page on the tags of a repository that undos have restored.
type exemptionsData struct {
	Place      place
	Exemptions []autoprune.Exemption
	Pages      pages
}

// showExemptions lists the tags of a repository that policies don't select, since an undo has restored
// them.
func (q *request) showExemptions(n *notice) error {
	p := q.place()
	list, err := run(q, api.ListExemptions, api.ExemptionQuery{InRepository: api.InRepository{Repository: p.repository}, Paging: q.paging("page", 100)})
	if err != nil {
		return err
	}
	out := q.placePage(p, "/-/policies")
	out.Crumbs = append(out.Crumbs, crumb{p.Name(), p.Home("")}, crumb{"Policies", p.Home("/-/policies")})
	out.Title, out.Tabs, out.Notice = "Exemptions", nil, n
	out.Lead = "An undo has restored these tags. The policies that deleted them don't select them, until somebody ends that or the policy gets another rule."
	out.Data = exemptionsData{p, list.Exemptions, q.pagesOf(url.Values{}, list.NextPage)}
	out.Same = []same{command("purser prune exemptions %s", p.Name()), call("GET", p.api("/autoprune/exemptions"))}
	return q.show("exemptions", out)
}

// endExemptions lets policies select a tag again, or all tags of the repository.
func endExemptions(q *request) error {
	done, err := run(q, api.EndExemptions, api.ExemptionEnd{InRepository: api.InRepository{Repository: q.repository()}, Tag: q.form.Get("tag")})
	return q.showExemptions(noticeOf(err, "Ended "+plural(done.Ended, "exemption", "exemptions")+". The next run may delete these tags."))
}
