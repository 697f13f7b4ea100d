package client

import (
	"io"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/hold"
)

func holdCommand(src *command.Source) *cobra.Command {
	cmd := command.Group("hold", "See who holds what",
		holdListCommand(src), holdShowCommand(src), holdDeleteCommand(src))
	cmd.Long = "What a reporter holds isn't deleted: a reporter is a cluster, a host or a pipeline that tells the registry which digests\n" +
		"it runs. Its holds end together when it hasn't reported for longer than its lease."
	return addServer(cmd)
}

// addNamespace adds the flag --namespace, without which reporters are those of the registry.
func addNamespace(cmd *cobra.Command) *string {
	namespace := new(string)
	textFlag(cmd, namespace, "namespace", "", "the `NAMESPACE` in which the holds are in force (default: the whole registry)", notEmpty)
	return namespace
}

func reporterCells(r hold.Reporter) []string {
	return []string{r.Name, r.Kind, r.State, humanize.Comma(r.Digests), clock(&r.Reported), clock(&r.Expires)}
}

func holdListCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List the reporters of a namespace, or of the whole registry", Args: cobra.NoArgs}
	listing, namespace := command.AddListing(cmd), addNamespace(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, _ []string) error {
		list, more, err := api.List(cmd.Context(), c, api.ListHoldReporters, api.HoldReporterQuery{Namespace: *namespace}, listing.Limit)
		if err != nil {
			return err
		}
		return command.PrintList(cmd, listing, list, more, func(r hold.Reporter) string { return r.Name }, func(w io.Writer) error {
			rows := make([][]string, len(list))
			for i, r := range list {
				rows[i] = reporterCells(r)
			}
			return table(w, []string{"REPORTER", "KIND", "STATE", "DIGESTS", "REPORTED", "ENDS"}, rows, more)
		})
	})
	return cmd
}

// shownReporter is a reporter with its digests, as holdShowCommand prints it.
type shownReporter struct {
	hold.Reporter
	Held []hold.Held `json:"held"`
}

func holdShowCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "show REPORTER", Short: "Show a reporter and the digests that it holds", Args: cobra.ExactArgs(1)}
	format, limit, namespace := command.AddFormat(cmd), addLimit(cmd), addNamespace(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		item := api.HoldReporterItem{Reporter: args[0], Namespace: *namespace}
		reporter, err := api.GetHoldReporter.Call(cmd.Context(), c, item)
		if err != nil {
			return err
		}
		held, more, err := api.List(cmd.Context(), c, api.ListHeldDigests, api.HeldDigestQuery{HoldReporterItem: item}, *limit)
		if err != nil {
			return err
		}
		r := shownReporter{reporter, held}
		return format.Print(cmd.OutOrStdout(), r, func(w io.Writer) error {
			err := fields(w, "reporter", r.Name, "kind", r.Kind, "state", r.State, "digests", humanize.Comma(r.Digests), "account", r.Account,
				"lease", (time.Duration(r.Lease) * time.Second).String(), "reported", clock(&r.Reported), "ends", clock(&r.Expires), "cluster", r.Cluster, "unresolved", unresolvedText(r.Reporter))
			if err != nil || len(r.Held) == 0 {
				return err
			}
			rows := make([][]string, len(r.Held))
			for i, h := range r.Held {
				rows[i] = []string{h.UsedBy, strings.Join(h.Names, " "), h.Digest.String(), clock(&h.Since)}
			}
			return table(w, []string{"USED BY", "IMAGE", "DIGEST", "SINCE"}, rows, more)
		})
	})
	return cmd
}

// unresolvedText says which images a reporter could not resolve; "" if there are none.
func unresolvedText(r hold.Reporter) string {
	if r.Unresolved == 0 {
		return ""
	}
	text := humanize.Comma(r.Unresolved)
	for i, image := range r.UnresolvedFirst {
		text += []string{": ", "; "}[min(i, 1)] + command.Printable(image)
	}
	if r.Unresolved > int64(len(r.UnresolvedFirst)) {
		text += "; …"
	}
	return text
}

func holdDeleteCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "delete REPORTER", Short: "Delete a reporter, which ends its holds at once", Args: cobra.ExactArgs(1)}
	yes, namespace := command.AddYes(cmd), addNamespace(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		if err := command.Confirm(cmd, *yes, "Delete reporter %s? What it holds may then be deleted.", args[0]); err != nil {
			return err
		}
		if _, err := api.DeleteHoldReporter.Call(cmd.Context(), c, api.HoldReporterItem{Reporter: args[0], Namespace: *namespace}); err != nil {
			return err
		}
		return say(cmd, "Deleted reporter %s.\n", args[0])
	})
	return cmd
}
