package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/cmd/purser/internal/takeover"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/upstream"
)

// ImportCommands returns the subcommands of "import" that ask another product, and this registry, over
// their APIs.
func ImportCommands(src *command.Source) []*cobra.Command {
	return []*cobra.Command{
		importProjectCommand(src, takeover.FromHarbor, &cobra.Command{
			Use: "harbor HOST/PROJECT", Short: "Make the robots, roles and policies of a project of Harbor",
			Long: "Make in a namespace what a project of Harbor has besides images: its robots, with new secrets, its members'\n" +
				"roles, and policies for its rules of retention.\n\n" +
				"The log-in at Harbor is that of docker's configuration (\"docker login\"): a local or LDAP user with the role\n" +
				"Project Admin. Harbor takes no CLI secret of OpenID Connect for that.\n\n" + importHelp,
			Example: "  purser import harbor harbor.example.com/acme --dry-run\n  purser import harbor harbor.example.com/acme --namespace acme",
		}),
		importProjectCommand(src, takeover.FromQuay, &cobra.Command{
			Use: "quay HOST/ORGANIZATION", Short: "Make the robots, teams and policies of an organization of Quay",
			Long: "Make in a namespace what an organization of Quay has besides images: its robots, with new secrets, its teams\n" +
				"with their members and roles, and its policies of auto-pruning.\n\n" +
				"The log-in at Quay is that of docker's configuration (\"docker login\"), with the name $oauthtoken and, as the\n" +
				"password, an OAuth token with the scopes org:admin and repo:admin.\n\n" + importHelp,
			Example: "  purser import quay quay.example.com/acme --dry-run\n  purser import quay quay.example.com/acme --namespace acme",
		}),
	}
}

const importHelp = "It shows a plan, and asks. Nothing that is there is changed: robots, teams and roles that exist stay as they\n" +
	"are, and policies are made only where there are none. A robot that exists with the limits of the plan gets the\n" +
	"roles that it lacks, and a team with the role of the plan its members and roles, so that the command can be run\n" +
	"again. Others of these names get nothing. New policies only observe. Accounts of people must exist, and so must\n" +
	"repositories, for roles in them: copy the images first, or run the command again. It names what it couldn't\n" +
	"make, and what has no counterpart; the exit code is 4 then."

// importProjectCommand completes the subcommand for a product, of whose projects `read` makes plans.
func importProjectCommand(src *command.Source, read func(ctx context.Context, r *upstream.Registry, name, namespace string) (*takeover.Plan, error), cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.ExactArgs(1)
	out, yes := command.AddFormat(cmd), command.AddYes(cmd)
	var namespace string
	textFlag(cmd, &namespace, "namespace", "", "make it in this `NAMESPACE` (default: the name there)", notEmpty)
	dry := cmd.Flags().Bool("dry-run", false, "show the plan, and make nothing")
	plain := cmd.Flags().Bool("source-plain-http", false, "speak plain http to the other product")
	authorities := cmd.Flags().String("source-ca", "", "trust the certificate authorities in this PEM `FILE` too, at the other product")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		ctx := cmd.Context()
		host, name, _ := strings.Cut(strings.TrimSuffix(args[0], "/"), "/")
		if err := oci.ValidateName(name); err != nil || host == "" || strings.Contains(name, "/") {
			return command.Usagef("%q names no project: write it as HOST/NAME", command.Printable(args[0]))
		}
		if namespace == "" {
			namespace = name
		}
		tls, err := sourceTLS(ctx, *authorities)
		if err != nil {
			return command.Usagef("--source-ca: %w", err)
		}
		r, err := upstream.Open(upstream.Options{Host: host, PlainHTTP: *plain, Keychain: authn.DefaultKeychain, Agent: "purser-import", Proxy: http.ProxyFromEnvironment, TLS: tls})
		if err != nil {
			return err
		}
		defer r.Close()
		plan, err := read(ctx, r, name, namespace)
		if err != nil {
			return err
		}
		if *dry {
			if err := out.Print(cmd.OutOrStdout(), plan, func(w io.Writer) error { return writePlan(w, plan) }); err != nil {
				return err
			}
			return leftOut(plan, 0)
		}
		if err := writePlan(cmd.ErrOrStderr(), plan); err != nil {
			return err
		}
		if err := command.Confirm(cmd, *yes, "Make this in namespace %s of %s?", namespace, c.Name()); err != nil {
			return err
		}
		m := &maker{ctx: ctx, c: c, namespace: namespace, others: make(map[string]bool)}
		err = m.all(plan)
		if err != nil && len(m.made) == 0 {
			return err
		}
		result := struct {
			*takeover.Plan
			Made []madeThing `json:"made"`
		}{plan, m.made}
		// An error doesn't keep the list from being printed: its secrets aren't told again.
		err = errors.Join(err, out.Print(cmd.OutOrStdout(), result, func(w io.Writer) error { return writeMade(w, m.made) }))
		if err != nil {
			return err
		}
		return leftOut(plan, m.failed)
	})
	return addServer(cmd)
}

