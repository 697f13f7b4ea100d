package client

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
)

func teamCommand(src *command.Source) *cobra.Command {
	return addServer(command.Group("team", "Manage teams: groups of accounts that have roles in a namespace",
		teamListCommand(src), teamCreateCommand(src), teamDeleteCommand(src), teamMembersCommand(src),
		teamAddCommand(src), teamRemoveCommand(src), teamGroupsCommand(src), teamRolesCommand(src)))
}

func teamListCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "list NAMESPACE", Short: "List the teams of a namespace", Args: cobra.ExactArgs(1)}
	listing := command.AddListing(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		list, more, err := api.List(cmd.Context(), c, api.ListTeams, api.TeamQuery{InNamespace: api.InNamespace{Namespace: args[0]}}, listing.Limit)
		if err != nil {
			return err
		}
		return command.PrintList(cmd, listing, list, more, func(t api.TeamView) string { return t.Name }, func(w io.Writer) error {
			rows := make([][]string, len(list))
			for i, t := range list {
				members := strconv.Itoa(t.MemberCount)
				if t.IsSynced {
					members += " by groups"
				}
				rows[i] = []string{t.Name, roleName(t.Role), members, t.Description}
			}
			return table(w, []string{"TEAM", "ROLE", "MEMBERS", "DESCRIPTION"}, rows, more)
		})
	})
	return cmd
}

func teamCreateCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "create NAMESPACE TEAM", Short: "Create a team, or change its role", Args: cobra.ExactArgs(2),
		Example: "  purser team create acme developers --role writer",
	}
	role := ""
	textFlag(cmd, &role, "role", "", "its members have this `ROLE` in the namespace: "+strings.Join(roles, ", ")+" (default: none)", checkRole)
	var description string
	cmd.Flags().StringVar(&description, "description", "", "`TEXT` for people")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		form := api.TeamForm{Role: role}
		if role == "" {
			form.Role = "member"
		}
		if cmd.Flags().Changed("description") {
			form.Description = &description
		}
		t, err := api.PutTeam.Call(cmd.Context(), c, api.TeamChange{TeamItem: api.TeamOf(args[0], args[1]), Body: form})
		if err != nil {
			return err
		}
		done := "Changed"
		if t.NewTeam {
			done = "Created"
		}
		return say(cmd, "%s team %s of %s.\n", done, command.Printable(args[1]), command.Printable(args[0]))
	})
	return cmd
}

func teamDeleteCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "delete NAMESPACE TEAM", Short: "Delete a team: its members lose the roles that they have by it", Args: cobra.ExactArgs(2)}
	yes := command.AddYes(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		if err := command.Confirm(cmd, *yes, "Delete team %s of %s? Its members lose the roles that they have by it.", command.Printable(args[1]), command.Printable(args[0])); err != nil {
			return err
		}
		if _, err := api.DeleteTeam.Call(cmd.Context(), c, api.TeamOf(args[0], args[1])); err != nil {
			return err
		}
		return say(cmd, "Deleted team %s of %s.\n", command.Printable(args[1]), command.Printable(args[0]))
	})
	return cmd
}

func teamMembersCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "members NAMESPACE TEAM", Short: "List the members of a team", Args: cobra.ExactArgs(2)}
	listing := command.AddListing(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		list, more, err := api.List(cmd.Context(), c, api.ListTeamMembers, api.TeamMemberQuery{TeamItem: api.TeamOf(args[0], args[1])}, listing.Limit)
		if err != nil {
			return err
		}
		return command.PrintList(cmd, listing, list, more, func(m api.MemberView) string { return m.Name }, func(w io.Writer) error {
			rows := make([][]string, len(list))
			for i, m := range list {
				kind, by := "user", "added"
				if m.IsRobot {
					kind = "robot"
				}
				if m.Synced {
					by = "a group"
				}
				rows[i] = []string{m.Name, kind, by}
			}
			return table(w, []string{"NAME", "KIND", "BY"}, rows, more)
		})
	})
	return cmd
}

func teamRolesCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "roles NAMESPACE TEAM", Short: "List the roles of a team in repositories of its namespace", Args: cobra.ExactArgs(2),
		Long: "List the roles of a team in repositories of its namespace. \"purser team list\" has the role in the whole namespace."}
	listing := command.AddListing(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		list, more, err := api.List(cmd.Context(), c, api.ListTeamRoles, api.TeamRoleQuery{TeamItem: api.TeamOf(args[0], args[1])}, listing.Limit)
		if err != nil {
			return err
		}
		return command.PrintList(cmd, listing, list, more, func(p api.RobotPermission) string { return args[0] + "/" + p.Repository.Name }, func(w io.Writer) error {
			rows := make([][]string, len(list))
			for i, p := range list {
				rows[i] = []string{args[0] + "/" + p.Repository.Name, roleName(p.Role)}
			}
			return table(w, []string{"REPOSITORY", "ROLE"}, rows, more)
		})
	})
	return cmd
}

func teamAddCommand(src *command.Source) *cobra.Command {
	return &cobra.Command{
		Use: "add NAMESPACE TEAM ACCOUNT…", Short: "Make accounts members of a team", Args: cobra.MinimumNArgs(3),
		RunE: withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
			for _, name := range args[2:] {
				if _, err := api.AddTeamMember.Call(cmd.Context(), c, api.TeamMemberItem{TeamItem: api.TeamOf(args[0], args[1]), Member: name}); err != nil {
					return err
				}
				if err := say(cmd, "Added %s to team %s of %s.\n", command.Printable(name), command.Printable(args[1]), command.Printable(args[0])); err != nil {
					return err
				}
			}
			return nil
		}),
	}
}

func teamRemoveCommand(src *command.Source) *cobra.Command {
	return &cobra.Command{
		Use: "remove NAMESPACE TEAM ACCOUNT…", Short: "Remove members from a team", Args: cobra.MinimumNArgs(3),
		RunE: withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
			for _, name := range args[2:] {
				if _, err := api.RemoveTeamMember.Call(cmd.Context(), c, api.TeamMemberItem{TeamItem: api.TeamOf(args[0], args[1]), Member: name}); err != nil {
					return err
				}
				if err := say(cmd, "Removed %s from team %s of %s.\n", command.Printable(name), command.Printable(args[1]), command.Printable(args[0])); err != nil {
					return err
				}
			}
			return nil
		}),
	}
}

func teamGroupsCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "groups NAMESPACE TEAM", Short: "Let groups of OpenID Connect or LDAP decide who is in a team", Args: cobra.ExactArgs(2),
		Long: "Replace the groups of a team. A person who is in one of them becomes a member of the team at the next\n" +
			"log-in. The flags may be repeated, since the names of groups may contain commas. With --none, no\n" +
			"group decides.",
		Example: "  purser team groups acme developers --oidc developers",
	}
	var oidc, ldap []string
	cmd.Flags().Var(repeatedText{&oidc}, "oidc", "`GROUP` of OpenID Connect")
	cmd.Flags().Var(repeatedText{&ldap}, "ldap", "`GROUP` of LDAP: its DN or its name")
	none := cmd.Flags().Bool("none", false, "no group")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		var groups []api.TeamGroup
		for _, name := range oidc {
			groups = append(groups, api.TeamGroup{Source: "oidc", Name: name})
		}
		for _, name := range ldap {
			groups = append(groups, api.TeamGroup{Source: "ldap", Name: name})
		}
		item := api.TeamOf(args[0], args[1])
		switch {
		case *none == (groups != nil):
			return command.Usagef("name groups with --oidc and --ldap, or give --none")
		case *none:
			if _, err := api.EndTeamSync.Call(cmd.Context(), c, item); err != nil {
				return err
			}
		default:
			if _, err := api.SetTeamSync.Call(cmd.Context(), c, api.TeamSyncChange{TeamItem: item, Body: api.TeamSync{Groups: groups}}); err != nil {
				return err
			}
		}
		return say(cmd, "%s\n", fmt.Sprintf("Team %s of %s has %s now.", command.Printable(args[1]), command.Printable(args[0]), command.Count(int64(len(groups)), "group")))
	})
	return cmd
}

func grantCommand(src *command.Source) *cobra.Command {
	cmd := command.Group("grant", "Say who has which role in a namespace or a repository",
		grantListCommand(src), grantSetCommand(src), grantRemoveCommand(src))
	cmd.Long = "Give accounts and teams roles in a namespace (acme) or a repository (acme/app). A reader pulls, a writer\n" +
		"pushes too, a maintainer deletes and manages policies too, and an administrator manages members too."
	return addServer(cmd)
}

// granteeFlags name who has a role: exactly one of a person, a robot and a team.
type granteeFlags struct{ user, robot, team string }

