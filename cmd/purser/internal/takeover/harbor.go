package takeover

import (
	"context"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/upstream"
)

// harborRoles are Purser's roles by the ids of Harbor's.
var harborRoles = map[int]auth.Role{1: auth.Administrator, 2: auth.Writer, 3: auth.Reader, 4: auth.Maintainer, 5: auth.Reader}

// FromHarbor plans a namespace for a project of Harbor. The account needs the role Project Admin.
func FromHarbor(ctx context.Context, r *upstream.Registry, project, namespace string) (*Plan, error) {
	api, err := r.OpenAPI(ctx, upstream.Catalog{Kind: upstream.Harbor})
	if err != nil {
		return nil, err
	}
	defer api.Close()
	p := newPlan(r.Name()+"/"+project, namespace)
	var about struct {
		ID       int `json:"project_id"`
		Metadata struct {
			RetentionID string `json:"retention_id"`
		} `json:"metadata"`
	}
	path := "/api/v2.0/projects" + upstream.Path(project)
	if err := api.Get(ctx, path, nil, &about); err != nil {
		return nil, err
	}
	if err := p.harborMembers(ctx, api, path+"/members"); err != nil {
		return nil, err
	}
	// Harbor wants the project by its number here.
	mine := url.Values{"q": {"Level=project,ProjectID=" + strconv.Itoa(about.ID)}}
	if err := upstream.Each(ctx, api, "/api/v2.0/robots", mine, "page_size", "", p.harborRobot); err != nil {
		return nil, err
	}
	if id := about.Metadata.RetentionID; id != "" {
		var policy struct{ Rules []retentionRule }
		if err := api.Get(ctx, "/api/v2.0/retentions"+upstream.Path(id), nil, &policy); err != nil {
			return nil, err
		}
		p.retention(policy.Rules)
	}
	return p, nil
}

func (p *Plan) harborMembers(ctx context.Context, api *upstream.API, path string) error {
	type member struct {
		Name string `json:"entity_name"`
		Type string `json:"entity_type"` // u: a user, g: a group
		ID   int    `json:"role_id"`
		Role string `json:"role_name"`
	}
	return upstream.Each(ctx, api, path, nil, "page_size", "", func(m member) error {
		role, known := harborRoles[m.ID]
		switch {
		case m.Type == "g":
			p.leave("the group %s (%s): make a team with this group", m.Name, m.Role)
		case !known:
			p.leave("the member %s: its role %s isn't one of Harbor's own", m.Name, m.Role)
		default:
			p.Roles = append(p.Roles, Role{m.Name, role.String()})
		}
		return nil
	})
}

type harborRobot struct {
	Name        string
	Description string
	Disable     bool
	ExpiresAt   int64 `json:"expires_at"` // seconds since 1970; -1: never
	Permissions []struct {
		Access []struct{ Resource, Action, Effect string }
	}
}

// harborRobot plans a robot that may do the same with repositories.
func (p *Plan) harborRobot(r harborRobot) error {
	planned := Robot{Name: ownName(r.Name), Description: r.Description}
	name := planned.Name
	if r.ExpiresAt > 0 {
		end := time.Unix(r.ExpiresAt, 0).UTC()
		planned.Expires = &end
	}
	switch {
	case r.Disable:
		p.leave("the robot %s: it is disabled", name)
		return nil
	case planned.Expires != nil && planned.Expires.Before(time.Now()):
		p.leave("the robot %s: it has expired", name)
		return nil
	case planned.Expires != nil && planned.Expires.Year() > 9999:
		p.leave("the robot %s: it expires after the year 9999", name)
		return nil
	}
	var may []string
	for _, permission := range r.Permissions {
		for _, a := range permission.Access {
			if a.Effect == "deny" {
				p.leave("the robot %s: some of its permissions deny something", name)
				return nil
			}
			if a.Resource == "repository" || a.Resource == "artifact" || a.Resource == "tag" || a.Resource == "*" {
				may = append(may, a.Action)
			}
		}
	}
	all := slices.Contains(may, "*")
	switch {
	case all || slices.Contains(may, "delete"):
		// A maintainer may more than Harbor's robots, so the robot is limited.
		planned.Role, planned.Actions = auth.Maintainer.String(), []string{string(auth.ActionPull), string(auth.ActionDelete)}
		if all || slices.Contains(may, "push") {
			planned.Actions = append(planned.Actions, string(auth.ActionPush), string(auth.ActionOverwrite))
		}
	case slices.Contains(may, "push"):
		planned.Role = auth.Writer.String()
	case slices.Contains(may, "pull"):
		planned.Role = auth.Reader.String()
	default:
		p.leave("the robot %s: it neither pulls nor pushes", name)
		return nil
	}
	p.Robots = append(p.Robots, planned)
	return nil
}