// leftOut returns the exit code for findings if something wasn't made.
func leftOut(plan *takeover.Plan, failed int) error {
	if len(plan.LeftOut) > 0 || failed > 0 {
		return command.ExitCode(4)
	}
	return nil
}

// writePlan prints a plan for people.
func writePlan(w io.Writer, p *takeover.Plan) error {
	var b strings.Builder
	fmt.Fprintf(&b, "From %s, for the namespace %s:\n", p.Source, p.Namespace)
	role := func(role string, repositories []takeover.RepositoryRole) string {
		texts := []string{}
		if role != "" {
			texts = append(texts, role)
		}
		for _, r := range repositories {
			texts = append(texts, r.Role+" in "+r.Repository)
		}
		if len(texts) == 0 {
			return "no role"
		}
		return strings.Join(texts, ", ")
	}
	for _, r := range p.Robots {
		fmt.Fprintf(&b, "robot %s+%s: %s", p.Namespace, r.Name, role(r.Role, r.Roles))
		if r.Actions != nil {
			fmt.Fprintf(&b, ", only to %s", cmp.Or(strings.Join(r.Actions, ", "), "nothing"))
		}
		if r.Expires != nil {
			fmt.Fprintf(&b, ", until %s", clock(r.Expires))
		}
		b.WriteString("\n")
	}
	for _, t := range p.Teams {
		fmt.Fprintf(&b, "team %s: %s", t.Name, role(t.Role, t.Roles))
		if len(t.Members) > 0 {
			fmt.Fprintf(&b, "; members %s", strings.Join(t.Members, ", "))
		}
		b.WriteString("\n")
	}
	for _, r := range p.Roles {
		fmt.Fprintf(&b, "role of %s: %s\n", r.Name, r.Role)
	}
	for _, one := range p.Policies {
		of := p.Namespace
		if one.Repository != "" {
			of = one.Repository
		}
		fmt.Fprintf(&b, "policy of %s: %s\n  for %s\n", of, one.Policy, one.From)
	}
	for _, text := range p.LeftOut {
		fmt.Fprintf(&b, "left out: %s\n", text)
	}
	return writeLines(w, b.String())
}

// writeLines prints lines that may have words of others.
func writeLines(w io.Writer, text string) error {
	for line := range strings.Lines(text) {
		if _, err := fmt.Fprintln(w, command.Printable(strings.TrimSuffix(line, "\n"))); err != nil {
			return err
		}
	}
	return nil
}

// Outcomes of what was to be made.
const (
	wasMade  = "made"
	wasThere = "is there already"
	notMade  = "not made"
)

// madeThing says what became of a part of a plan.
type madeThing struct {
	What    string `json:"what"`
	Outcome string `json:"outcome"`
	Error   string `json:"error,omitempty"`
	Secret  string `json:"secret,omitempty"` // of a robot
}

