package client

import (
	"fmt"
	"io"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"

	"github.com/spf13/cobra"
)

func protectionCommand(src *command.Source) *cobra.Command {
	cmd := command.Group("protection", "Manage rules, which say which tags nobody deletes or moves",
		protectionListCommand(src), protectionAddCommand(src), protectionRemoveCommand(src))
	cmd.Long = "Say which tags no policy and nobody deletes or moves. TARGET is a namespace (app) or a repository\n" +
		"(app/web); with --all in place of a target the rule holds in the whole registry."
	return addServer(cmd)
}

// scopeFlags say to which repositories a protection rule applies: with `all`, to all of the
// registry, and otherwise to those of a target.
type scopeFlags struct {
	*targetFlags
	all bool
}

func addScope(cmd *cobra.Command) *scopeFlags {
	f := &scopeFlags{targetFlags: addTarget(cmd, false)}
	cmd.Flags().BoolVar(&f.all, "all", false, "all repositories; leave TARGET out")
	cmd.Args = cobra.ArbitraryArgs // the flags decide which arguments are valid
	return f
}

// at splits the arguments into a scope (a target, or none with --all) and `n` further arguments.
// It returns the scope, its name for messages, and the further arguments in `rest`.
func (f *scopeFlags) at(args []string, n int) (at api.At, name string, rest []string, err error) {
	if f.all {
		if len(args) != n {
			return at, "", nil, command.Usagef("with --all, leave TARGET out: give %d arguments, not %d", n, len(args))
		}
		return at, "the registry", args, nil
	}
	return f.targetFlags.at(args, n)
}

func protectionListCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "list TARGET", Short: "List the rules of a namespace, a repository, or the registry"}
	listing, scope := command.AddListing(cmd), addScope(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		at, name, _, err := scope.at(args, 0)
		if err != nil {
			return err
		}
		list, more, err := api.List(cmd.Context(), c, api.ListProtection, api.ProtectionQuery{At: at}, listing.Limit)
		if err != nil {
			return err
		}
		return command.PrintList(cmd, listing, list, more, func(r api.ProtectionRule) string { return r.UUID }, func(w io.Writer) error {
			if len(list) == 0 {
				_, err := fmt.Fprintf(w, "No rule of %s protects tags.\n", name)
				return err
			}
			rows := make([][]string, len(list))
			for i, r := range list {
				rows[i] = []string{r.UUID, r.Pattern, clock(&r.CreatedAt)}
				if r.Problem != "" {
					rows[i][1] = fmt.Sprintf("every tag, since %q can't be read", r.Pattern)
				}
			}
			return table(w, []string{"UUID", "TAGS THAT MATCH", "CREATED"}, rows, more)
		})
	})
	return cmd
}

func protectionAddCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "add TARGET REGEXP", Short: "Protect the tags in whose names REGEXP is found",
		Long:    "Protect the tags in whose names REGEXP is found. Anchor it, as in '^v[0-9.]+$', for whole names.",
		Example: "  purser protection add app/web '^v[0-9.]+$'\n  purser protection add --all '^latest$'",
	}
	format, scope := command.AddFormat(cmd), addScope(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		at, _, rest, err := scope.at(args, 1)
		if err != nil {
			return err
		}
		if err := checkArg("REGEXP", rest[0], checkPattern); err != nil {
			return err
		}
		out, err := api.CreateProtection.Call(cmd.Context(), c, api.ProtectionNew{At: at, Body: api.NewProtectionRule{Pattern: rest[0]}})
		if err != nil {
			return err
		}
		warn(cmd, out.Warnings)
		return format.Print(cmd.OutOrStdout(), out, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "Created rule %s.\n", out.UUID)
			return err
		})
	})
	return cmd
}

func protectionRemoveCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "remove TARGET RULE", Short: "Remove a rule: its tags can be deleted and moved again",
		Long:    "Remove a rule: its tags can be deleted and moved again. RULE is its pattern, its UUID, or how that begins.",
		Example: "  purser protection remove app/web '^v[0-9.]+$'",
	}
	scope, yes := addScope(cmd), command.AddYes(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		at, name, rest, err := scope.at(args, 1)
		if err != nil {
			return err
		}
		id, err := identifyRule(cmd.Context(), c, at, rest[0])
		if err != nil {
			return err
		}
		rule := id
		if rest[0] != id {
			rule = command.Printable(rest[0]) + " (" + id + ")"
		}
		if err := command.Confirm(cmd, *yes, "Remove rule %s of %s? Policies may then delete the tags that it protects.", rule, name); err != nil {
			return err
		}
		if _, err := api.DeleteProtection.Call(cmd.Context(), c, api.ProtectionItem{At: at, UUID: id}); err != nil {
			return err
		}
		return say(cmd, "Removed rule %s.\n", rule)
	})
	return cmd
}
