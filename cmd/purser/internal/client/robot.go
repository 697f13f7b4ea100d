package client

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
)

func robotCommand(src *command.Source) *cobra.Command {
	cmd := command.Group("robot", "Manage robots: accounts of a namespace for programs",
		robotListCommand(src), robotCreateCommand(src), robotShowCommand(src), robotRotateCommand(src), robotLimitCommand(src),
		robotEnableCommand(src, "enable", "Let a robot log in again", true), robotEnableCommand(src, "disable", "Let a robot no longer log in", false),
		robotDeleteCommand(src), robotFederateCommand(src))
	cmd.Long = "Manage the robots of namespaces, which are accounts for programs such as build pipelines. ROBOT is\n" +
		"written NAMESPACE+NAME (acme+ci), or as two arguments (acme ci)."
	return addServer(cmd)
}

// robotArgs accepts a robot in one argument or two.
var robotArgs = cobra.RangeArgs(1, 2)

// robotItem returns the input that names the robot of the arguments.
func robotItem(args []string) (item api.RobotItem, err error) {
	namespace, short, found := strings.Cut(args[0], "+")
	if len(args) == 2 && !found {
		namespace, short, found = args[0], args[1], true
	} else if len(args) == 2 {
		return item, command.Usagef("ROBOT: write %s, or the namespace and the name as two arguments", args[0])
	}
	if !found || namespace == "" || short == "" || strings.ContainsAny(namespace+short, "+/") {
		return item, command.Usagef("ROBOT: %q isn't possible: write a namespace, a plus sign and a name, like acme+ci", strings.Join(args, " "))
	}
	return api.RobotItem{At: api.At{Namespace: namespace}, Robot: short}, nil
}

// withRobot is like withClient, for commands whose arguments name a robot.
func withRobot(src *command.Source, run func(cmd *cobra.Command, c *api.Client, item api.RobotItem) error) func(*cobra.Command, []string) error {
	return withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		item, err := robotItem(args)
		if err != nil {
			return err
		}
		return run(cmd, c, item)
	})
}

func robotListCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "list NAMESPACE", Short: "List the robots of a namespace", Args: cobra.ExactArgs(1)}
	listing := command.AddListing(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		list, more, err := api.List(cmd.Context(), c, api.ListRobots, api.RobotQuery{At: api.At{Namespace: args[0]}}, listing.Limit)
		if err != nil {
			return err
		}
		return command.PrintList(cmd, listing, list, more, func(r api.RobotView) string { return r.Name }, func(w io.Writer) error {
			rows := make([][]string, len(list))
			for i, r := range list {
				rows[i] = []string{r.Name, robotState(r), limited(r.Repositories), limited(r.Actions), clock(&r.CreatedAt), clock(r.LastUsedAt), r.Description}
			}
			return table(w, []string{"ROBOT", "STATE", "REPOSITORIES", "ACTIONS", "CREATED", "LAST USED", "DESCRIPTION"}, rows, more)
		})
	})
	return cmd
}

func robotState(r api.RobotView) string {
	if r.Enabled {
		return "enabled"
	}
	return "disabled"
}

// printRobotSecret prints the new secret of a robot, and how to log in with it. The command line
// to log in takes the secret from standard input, so that the secret gets into no list of
// processes.
func printRobotSecret(cmd *cobra.Command, c *api.Client, format *command.Format, done string, r api.RobotView) error {
	hint := ""
	if address := api.DockerRefuses(c.Server()); address != "" {
		hint = "Docker uses this address over http only if its daemon.json has " + api.DockerSetting(address) + "\n"
	}
	return printSecret(cmd, format, r, "%s robot %s.\nIts secret, which isn't told again: %s\nTo log in, give it on standard input:\n  docker login %s --username %s --password-stdin\n%s",
		done, r.Name, r.Token, c.Server().Host, r.Name, hint)
}

func robotCreateCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "create ROBOT", Short: "Create a robot, and print its secret", Args: robotArgs,
		Long: "Create a robot. Its secret is printed once. With --role it gets that role in its namespace; without,\n" +
			"it has no rights until \"purser grant set\" gives it a role or \"purser team add\" makes it a member of a team.\n" +
			"--repositories and --actions narrow what it may do with its roles.",
		Example: "  purser robot create acme+ci --role writer --repositories 'acme/app,acme/tools/**' --expires 90d",
	}
	format, limits, expires := command.AddFormat(cmd), addLimits(cmd), addExpiry(cmd, "its secret ends")
	var role, description string
	textFlag(cmd, &role, "role", "", "give it this `ROLE` in its namespace: "+strings.Join(roles, ", "), checkRole)
	cmd.Flags().StringVar(&description, "description", "", "`TEXT` for people")
	cmd.RunE = withRobot(src, func(cmd *cobra.Command, c *api.Client, item api.RobotItem) error {
		form := &api.NewRobotForm{Description: description, ExpiresAt: *expires}
		form.Repositories, form.Actions = limits.limits()
		made, err := api.CreateRobot.Call(cmd.Context(), c, api.RobotNew{RobotItem: item, Body: form})
		if err != nil {
			return err
		}
		var granted error
		if role != "" {
			of := api.RoleItem{At: item.At, User: item.Name()}
			if _, err := api.UserRoles.Change.Call(cmd.Context(), c, api.RoleChange{RoleItem: of, Body: api.RoleForm{Role: role}}); err != nil {
				granted = fmt.Errorf("robot %s was created, but has no role: %w", item.Name(), err)
			}
		}
		return errors.Join(granted, printRobotSecret(cmd, c, format, "Created", made))
	})
	return cmd
}

func robotShowCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "show ROBOT", Short: "Show a robot with its limits, roles and rules of federation", Args: robotArgs}
	format := command.AddFormat(cmd)
	cmd.RunE = withRobot(src, func(cmd *cobra.Command, c *api.Client, item api.RobotItem) error {
		var out struct {
			api.RobotView
			api.Permissions
			Federation []api.FederationRule `json:"federation"`
		}
		var err error
		if out.RobotView, err = api.GetRobot.Call(cmd.Context(), c, item); err != nil {
			return err
		}
		roles := api.RobotRoleQuery{RobotItem: item, Paging: api.Paging{Limit: 1}}
		if out.Permissions, err = api.ListRobotRoles.Call(cmd.Context(), c, roles); err != nil { // this answer has the role in the namespace
			return err
		}
		if out.Permissions.Permissions, _, err = api.List(cmd.Context(), c, api.ListRobotRoles, roles, 0); err != nil {
			return err
		}
		out.NextPage = ""
		if out.Federation, err = api.GetFederation.Call(cmd.Context(), c, item); err != nil {
			return err
		}
		return format.Print(cmd.OutOrStdout(), out, func(w io.Writer) error {
			pairs := []string{"robot", out.Name, "description", out.Description, "state", robotState(out.RobotView), "repositories", limited(out.RobotView.Repositories),
				"actions", limited(out.Actions), "created", clock(&out.CreatedAt), "last used", clock(out.LastUsedAt), "role", roleName(out.NamespaceRole)}
			for _, p := range out.Permissions.Permissions {
				pairs = append(pairs, "role in "+item.Namespace+"/"+p.Repository.Name, roleName(p.Role))
			}
			for _, s := range out.Secrets {
				pairs = append(pairs, "secret of "+clock(&s.CreatedAt), "ends: "+ends(s.ExpiresAt)+", last used: "+orNever(s.LastUsedAt))
			}
			for _, f := range out.Federation {
				pairs = append(pairs, "logs in by", federationText(f))
			}
			return fields(w, pairs...)
		})
	})
	return cmd
}

func orNever(t *time.Time) string {
	if t == nil {
		return "never"
	}
	return clock(t)
}

func federationText(f api.FederationRule) string {
	text := "tokens of " + f.Issuer
	if f.Subject != "" {
		text += ", subject " + f.Subject
	}
	if f.Audience != "" {
		text += ", audience " + f.Audience
	}
	for _, name := range slices.Sorted(maps.Keys(f.Claims)) {
		text += ", " + name + " " + f.Claims[name]
	}
	return text
}

func robotRotateCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "rotate ROBOT", Short: "Give a robot a new secret, and print it", Args: robotArgs,
		Long: "Give a robot a new secret, which is printed once. Its other secrets end at once, or after --overlap, so\n" +
			"that programs can change over.",
		Example: "  purser robot rotate acme+ci --overlap 1h",
	}
	format, expires := command.AddFormat(cmd), addExpiry(cmd, "the new secret ends")
	overlap := cmd.Flags().Duration("overlap", 0, "the other secrets stay valid for this `TIME`, up to 720h")
	cmd.RunE = withRobot(src, func(cmd *cobra.Command, c *api.Client, item api.RobotItem) error {
		if *overlap < 0 || *overlap > 30*24*time.Hour {
			return command.Usagef("--overlap: \"%v\" isn't possible: use a duration from 0s to 720h", *overlap)
		}
		form := &api.RobotRegeneration{Overlap: int((*overlap + time.Second - 1) / time.Second), ExpiresAt: *expires}
		r, err := api.RegenerateRobot.Call(cmd.Context(), c, api.RobotRenewal{RobotItem: item, Body: form})
		if err != nil {
			return err
		}
		return printRobotSecret(cmd, c, format, "Rotated the secret of", r)
	})
	return cmd
}

func robotLimitCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "limit ROBOT", Short: "Change what a robot may do at most, whatever its roles", Args: robotArgs,
		Example: "  purser robot limit acme+ci --actions pull\n  purser robot limit acme+ci --all-repositories --all-actions",
	}
	limits := addLimits(cmd)
	allRepositories := cmd.Flags().Bool("all-repositories", false, "end the limit of repositories")
	allActions := cmd.Flags().Bool("all-actions", false, "end the limit of actions")
	cmd.MarkFlagsMutuallyExclusive("repositories", "no-repositories", "all-repositories")
	cmd.MarkFlagsMutuallyExclusive("actions", "no-actions", "all-actions")
	cmd.RunE = withRobot(src, func(cmd *cobra.Command, c *api.Client, item api.RobotItem) error {
		repositories, actions := limits.limits()
		change := api.RobotChangeForm{
			Repositories: api.Limit{Set: *allRepositories || repositories != nil, Values: repositories},
			Actions:      api.Limit{Set: *allActions || actions != nil, Values: actions},
		}
		if !change.Repositories.Set && !change.Actions.Set {
			return command.Usagef("nothing is given to change: add --repositories, --actions, or one of these with \"no\" or \"all\" before it, such as --all-actions")
		}
		if _, err := api.ChangeRobot.Call(cmd.Context(), c, api.RobotChange{RobotItem: item, Body: change}); err != nil {
			return err
		}
		return say(cmd, "Changed the limits of robot %s.\n", item.Name())
	})
	return cmd
}

func robotEnableCommand(src *command.Source, verb, short string, enabled bool) *cobra.Command {
	return &cobra.Command{
		Use: verb + " ROBOT", Short: short, Args: robotArgs,
		RunE: withRobot(src, func(cmd *cobra.Command, c *api.Client, item api.RobotItem) error {
			if _, err := api.ChangeRobot.Call(cmd.Context(), c, api.RobotChange{RobotItem: item, Body: api.RobotChangeForm{Enabled: &enabled}}); err != nil {
				return err
			}
			return say(cmd, "Robot %s is %sd now.\n", item.Name(), verb)
		}),
	}
}

func robotDeleteCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "delete ROBOT", Short: "Delete a robot with its secrets and roles", Args: robotArgs}
	yes := command.AddYes(cmd)
	cmd.RunE = withRobot(src, func(cmd *cobra.Command, c *api.Client, item api.RobotItem) error {
		if err := command.Confirm(cmd, *yes, "Delete robot %s with its secrets and roles? That can't be undone.", item.Name()); err != nil {
			return err
		}
		if _, err := api.DeleteRobot.Call(cmd.Context(), c, item); err != nil {
			return err
		}
		return say(cmd, "Deleted robot %s.\n", item.Name())
	})
	return cmd
}

func robotFederateCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "federate ROBOT", Short: "Let tokens of a pipeline log in as a robot, without a secret", Args: robotArgs,
		Long: "Add a rule by which OpenID Connect tokens of another issuer, such as a build pipeline, log in as the\n" +
			"robot. \"purser robot show\" lists the rules, and --clear deletes all of them.",
		Example: "  purser robot federate acme+ci --issuer https://token.actions.githubusercontent.com \\\n" +
			"    --subject 'repo:acme/app:ref:refs/heads/main'",
	}
	var rule api.FederationRule
	var claims []string
	textFlag(cmd, &rule.Issuer, "issuer", "", "`URL` of the issuer, as in the tokens' claim iss", notEmpty)
	textFlag(cmd, &rule.Subject, "subject", "", "`PATTERN` of the tokens' claim sub, with * for any characters but a slash and ** for any", notEmpty)
	textFlag(cmd, &rule.Audience, "audience", "", "`NAME` that must be in the tokens' claim aud (default: the registry's host)", notEmpty)
	cmd.Flags().Var(listFlag{&claims, checkClaim}, "claim", "`NAME=PATTERN` of a further claim; may be repeated")
	remove := cmd.Flags().Bool("clear", false, "delete all rules of the robot")
	cmd.RunE = withRobot(src, func(cmd *cobra.Command, c *api.Client, item api.RobotItem) error {
		switch {
		case *remove && (rule.Issuer != "" || rule.Subject != "" || rule.Audience != "" || claims != nil):
			return command.Usagef("--clear deletes all rules: leave the other flags out")
		case *remove:
			if _, err := api.DeleteFederation.Call(cmd.Context(), c, item); err != nil {
				return err
			}
			return say(cmd, "Robot %s has no rules of federation now.\n", item.Name())
		case rule.Issuer == "":
			return command.Usagef("--issuer is missing: give the URL in the tokens' claim iss")
		}
		for _, claim := range claims {
			if rule.Claims == nil {
				rule.Claims = make(map[string]string)
			}
			key, pattern, _ := strings.Cut(claim, "=")
			rule.Claims[key] = pattern
		}
		rules, err := api.GetFederation.Call(cmd.Context(), c, item)
		if err != nil {
			return err
		}
		if _, err := api.SetFederation.Call(cmd.Context(), c, api.FederationChange{RobotItem: item, Replaces: rules.Seen(), Body: append(rules, rule)}); err != nil {
			return err
		}
		return say(cmd, "Tokens of %s can log in as robot %s now.\n", command.Printable(rule.Issuer), item.Name())
	})
	return cmd
}

func checkClaim(text string) error {
	if name, pattern, ok := strings.Cut(text, "="); !ok || name == "" || pattern == "" {
		return errors.New("write the claim's name, = and a pattern, like ref=refs/heads/main")
	}
	return nil
}
