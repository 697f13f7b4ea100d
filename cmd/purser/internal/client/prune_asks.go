package client

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/policy"
)

// asksOf returns the policies that ask in a namespace.
func asksOf(cmd *cobra.Command, c *api.Client, namespace string) ([]autoprune.Ask, error) {
	list, _, err := api.List(cmd.Context(), c, api.ListAsks, api.AskQuery{PruneNamespace: api.PruneNamespace{Namespace: namespace}}, 0)
	return list, err
}

func pruneAsksCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "asks NAMESPACE", Short: "List the policies that ask for an approval", Args: cobra.ExactArgs(1),
		Long: "List the policies that deleted no tags of a namespace in its last run, because they would have deleted more than\n" +
			"their maxDeleted or maxDeletedPercent allows. To let a policy delete them, approve it or change it.",
	}
	listing := command.AddListing(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		list, err := asksOf(cmd, c, args[0])
		if err != nil {
			return err
		}
		list, more := command.Cut(listing, list)
		return command.PrintList(cmd, listing, list, more, func(a autoprune.Ask) string { return a.Policy }, func(w io.Writer) error {
			if len(list) == 0 {
				_, err := fmt.Fprintln(w, "No policy asks for an approval.")
				return err
			}
			rows := make([][]string, len(list))
			for i, a := range list {
				approved := ""
				if a.Approved != nil {
					approved = humanize.Comma(*a.Approved) + " until " + clock(a.Until)
				}
				of := string(a.Scope)
				if a.Repository != "" {
					of = a.Repository
				}
				rows[i] = []string{a.Policy, of, humanize.Comma(a.Would), humanize.Comma(a.Most), clock(&a.Asked), approved}
			}
			return table(w, []string{"POLICY", "OF", "WOULD DELETE", "MAY DELETE", "ASKED", "APPROVED"}, rows, more)
		})
	})
	return cmd
}

func pruneApproveCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "approve NAMESPACE POLICY", Short: "Let a policy that asks delete tags", Args: cobra.ExactArgs(2),
		Long: "Let a policy that asks for an approval delete as many tags of a namespace as it asks for, in one run. The approval\n" +
			"ends after 7 days, and when the policy is saved. The policy asks again if it would delete more than was approved.",
		Example: "  purser prune approve app f6d1a7b0-9a8c-4a7e-9b0e-3a4f6f1c2d3e\n" +
			"  purser prune approve app f6d1a7b0-9a8c-4a7e-9b0e-3a4f6f1c2d3e --tags 2000 --yes",
	}
	format, yes := command.AddFormat(cmd), command.AddYes(cmd)
	tags := 0
	cmd.Flags().Var(command.Number(&tags, 1, policy.MaxNumTags), "tags", "approve `N` tags, as there may be more when the policy is applied (default: the number that it asks for)")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		list, err := asksOf(cmd, c, args[0])
		if err != nil {
			return err
		}
		var uuids []string
		for _, a := range list {
			uuids = append(uuids, a.Policy)
		}
		id, err := onlyOf(args[1], uuids)
		if err != nil {
			return err
		}
		var ask autoprune.Ask
		for _, a := range list {
			if a.Policy == id {
				ask = a
			}
		}
		if ask.Policy == "" {
			return command.Refuse(fmt.Sprintf("policy %s doesn't ask for an approval in %s: \"purser prune asks %s\" lists those that do", id, args[0], args[0]))
		}
		most := int64(tags)
		if tags == 0 {
			most = ask.Would
		}
		if err := command.Confirm(cmd, *yes, "Let policy %s delete up to %s of %s, in one run? They can be restored until garbage collection deletes their manifests.",
			id, command.Count(most, "tag"), args[0]); err != nil {
			return err
		}
		ask, err = api.ApproveAsk.Call(cmd.Context(), c, api.AskApproval{
			PrunePolicy: api.PrunePolicy{PruneNamespace: api.PruneNamespace{Namespace: args[0]}, Policy: id},
			Body:        api.PruneApproval{Version: ask.Version, Tags: most},
		})
		if err != nil {
			return err
		}
		return format.Print(cmd.OutOrStdout(), ask, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "Policy %s may delete up to %s of %s in one run, until %s.\n", id, command.Count(most, "tag"), args[0], clock(ask.Until))
			return err
		})
	})
	return cmd
}

func pruneExceptCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "except REPOSITORY", Short: "Let only its own policies delete in a repository, or end that", Args: cobra.ExactArgs(1),
		Long: "Make a repository an exception: the policies of its namespace and of the registry delete nothing in it any more, at once.\n" +
			"Their keep rules go on to keep tags. The repository's own policies delete as before; without any, every tag stays.",
		Example: "  purser prune except library/app\n  purser prune except library/app --until 2030-01-02T15:04:05Z\n  purser prune except library/app --end",
	}
	yes := command.AddYes(cmd)
	until := cmd.Flags().String("until", "", "end it at `TIME`, such as 2030-01-02T15:04:05Z")
	end := cmd.Flags().Bool("end", false, "let the policies delete again")
	cmd.MarkFlagsMutuallyExclusive("until", "end")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		if *end {
			return endException(cmd, c, args[0], *yes)
		}
		in := api.ExceptionNew{InRepository: api.InRepository{Repository: args[0]}}
		if *until != "" {
			at, err := time.Parse(time.RFC3339, *until)
			if err != nil {
				return command.Usagef("--until: %q is no time like 2030-01-02T15:04:05Z", *until)
			}
			in.Body.Until = &at
		}
		if _, err := api.MakeException.Call(cmd.Context(), c, in); err != nil {
			return err
		}
		own, err := api.ListPolicies.Call(cmd.Context(), c, api.PolicyAt{Repository: args[0]})
		if err != nil {
			return err
		}
		if len(own.Policies) == 0 {
			return say(cmd, "%s is an exception. It has no policies of its own, so it keeps every tag.\n", args[0])
		}
		return say(cmd, "%s is an exception: only its own policies delete there.\n", args[0])
	})
	return cmd
}