func writeMade(w io.Writer, list []madeThing) error {
	var b strings.Builder
	for _, m := range list {
		fmt.Fprintf(&b, "%s: %s", m.What, m.Outcome)
		if m.Error != "" {
			fmt.Fprintf(&b, ": %s", m.Error)
		}
		if m.Secret != "" {
			fmt.Fprintf(&b, ". Its secret, which isn't told again: %s", m.Secret)
		}
		b.WriteString("\n")
	}
	return writeLines(w, b.String())
}

// maker makes what a plan says, through the API. What is there stays as it is.
type maker struct {
	ctx       context.Context //nolint:containedctx // of one command
	c         *api.Client
	namespace string
	made      []madeThing
	failed    int
	others    map[string]bool // robots that aren't those of the plan, by name
}

// missing says whether the registry's answer is that it doesn't have something.
func missing(err error) bool {
	e, ok := errors.AsType[*api.Error](err)
	return ok && e.Status == http.StatusNotFound
}

// tell records what became of a part of the plan. Only an error that isn't the registry's answer is returned: then
// nothing more is tried.
func (m *maker) tell(what string, there bool, secret string, err error) error {
	done := madeThing{What: what, Outcome: wasMade, Secret: secret}
	switch _, answered := errors.AsType[*api.Error](err); {
	case err != nil && !answered:
		return err
	case err != nil:
		done.Outcome, done.Error = notMade, err.Error()
		m.failed++
	case there:
		done.Outcome = wasThere
	}
	m.made = append(m.made, done)
	return nil
}

// refuse records that a part of the plan isn't made.
func (m *maker) refuse(what, why string) {
	m.made = append(m.made, madeThing{What: what, Outcome: notMade, Error: why})
	m.failed++
}

// role gives a role, unless a GET finds one.
func (m *maker) role(what, target, role, kind, name string) error {
	path := target + api.Path("permissions", kind, name)
	err := m.c.Get(m.ctx, path, nil, nil)
	if !missing(err) {
		return m.tell(what, err == nil, "", err)
	}
	return m.tell(what, false, "", m.c.Put(m.ctx, path, api.RoleForm{Role: role}, nil))
}

func (m *maker) repositoryRoles(list []takeover.RepositoryRole, kind, name, who string) error {
	for _, r := range list {
		if err := m.role(r.Role+" in "+r.Repository+" for "+who, api.Path("repository", r.Repository), r.Role, kind, name); err != nil {
			return err
		}
	}
	return nil
}

func (m *maker) all(p *takeover.Plan) error {
	err := m.c.Get(m.ctx, m.path(), nil, nil)
	there := err == nil
	if missing(err) {
		err = m.c.Post(m.ctx, api.Path("organization"), map[string]string{"name": m.namespace}, nil)
	}
	if err != nil {
		return err // without the namespace, nothing else can be made
	}
	if err := m.tell("namespace "+m.namespace, there, "", nil); err != nil {
		return err
	}
	for _, step := range []func(*takeover.Plan) error{m.robots, m.teams, m.roles, m.policies} {
		if err := step(p); err != nil {
			return err
		}
	}
	return nil
}

// path returns the path of the namespace in the API, or of something in it.
func (m *maker) path(parts ...string) string {
	return api.Path(append([]string{"organization", m.namespace}, parts...)...)
}

