package ui

import "github.com/purser-registry/purser/internal/api"

// exceptions adds the repositories in which only their own policies delete: of a namespace the first
// page of them, of a repository itself.
func (q *request) exceptions(d *policiesData) error {
	var list api.ExceptionList
	var err error
	if d.Place.IsNamespace() {
		list, err = run(q, api.ListExceptions, api.ExceptionQuery{PruneNamespace: d.Place.whole()})
	} else {
		list, err = run(q, api.GetException, api.InRepository{Repository: d.Place.repository})
	}
	if err != nil && !hidden(err) {
		return err
	}
	d.Exceptions = list.Exceptions
	return nil
}

// except makes the page's repository an exception, or ends that.
func (q *request) except(p place, on bool) error {
	in := api.InRepository{Repository: p.repository}
	if on {
		_, err := run(q, api.MakeException, api.ExceptionNew{InRepository: in})
		return q.showPolicies(noticeOf(err, "The repository is an exception: only its own policies delete here. Without any, it keeps every tag."))
	}
	_, err := run(q, api.EndException, in)
	return q.showPolicies(noticeOf(err, "The policies of the namespace and of the registry delete here again."))
}
