package ui

import (
	"net/http"

	"github.com/purser-registry/purser/internal/autoprune"
)

// exceptions adds the repositories in which only their own policies delete: of a namespace the first
// page of them, of a repository itself.
func (q *request) exceptions(d *policiesData) error {
	path := d.Place.api("/autoprune/exceptions")
	if !d.Place.IsNamespace() {
		path = d.Place.api("/autoprune/exception")
	}
	var list struct {
		Exceptions []autoprune.Exception `json:"exceptions"`
	}
	if err := q.get(path, nil, &list); err != nil && !hidden(err) {
		return err
	}
	d.Exceptions = list.Exceptions
	return nil
}

// except makes the page's repository an exception, or ends that.
func (q *request) except(p place, on bool) error {
	if on {
		err := q.call(http.MethodPut, p.api("/autoprune/exception"), map[string]any{}, nil)
		return q.showPolicies(noticeOf(err, "The repository is an exception: only its own policies delete here. Without any, it keeps every tag."))
	}
	err := q.call(http.MethodDelete, p.api("/autoprune/exception"), nil, nil)
	return q.showPolicies(noticeOf(err, "The policies of the namespace and of the registry delete here again."))
}
