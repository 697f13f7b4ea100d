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
		teamAddCommand(src), teamRemoveCommand(src), teamGroupsCommand(src)))
}

func teamListCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "list NAMESPACE", Short: "List the teams of a namespace", Args: cobra.ExactArgs(1)}
	format := command.AddFormat(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		list, _, err := api.List(cmd.Context(), c, api.ListTeams, api.TeamQuery{InNamespace: api.InNamespace{Namespace: args[0]}}, 0)
		if err != nil {
			return err
		}
		return format.Print(cmd.OutOrStdout(), list, func(w io.Writer) error {
			rows := make([][]string, len(list))
			for i, t := range list {
				members := strconv.Itoa(t.MemberCount)
				if t.IsSynced {
					members += " by groups"
				}
				rows[i] = []string{t.Name, roleName(t.Role), members, t.Description}
			}
			return table(w, []string{"TEAM", "ROLE", "MEMBERS", "DESCRIPTION"}, rows, false)
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
	format := command.AddFormat(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		list, _, err := api.List(cmd.Context(), c, api.ListTeamMembers, api.TeamMemberQuery{TeamItem: api.TeamOf(args[0], args[1])}, 0)
		if err != nil {
			return err
		}
		return format.Print(cmd.OutOrStdout(), list, func(w io.Writer) error {
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
			return table(w, []string{"NAME", "KIND", "BY"}, rows, false)
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
