package takeover

import (
	"context"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/upstream"
)

// quayRoles are Purser's roles by Quay's, of repositories and of teams. A member of a team has no role by that.
var quayRoles = map[string]auth.Role{"read": auth.Reader, "write": auth.Writer, "admin": auth.Administrator, "creator": auth.Writer, "member": auth.NoRole}

// quay plans a namespace for an organization.
type quay struct {
	*Plan
	api  *upstream.API
	path string // of the organization
}

// FromQuay plans a namespace for an organization of Quay. The log-in is an OAuth token of its
// administrator with the scopes org:admin and repo:admin.
func FromQuay(ctx context.Context, r *upstream.Registry, organization, namespace string) (*Plan, error) {
	api, err := r.OpenAPI(ctx, upstream.Catalog{Kind: upstream.Quay})
	if err != nil {
		return nil, err
	}
	defer api.Close()
	q := &quay{newPlan(r.Name()+"/"+organization, namespace), api, "/api/v1/organization" + upstream.Path(organization)}
	var about struct {
		Teams map[string]struct{ Role, Description string }
	}
	if err := api.Get(ctx, q.path, nil, &about); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(about.Teams)) {
		t := about.Teams[name]
		if err := q.team(ctx, name, t.Role, t.Description); err != nil {
			return nil, err
		}
	}
	if err := q.robots(ctx); err != nil {
		return nil, err
	}
	if err := q.policies(ctx, q.path, ""); err != nil {
		return nil, err
	}
	list, err := r.RepositoriesBy(ctx, upstream.Catalog{Kind: upstream.Quay}, organization+"/", func(string) bool { return true })
	if err != nil {
		return nil, err
	}
	for _, repository := range list.Names {
		if err := q.policies(ctx, "/api/v1/repository/"+escaped(repository), q.Namespace+strings.TrimPrefix(repository, organization)); err != nil {
			return nil, err
		}
	}
	return q.Plan, nil
}

// escaped returns the path of a repository, whose slashes stay as they are at Quay.
func escaped(repository string) string {
	return strings.TrimPrefix(upstream.Path(strings.Split(repository, "/")...), "/")
}

// team plans a team with its members, unless groups decide who they are.
func (q *quay) team(ctx context.Context, name, role, description string) error {
	var members struct {
		Members []struct {
			Name    string
			Invited bool
		}
		Synced *struct{ Service string }
	}
	path := q.path + "/team" + upstream.Path(name)
	if err := q.api.Get(ctx, path+"/members", nil, &members); err != nil {
		return err
	}
	t := Team{Name: name, Description: description, Role: q.role(role, "the team "+name)}
	if members.Synced != nil {
		q.leave("the members of the team %s: a group of %s decides who they are; name it by \"purser team groups\"", name, members.Synced.Service)
		members.Members = nil
	}
	for _, m := range members.Members {
		switch {
		case m.Invited:
			q.leave("the member %s of the team %s: the invitation isn't accepted", m.Name, name)
		case strings.Contains(m.Name, "+"):
			t.Members = append(t.Members, q.Namespace+"+"+ownName(m.Name))
		default:
			t.Members = append(t.Members, m.Name)
		}
	}
	var err error
	t.Roles, err = q.repositoryRoles(ctx, path+"/permissions")
	q.Teams = append(q.Teams, t)
	return err
}

// role returns the name of the role that corresponds to one of Quay, "" for none.
func (q *quay) role(name, of string) string {
	role, known := quayRoles[name]
	if !known {
		q.leave("the role %s of %s: it isn't known", name, of)
	}
	if role == auth.NoRole {
		return ""
	}
	return role.String()
}

func (q *quay) repositoryRoles(ctx context.Context, path string) (list []RepositoryRole, err error) {
	var answer struct {
		Permissions []struct {
			Repository struct{ Name string }
			Role       string
		}
	}
	if err := q.api.Get(ctx, path, nil, &answer); err != nil {
		return nil, err
	}
	for _, p := range answer.Permissions {
		repository := q.Namespace + "/" + p.Repository.Name
		if role := q.role(p.Role, "the repository "+repository); role != "" {
			list = append(list, RepositoryRole{repository, role})
		}
	}
	return list, nil
}

func (q *quay) robots(ctx context.Context) error {
	var answer struct {
		Robots []struct{ Name, Description string }
	}
	// Without "token" the answer has no secrets.
	if err := q.api.Get(ctx, q.path+"/robots", url.Values{"token": {"false"}}, &answer); err != nil {
		return err
	}
	for _, r := range answer.Robots {
		robot := Robot{Name: ownName(r.Name), Description: r.Description}
		var err error
		if robot.Roles, err = q.repositoryRoles(ctx, q.path+"/robots"+upstream.Path(robot.Name)+"/permissions"); err != nil {
			return err
		}
		q.Robots = append(q.Robots, robot)
	}
	return nil
}

// policies plans the policies of the organization or of a repository, which have Quay's form in Purser.
func (q *quay) policies(ctx context.Context, path, repository string) error {
	var answer struct {
		Policies []struct {
			Method  string
			Value   any
			Pattern *string `json:"tagPattern"`
			Matches *bool   `json:"tagPatternMatches"`
		}
	}
	err := q.api.Get(ctx, path+"/autoprunepolicy/", nil, &answer)
	if upstream.Missing(err) {
		return nil // this Quay has no auto-pruning
	}
	for _, p := range answer.Policies {
		members := map[string]any{"method": p.Method, "value": p.Value}
		from := "the policy " + p.Method
		if p.Pattern != nil {
			members["tagPattern"] = *p.Pattern
			members["tagPatternMatches"] = p.Matches == nil || *p.Matches
			from += ", tags " + *p.Pattern
		}
		if repository != "" {
			from += " of " + repository
		}
		q.policy(repository, from, members)
	}
	return err
}
