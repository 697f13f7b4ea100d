package client

import (
	"io"
	"maps"
	"slices"
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

// path returns the end of the API's path of a role, and its holder for messages. `target` is the
// name of a namespace or a repository.
func (f *granteeFlags) path(target string) (path, who string, err error) {
	namespace, _, _ := strings.Cut(target, "/")
	var found int
	for _, name := range []string{f.user, f.robot, f.team} {
		if name != "" {
			found++
		}
	}
	switch {
	case found != 1:
		return "", "", command.Usagef("name one of --user, --robot and --team")
	case f.team != "":
		return api.Path("permissions", "team", f.team), "team " + f.team, nil
	case f.robot == "":
		return api.Path("permissions", "user", f.user), f.user, nil
	}
	robot := f.robot
	if !strings.Contains(robot, "+") {
		robot = namespace + "+" + robot
	}
	return api.Path("permissions", "user", robot), "robot " + robot, nil
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
		path, _, _, err := target.path(args, 0)
		if err != nil {
			return err
		}
		list := []grantView{}
		for _, kind := range []string{"user", "team"} {
			all, err := api.AllOf[api.PermissionView](cmd.Context(), c, path+api.Path("permissions", kind), "permissions")
			if err != nil {
				return err
			}
			for _, name := range slices.Sorted(maps.Keys(all)) {
				p := all[name]
				g := grantView{kind, name, roleName(p.Role)}
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
		path, name, rest, err := target.path(args, 1)
		if err != nil {
			return err
		}
		if err := checkArg("ROLE", rest[0], checkRole); err != nil {
			return err
		}
		end, who, err := grantee.path(name)
		if err != nil {
			return err
		}
		if err := c.Put(cmd.Context(), path+end, api.PermissionRequest{Role: rest[0]}, nil); err != nil {
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
		path, name, _, err := target.path(args, 0)
		if err != nil {
			return err
		}
		end, who, err := grantee.path(name)
		if err != nil {
			return err
		}
		if err := c.Delete(cmd.Context(), path+end, nil); err != nil {
			return err
		}
		return say(cmd, "%s has no role of its own in %s now.\n", command.Printable(who), command.Printable(name))
	})
	return cmd
}
