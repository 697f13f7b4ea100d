package client

import (
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
)

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
	format, target := command.AddFormat(cmd), addTarget(cmd, false)
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
		return format.Print(cmd.OutOrStdout(), list, func(w io.Writer) error {
			rows := make([][]string, len(list))
			for i, g := range list {
				rows[i] = []string{g.Kind, g.Name, g.Role}
			}
			return table(w, []string{"KIND", "NAME", "ROLE"}, rows, false)
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
