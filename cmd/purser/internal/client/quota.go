package client

import (
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/policy"
)

func quotaCommand(src *command.Source) *cobra.Command {
	cmd := command.Group("quota", "Limit the bytes, repositories and tags of namespaces",
		quotaSetCommand(src), quotaShowCommand(src), quotaListCommand(src), quotaDeleteCommand(src), quotaRecountCommand(src))
	cmd.Long = "Limit the bytes, repositories and tags of namespaces. A soft limit sends a notice, a hard limit refuses pushes.\n" +
		"The bytes are those of the namespace's blobs, each counted once."
	return addServer(cmd)
}

// quotaOf returns the quota of a namespace, nil if it has none.
func quotaOf(cmd *cobra.Command, c *api.Client, namespace string) (*api.QuotaView, error) {
	if err := checkArg("NAMESPACE", namespace, checkNamespace); err != nil {
		return nil, err
	}
	list, err := api.ListQuota.Call(cmd.Context(), c, api.QuotaQuery{At: api.At{Namespace: namespace}})
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return &list[0], nil
}

// existingQuota is quotaOf for commands that need a quota. It returns the input that names it, too.
func existingQuota(cmd *cobra.Command, c *api.Client, namespace string) (*api.QuotaView, api.QuotaItem, error) {
	q, err := quotaOf(cmd, c, namespace)
	if err == nil && q == nil {
		err = fmt.Errorf("namespace %s has no quota", namespace)
	}
	if err != nil {
		return nil, api.QuotaItem{}, err
	}
	return q, api.QuotaItem{At: api.At{Namespace: namespace}, ID: q.ID}, nil
}

const noLimit = "none"

func checkQuotaSize(text string) error {
	if text == noLimit {
		return nil
	}
	_, err := policy.ParseSize(text)
	return err
}

func checkQuotaNumber(text string) error {
	if n, err := strconv.ParseInt(text, 10, 64); text != noLimit && (err != nil || n < 1) {
		return fmt.Errorf("write a number above 0, or %s", noLimit)
	}
	return nil
}

func checkPercent(text string) error {
	if n, err := strconv.Atoi(text); text != noLimit && (err != nil || n < 1 || n > 100) {
		return fmt.Errorf("write a percentage from 1 to 100, or %s", noLimit)
	}
	return nil
}

// givenLimit returns the value of a flag, 0 for no limit, and nil if the flag isn't given.
func givenLimit(cmd *cobra.Command, name, text string) *int64 {
	if !cmd.Flags().Changed(name) {
		return nil
	}
	n, err := policy.ParseSize(text)
	if err != nil { // noLimit
		n = 0
	}
	bytes := int64(n)
	return &bytes
}

func quotaSetCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "set NAMESPACE", Short: "Give a namespace a quota, or change it", Args: cobra.ExactArgs(1),
		Long: "Give a namespace a quota, or change it. What isn't named stays as it is; a new quota has a soft limit at 80% and a\n" +
			"hard one at 100%. Nothing is deleted, also if the namespace uses more than a limit already.",
		Example: "  purser quota set app --bytes 500GiB --repositories 100\n  purser quota set app --tags none --soft 90\n  purser quota set app --hard none",
	}
	var size, repositories, tags, soft, hard string
	textFlag(cmd, &size, "bytes", "", "most bytes of blobs: `SIZE`, such as 500GiB, or none", checkQuotaSize)
	textFlag(cmd, &repositories, "repositories", "", "most repositories: `N`, or none", checkQuotaNumber)
	textFlag(cmd, &tags, "tags", "", "most tags: `N`, or none", checkQuotaNumber)
	textFlag(cmd, &soft, "soft", "80", "send a notice when `PERCENT` of a limit are used, or none", checkPercent)
	textFlag(cmd, &hard, "hard", "100", "refuse what would exceed `PERCENT` of a limit, or none", checkPercent)
	format := command.AddFormat(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		form := api.QuotaForm{
			LimitBytes: givenLimit(cmd, "bytes", size), LimitRepositories: givenLimit(cmd, "repositories", repositories), LimitTags: givenLimit(cmd, "tags", tags),
		}
		steps := cmd.Flags().Changed("soft") || cmd.Flags().Changed("hard")
		if reflect.ValueOf(form).IsZero() && !steps {
			return command.Usagef("say what to limit: --bytes, --repositories or --tags")
		}
		old, err := quotaOf(cmd, c, args[0])
		if err != nil {
			return err
		}
		if old == nil || steps {
			if old != nil { // the flag that isn't given stays as it is
				soft, hard = stepsOf(cmd, *old, soft, hard)
			}
			form.Limits = limitsOf(soft, hard)
		}
		at := api.At{Namespace: args[0]}
		var q api.QuotaView
		if old == nil {
			q, err = api.CreateQuota.Call(cmd.Context(), c, api.QuotaNew{At: at, Body: form})
		} else {
			q, err = api.ChangeQuota.Call(cmd.Context(), c, api.QuotaChange{QuotaItem: api.QuotaItem{At: at, ID: old.ID}, Body: form})
		}
		if err != nil {
			return err
		}
		return format.Print(cmd.OutOrStdout(), q, func(w io.Writer) error { return printQuota(w, q) })
	})
	return cmd
}