func (m *maker) robots(p *takeover.Plan) error {
	for _, r := range p.Robots {
		item := api.RobotItem{At: api.At{Namespace: m.namespace}, Robot: r.Name}
		name := item.Name()
		planned, err := m.robot(item, r)
		if err == nil && planned && r.Role != "" {
			err = m.role(r.Role+" for robot "+name, m.path(), r.Role, "user", name)
		}
		if err == nil && planned {
			err = m.repositoryRoles(r.Roles, "user", name, "robot "+name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// robot makes a robot that isn't there. It says whether the one that is there now is that of the plan, which may
// get its roles: one with other limits could do with them what the plan doesn't let it do.
func (m *maker) robot(item api.RobotItem, r takeover.Robot) (planned bool, err error) {
	what := "robot " + item.Name()
	there, err := api.GetRobot.Call(m.ctx, m.c, item)
	if missing(err) {
		form := &api.NewRobotForm{Description: r.Description, Actions: r.Actions, ExpiresAt: r.Expires}
		made, err := api.CreateRobot.Call(m.ctx, m.c, api.RobotNew{RobotItem: item, Body: form})
		return err == nil, m.tell(what, false, made.Token, err)
	}
	if err == nil && (there.Repositories != nil || !sameLimit(there.Actions, r.Actions)) {
		m.others[item.Name()] = true
		m.refuse(what, "a robot of this name is there with other limits")
		return false, nil
	}
	return err == nil, m.tell(what, err == nil, "", err)
}

// sameLimit compares limits, whose order is of no account. nil is no limit.
func sameLimit(a, b []string) bool {
	return (a == nil) == (b == nil) && slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func (m *maker) teams(p *takeover.Plan) error {
	if len(p.Teams) == 0 {
		return nil
	}
	there, _, err := api.List(m.ctx, m.c, api.ListTeams, api.TeamQuery{InNamespace: api.InNamespace{Namespace: m.namespace}}, 0)
	if err != nil {
		return err
	}
	for _, t := range p.Teams {
		i := slices.IndexFunc(there, func(v api.TeamView) bool { return v.Name == t.Name })
		if i >= 0 && roleName(there[i].Role) != t.Role {
			m.refuse("team "+t.Name, "a team of this name is there with another role")
			continue // its role isn't for the members of the plan
		}
		var err error
		if i < 0 {
			form := api.TeamForm{Role: cmp.Or(t.Role, "member"), Description: &t.Description}
			_, err = api.PutTeam.Call(m.ctx, m.c, api.TeamChange{TeamItem: api.TeamOf(m.namespace, t.Name), Body: form})
		}
		if err := m.tell("team "+t.Name, i >= 0, "", err); err != nil {
			return err
		}
		if err != nil {
			continue // it isn't there
		}
		if err := m.members(t); err != nil {
			return err
		}
		if err := m.repositoryRoles(t.Roles, "team", t.Name, "team "+t.Name); err != nil {
			return err
		}
	}
	return nil
}

func (m *maker) members(t takeover.Team) error {
	for _, name := range t.Members {
		what := "member " + name + " of team " + t.Name
		if m.others[name] {
			m.refuse(what, "a robot of this name is there with other limits")
			continue
		}
		_, err := api.AddTeamMember.Call(m.ctx, m.c, api.TeamMemberItem{TeamItem: api.TeamOf(m.namespace, t.Name), Member: name})
		if err := m.tell(what, false, "", err); err != nil {
			return err
		}
	}
	return nil
}

func (m *maker) roles(p *takeover.Plan) error {
	for _, r := range p.Roles {
		if err := m.role(r.Role+" for "+r.Name, m.path(), r.Role, "user", r.Name); err != nil {
			return err
		}
	}
	return nil
}

// policies makes policies where there are none. All of a namespace belong together, so none is made beside
// others.
func (m *maker) policies(p *takeover.Plan) error {
	own := make(map[string]bool) // whether a namespace or repository had policies before
	for _, one := range p.Policies {
		at, of := api.PolicyAt{Namespace: m.namespace}, m.namespace
		if one.Repository != "" {
			at, of = api.PolicyAt{Repository: one.Repository}, one.Repository
		}
		had, known := own[of]
		var err error
		if !known {
			var there api.PolicyList
			there, err = api.ListPolicies.Call(m.ctx, m.c, at)
			had = slices.ContainsFunc(there.Policies, func(v api.PolicyView) bool { return v.Setting == "" })
			own[of] = had
		}
		if err == nil && !had {
			_, err = api.CreatePolicy.Call(m.ctx, m.c, api.PolicyNew{PolicyAt: at, Body: api.PolicyText(one.Policy)})
		}
		what := "policy of " + of + " for " + one.From
		if had {
			what = "another policy of " + of + ", beside which none is made for " + one.From
		}
		if err := m.tell(what, had, "", err); err != nil {
			return err
		}
	}
	return nil
}