func addGrantee(cmd *cobra.Command) *granteeFlags {
	f := new(granteeFlags)
	textFlag(cmd, &f.user, "user", "", "the account `NAME`", notEmpty)
	textFlag(cmd, &f.robot, "robot", "", "the robot `NAME` of the namespace: ci or acme+ci", notEmpty)
	textFlag(cmd, &f.team, "team", "", "the team `NAME` of the namespace", notEmpty)
	return f
}

// item returns the input that names a role in a namespace or a repository, its operations, and its holder for messages.
func (f *granteeFlags) item(at api.At) (item api.RoleItem, of api.RoleOperations, who string, err error) {
	item, of = api.RoleItem{At: at}, api.UserRoles
	namespace := at.Resource().Namespace
	var found int
	for _, name := range []string{f.user, f.robot, f.team} {
		if name != "" {
			found++
		}
	}
	switch {
	case found != 1:
		return item, of, "", command.Usagef("name one of --user, --robot and --team")
	case f.team != "":
		item.Team = f.team
		return item, api.TeamRoles, "team " + f.team, nil
	case f.robot == "":
		item.User = f.user
		return item, of, f.user, nil
	}
	item.User = f.robot
	if !strings.Contains(f.robot, "+") {
		item.User = namespace + "+" + f.robot
	}
	return item, of, "robot " + item.User, nil
}

// grantView is a role in the output of the command.
type grantView struct {
	Kind string `json:"kind"` // user, robot or team
	Name string `json:"name"`
	Role string `json:"role"`
}

func grantListCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list TARGET", Short: "List the roles in a namespace or a repository itself",
		Long: "List the roles in a namespace or a repository itself. Who has a role in a namespace has it in all of its\n" +
			"repositories; the list of a repository doesn't show these roles.",
	}
	listing, target := command.AddListing(cmd), addTarget(cmd, false)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		at, _, _, err := target.at(args, 0)
		if err != nil {
			return err
		}
		list := []grantView{}
		for _, of := range []struct {
			kind string
			list api.Operation[api.RoleQuery, api.PermissionMap]
		}{{"user", api.UserRoles.List}, {"team", api.TeamRoles.List}} {
			all, _, err := api.List(cmd.Context(), c, of.list, api.RoleQuery{At: at}, 0)
			if err != nil {
				return err
			}
			for _, p := range all {
				g := grantView{of.kind, p.Name, roleName(p.Role)}
				if p.IsRobot != nil && *p.IsRobot {
					g.Kind = "robot"
				}
				list = append(list, g)
			}
		}
		list, more := command.Cut(listing, list)
		return command.PrintList(cmd, listing, list, more, func(g grantView) string { return g.Name }, func(w io.Writer) error {
			rows := make([][]string, len(list))
			for i, g := range list {
				rows[i] = []string{g.Kind, g.Name, g.Role}
			}
			return table(w, []string{"KIND", "NAME", "ROLE"}, rows, more)
		})
	})
	return cmd
}

func grantSetCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "set TARGET ROLE", Short: "Give an account or a team a role in a namespace or a repository",
		Long:    "Give an account or a team a role: " + strings.Join(roles, ", ") + ".",
		Example: "  purser grant set acme reader --user alice\n  purser grant set acme/app writer --robot ci",
	}
	target, grantee := addTarget(cmd, false), addGrantee(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		at, name, rest, err := target.at(args, 1)
		if err != nil {
			return err
		}
		if err := checkArg("ROLE", rest[0], checkRole); err != nil {
			return err
		}
		item, of, who, err := grantee.item(at)
		if err != nil {
			return err
		}
		if _, err := of.Change.Call(cmd.Context(), c, api.RoleChange{RoleItem: item, Body: api.RoleForm{Role: rest[0]}}); err != nil {
			return err
		}
		return say(cmd, "%s is %s of %s now.\n", command.Printable(who), rest[0], command.Printable(name))
	})
	return cmd
}

func grantRemoveCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "remove TARGET", Short: "Take the role of an account or a team in a namespace or a repository away",
		Example: "  purser grant remove acme/app --robot ci",
	}
	target, grantee := addTarget(cmd, false), addGrantee(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		at, name, _, err := target.at(args, 0)
		if err != nil {
			return err
		}
		item, of, who, err := grantee.item(at)
		if err != nil {
			return err
		}
		if _, err := of.Delete.Call(cmd.Context(), c, item); err != nil {
			return err
		}
		return say(cmd, "%s has no role of its own in %s now.\n", command.Printable(who), command.Printable(name))
	})
	return cmd
}
