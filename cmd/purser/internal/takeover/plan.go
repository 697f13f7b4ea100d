// Package takeover reads what Harbor and Quay know of a project besides its images: the rules of
// retention, the names of robots, and who has which role. It makes a plan of that for a namespace of
// Purser, as far as it has a counterpart, and names what has none.
//
// It only reads, by package upstream, which bounds what the other product can do. Secrets and passwords
// aren't read, and couldn't be: each robot gets a new secret.
package takeover

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/policy"
	"github.com/purser-registry/purser/internal/upstream"
)

// Plan is what a namespace gets of a project of Harbor or a namespace of Quay.
type Plan struct {
	Source    string   `json:"source"` // HOST/NAME
	Namespace string   `json:"namespace"`
	Robots    []Robot  `json:"robots"`
	Teams     []Team   `json:"teams"`
	Roles     []Role   `json:"roles"` // of people, in the whole namespace
	Policies  []Policy `json:"policies"`
	LeftOut   []string `json:"left_out"` // what isn't made, and why; printable
}

// Robot is a robot that is to be made.
type Robot struct {
	Name        string           `json:"name"` // without its namespace
	Description string           `json:"description,omitempty"`
	Role        string           `json:"role,omitempty"`       // in the namespace; "": none
	Actions     []string         `json:"actions,omitzero"`     // nil: no such limit
	Expires     *time.Time       `json:"expires_at,omitempty"` // when its secret ends; nil: never
	Roles       []RepositoryRole `json:"repository_roles,omitempty"`
}

// RepositoryRole is a role in a repository.
type RepositoryRole struct {
	Repository string `json:"repository"` // with the namespace
	Role       string `json:"role"`
}

// Team is a team that is to be made.
type Team struct {
	Name        string           `json:"name"`
	Description string           `json:"description,omitempty"`
	Role        string           `json:"role,omitempty"` // in the namespace; "": none
	Members     []string         `json:"members,omitempty"`
	Roles       []RepositoryRole `json:"repository_roles,omitempty"`
}

// Role is a person's role in the namespace.
type Role struct {
	Name string `json:"name"`
	Role string `json:"role"`
}

// Policy is a policy that is to be made, in the mode observe.
type Policy struct {
	Repository string          `json:"repository,omitempty"` // "": of the namespace
	From       string          `json:"from"`                 // what it was there; printable
	Policy     json.RawMessage `json:"policy"`
}

func newPlan(source, namespace string) *Plan {
	return &Plan{Source: source, Namespace: namespace, Robots: []Robot{}, Teams: []Team{}, Roles: []Role{}, Policies: []Policy{}, LeftOut: []string{}}
}

// leave says that something isn't made. What the other product says may be among the arguments.
func (p *Plan) leave(format string, args ...any) {
	p.LeftOut = append(p.LeftOut, upstream.Printable(fmt.Sprintf(format, args...)))
}

// policy adds a policy with these members, unless Purser doesn't take it.
func (p *Plan) policy(repository, from string, members map[string]any) {
	members["mode"] = policy.Observe
	text, err := json.Marshal(members)
	if err == nil {
		_, err = policy.Parse(text)
	}
	if err != nil {
		p.leave("%s: %v", from, err)
		return
	}
	p.Policies = append(p.Policies, Policy{repository, upstream.Printable(from), text})
}

// ownName returns the last part of a robot's name, such as "ci" of "robot$acme+ci".
func ownName(robot string) string { return robot[strings.LastIndex(robot, "+")+1:] }
