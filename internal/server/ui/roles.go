package ui

import (
	"net/url"
	"strings"

	"github.com/purser-registry/purser/internal/api"
)

// roleTable are the roles of a robot or a team in a namespace, with the forms that give and take them.
type roleTable struct {
	Action, Namespace string
	// Whole is the role in the whole namespace, "" for none. Elsewhere says that another page changes it.
	Whole     string
	Elsewhere bool
	Roles     []api.RobotPermission
	Pages     pages
	Typed     url.Values // of the form that gives a role, if it was refused
}

// Options returns the roles that can be given.
func (t roleTable) Options() []option { return roleNames }

// roleName returns the name of a role for people.
func roleName(name string) string {
	for _, r := range roleNames {
		if r.Value == name {
			return r.Text
		}
	}
	return name
}

// shownRolesOf is how many roles of a robot or a team its page shows at a time.
const shownRolesOf = 60

// roleTable puts the roles of a robot or a team into a table.
func (q *request) roleTable(action string, list api.Permissions) roleTable {
	t := roleTable{Action: action, Namespace: q.values["namespace"], Whole: list.NamespaceRole, Roles: list.Permissions, Pages: q.pagesIn("roles", list.NextPage)}
	if q.form.Get("do") == "give" {
		t.Typed = q.form
	}
	return t
}

// rolePlace returns where the role of a form holds: in the namespace of the request's path, or in one of
// its repositories.
func (q *request) rolePlace() (api.At, error) {
	namespace, repository := q.values["namespace"], strings.TrimSpace(q.form.Get("repository"))
	switch where := q.form.Get("where"); {
	case where == "namespace" && repository != "":
		return api.At{}, formError("The whole namespace is picked, and the repository " + clip(100, repository) + " is named: leave one of them out.")
	case where == "namespace":
		return api.At{Namespace: namespace}, nil
	case where != "repository":
		return api.At{}, formError("The form doesn't say where the role holds.")
	case !strings.HasPrefix(repository, namespace+"/"):
		return api.At{}, formError("Name a repository of this namespace, such as " + namespace + "/app.")
	}
	return api.At{Repository: repository}, nil
}

// changeRole gives or takes the role of a form.
func (q *request) changeRole(of api.RoleOperations, item api.RoleItem, give bool) (err error) {
	if item.At, err = q.rolePlace(); err != nil {
		return err
	}
	if give {
		_, err = run(q, of.Change, api.RoleChange{RoleItem: item, Body: api.RoleForm{Role: q.form.Get("role")}})
	} else {
		_, err = run(q, of.Delete, item)
	}
	return err
}