// stepsOf returns the values of the flags --soft and --hard; for a flag that wasn't given, that of
// the quota.
func stepsOf(cmd *cobra.Command, q api.QuotaView, soft, hard string) (string, string) {
	if !cmd.Flags().Changed("soft") {
		soft = lowest(q, "Warning")
	}
	if !cmd.Flags().Changed("hard") {
		hard = lowest(q, "Reject")
	}
	return soft, hard
}

// lowest returns the lowest percentage of the quota's limits of a type.
func lowest(q api.QuotaView, kind string) string {
	for _, l := range q.Limits { // in the order of their percentages
		if l.Type == kind {
			return strconv.Itoa(l.Percent)
		}
	}
	return noLimit
}

func limitsOf(soft, hard string) []api.QuotaLimitForm {
	list := []api.QuotaLimitForm{}
	for _, l := range [][2]string{{"Warning", soft}, {"Reject", hard}} {
		if n, err := strconv.Atoi(l[1]); err == nil {
			list = append(list, api.QuotaLimitForm{Type: l[0], Threshold: n})
		}
	}
	return list
}

// ofLimit formats how much of a limit is used.
func ofLimit(used int64, most *int64, format func(int64) string) string {
	if most == nil {
		return format(used) + ", no limit"
	}
	return fmt.Sprintf("%s of %s (%.0f%%)", format(used), format(*most), 100*float64(used)/float64(*most))
}

func quotaState(q api.QuotaView) string {
	if !q.Counted {
		return "the content is being counted; nothing is refused yet"
	}
	var steps []string
	for _, l := range q.Limits {
		what := "notice at"
		if l.Type == "Reject" {
			what = "refuses above"
		}
		steps = append(steps, fmt.Sprintf("%s %d%%", what, l.Percent))
	}
	if len(steps) == 0 {
		return "neither notices nor refusals"
	}
	return strings.Join(steps, ", ")
}

func printQuota(w io.Writer, q api.QuotaView) error {
	return fields(w, "namespace", q.Namespace, "bytes", ofLimit(q.UsedBytes, q.LimitBytes, command.Size),
		"repositories", ofLimit(q.UsedRepositories, q.LimitRepositories, humanize.Comma),
		"tags", ofLimit(q.UsedTags, q.LimitTags, humanize.Comma), "limits", quotaState(q))
}

func quotaShowCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "show NAMESPACE", Short: "Show a namespace's quota and what it uses", Args: cobra.ExactArgs(1)}
	format := command.AddFormat(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		q, _, err := existingQuota(cmd, c, args[0])
		if err != nil {
			return err
		}
		return format.Print(cmd.OutOrStdout(), q, func(w io.Writer) error { return printQuota(w, *q) })
	})
	return cmd
}

func quotaListCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List the quotas of all namespaces", Args: cobra.NoArgs}
	listing := command.AddListing(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, _ []string) error {
		list, more, err := api.List(cmd.Context(), c, api.ListQuotas, api.QuotaPage{}, listing.Limit)
		if err != nil {
			return err
		}
		return command.PrintList(cmd, listing, list, more, func(q api.QuotaView) string { return q.Namespace }, func(w io.Writer) error {
			if len(list) == 0 {
				_, err := fmt.Fprintln(w, "No namespace has a quota.")
				return err
			}
			rows := make([][]string, len(list))
			for i, q := range list {
				rows[i] = []string{q.Namespace, ofLimit(q.UsedBytes, q.LimitBytes, command.Size), ofLimit(q.UsedRepositories, q.LimitRepositories, humanize.Comma),
					ofLimit(q.UsedTags, q.LimitTags, humanize.Comma), quotaState(q)}
			}
			return table(w, []string{"NAMESPACE", "BYTES", "REPOSITORIES", "TAGS", "LIMITS"}, rows, more)
		})
	})
	return cmd
}

func quotaDeleteCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "delete NAMESPACE", Short: "Take a namespace's quota away", Args: cobra.ExactArgs(1)}
	yes := command.AddYes(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		_, item, err := existingQuota(cmd, c, args[0])
		if err != nil {
			return err
		}
		if err := command.Confirm(cmd, *yes, "Delete the quota of %s? It may then grow without limit.", args[0]); err != nil {
			return err
		}
		if _, err := api.DeleteQuota.Call(cmd.Context(), c, item); err != nil {
			return err
		}
		return say(cmd, "Deleted the quota of %s.\n", args[0])
	})
	return cmd
}

func quotaRecountCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "recount NAMESPACE", Short: "Count the content of a namespace again", Args: cobra.ExactArgs(1),
		Long: "Count the content of a namespace again. Pushes go on meanwhile. This is never needed, unless somebody has changed\n" +
			"rows of the database by hand; purser check finds that.",
	}
	format := command.AddFormat(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		_, item, err := existingQuota(cmd, c, args[0])
		if err != nil {
			return err
		}
		q, err := api.RecountQuota.Call(cmd.Context(), c, item)
		if err != nil {
			return err
		}
		return format.Print(cmd.OutOrStdout(), q, func(w io.Writer) error { return printQuota(w, q) })
	})
	return cmd
}