func endException(cmd *cobra.Command, c *api.Client, repository string, yes bool) error {
	err := command.Confirm(cmd, yes, "End the exception of %s? The next run may delete tags of it: \"purser prune preview\" doesn't show them before.", repository)
	if err != nil {
		return err
	}
	done, err := api.EndException.Call(cmd.Context(), c, api.InRepository{Repository: repository})
	if err != nil {
		return err
	}
	if !done.Ended {
		return say(cmd, "%s was no exception.\n", repository)
	}
	return say(cmd, "The policies of the namespace and of the registry delete in %s again.\n", repository)
}

// exceptionsOf lists the exceptions of a namespace or repository.
func exceptionsOf(cmd *cobra.Command, c *api.Client, target string) ([]policies.Exception, error) {
	if strings.Contains(target, "/") {
		found, err := api.GetException.Call(cmd.Context(), c, api.InRepository{Repository: target})
		return found.Exceptions, err
	}
	list, _, err := api.List(cmd.Context(), c, api.ListExceptions, api.ExceptionQuery{PruneNamespace: api.PruneNamespace{Namespace: target}}, 0)
	return list, err
}

func pruneExceptionsCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "exceptions NAMESPACE", Short: "List the repositories in which only their own policies delete", Args: cobra.ExactArgs(1),
	}
	listing := command.AddListing(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		list, err := exceptionsOf(cmd, c, args[0])
		if err != nil {
			return err
		}
		list, more := command.Cut(listing, list)
		return command.PrintList(cmd, listing, list, more, func(e policies.Exception) string { return e.Repository }, func(w io.Writer) error {
			return table(w, exceptionColumns, exceptionRows(list), more)
		})
	})
	return cmd
}

var exceptionColumns = []string{"EXCEPTION", "SINCE", "UNTIL"}

func exceptionRows(list []policies.Exception) (rows [][]string) {
	for _, e := range list {
		until := "it is ended"
		if e.Until != nil {
			until = clock(e.Until)
		}
		rows = append(rows, []string{e.Repository, clock(&e.Since), until})
	}
	return rows
}

// printExceptions prints the exceptions of a namespace or repository, if there are any.
func printExceptions(cmd *cobra.Command, w io.Writer, c *api.Client, target string) error {
	list, err := exceptionsOf(cmd, c, target)
	if err != nil || len(list) == 0 {
		return err
	}
	return table(w, exceptionColumns, exceptionRows(list), false)
}

func pruneExemptionsCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "exemptions REPOSITORY[:TAG]", Short: "List the tags that undos have exempted from policies, or end that", Args: cobra.ExactArgs(1),
		Long: "List the tags of a repository that undos have restored, with the policies that don't select them since. With --end:\n" +
			"let the policies select them again, all or the one that is named; the next run may delete them.",
		Example: "  purser prune exemptions library/app\n  purser prune exemptions library/app:v1 --end",
	}
	listing, yes := command.AddListing(cmd), command.AddYes(cmd)
	end := cmd.Flags().Bool("end", false, "end the exemptions")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		repository, tag, _ := strings.Cut(args[0], ":")
		in := api.InRepository{Repository: repository}
		if *end {
			return endExemptions(cmd, c, api.ExemptionEnd{InRepository: in, Tag: tag}, args[0], *yes)
		}
		list, _, err := api.List(cmd.Context(), c, api.ListExemptions, api.ExemptionQuery{InRepository: in}, 0)
		if err != nil {
			return err
		}
		list = slices.DeleteFunc(list, func(e policies.Exemption) bool { return tag != "" && e.Tag != tag })
		list, more := command.Cut(listing, list)
		return command.PrintList(cmd, listing, list, more, func(e policies.Exemption) string { return e.Tag }, func(w io.Writer) error {
			rows := make([][]string, len(list))
			for i, e := range list {
				rows[i] = []string{e.Tag, e.Policy, clock(&e.Since)}
			}
			return table(w, []string{"TAG", "POLICY", "SINCE"}, rows, more)
		})
	})
	return cmd
}

// endExemptions ends the exemptions of a repository's tags, or of one of them.
func endExemptions(cmd *cobra.Command, c *api.Client, in api.ExemptionEnd, what string, yes bool) error {
	if err := command.Confirm(cmd, yes, "End the exemptions of %s? The next run may delete these tags.", what); err != nil {
		return err
	}
	done, err := api.EndExemptions.Call(cmd.Context(), c, in)
	if err != nil {
		return err
	}
	return say(cmd, "Ended %s.\n", command.Count(done.Ended, "exemption"))
}
