package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/internal/autoprune"
)

func policyCommand(src *command.Source) *cobra.Command {
	cmd := command.Group("policy", "Manage policies, which say which tags auto-pruning deletes",
		policyListCommand(src), policyCreateCommand(src), policyShowCommand(src), policyUpdateCommand(src), policyDeleteCommand(src))
	cmd.Long = "Say which tags auto-pruning deletes. TARGET is a namespace (app) or a repository (app/web);\n" +
		"add --repo for a repository whose name has no slash. With --defaults in place of a target: the\n" +
		"policies of all namespaces that have none of their own. Of the policies that apply to a repository\n" +
		"those by age and last use come first; those by number count the remaining tags. What a --keep flag of any\n" +
		"of them keeps, none deletes. See what a policy does beforehand with \"purser prune preview\"."
	return addServer(cmd)
}

// policyView is a policy in the API's format.
type policyView api.PolicyView

// tags describes the tags to which the policy applies.
func (p policyView) tags() (text string) {
	switch {
	case p.TagPattern == nil:
		text = "all"
	case p.TagPatternMatches:
		text = "that match " + *p.TagPattern
	default:
		text = "that don't match " + *p.TagPattern
	}
	if counted := p.CountingForm.String(); counted != "" {
		text += ", " + counted
	}
	if where := p.SelectorForm.String(); where != "" {
		text += ", " + where
	}
	if guard := (autoprune.SafeguardForm{
		Windows: p.Windows, MaxDeleted: p.MaxDeleted, MaxDeletedPercent: p.MaxDeletedPercent, NeverBelow: p.NeverBelow, RequireReporter: p.RequireReporter, KeepUntagged: p.KeepUntagged,
	}).String(); guard != "" {
		text += ", " + guard
	}
	if p.RemoveOrphans {
		text += ", and orphans after a day"
	}
	if p.Setting != "" {
		text += ", in every namespace (" + p.Setting + ")"
	}
	if keeps := keepsText(p.Keep); keeps != "" {
		text += ", but keep " + keeps
	}
	return text
}

func (p policyView) row() []string {
	if p.Problem != "" {
		return []string{p.UUID, "", "unreadable", "", "none: " + p.Problem, clock(&p.UpdatedAt)}
	}
	return []string{p.UUID, modeText(p.Mode), p.Method, fmt.Sprint(p.Value), p.tags(), clock(&p.UpdatedAt)}
}

var policyHeader = []string{"UUID", "MODE", "METHOD", "VALUE", "TAGS", "SAVED"}

// targetFlags are the flags that say how to read a command's argument TARGET. With
// `repository`, TARGET is a repository even if it has no slash. With `defaults`, there is
// no TARGET, and the command is about the registry's default policies.
type targetFlags struct{ repository, defaults bool }

// addTarget adds the flag --repo and, if `defaults` is set, --defaults to a command.
func addTarget(cmd *cobra.Command, defaults bool) *targetFlags {
	f := new(targetFlags)
	cmd.Flags().BoolVar(&f.repository, "repo", false, "TARGET is a repository, though it has no slash")
	if defaults {
		cmd.Flags().BoolVar(&f.defaults, "defaults", false, "the registry's default policies; leave TARGET out")
	}
	return f
}

// at splits the arguments into a target and `n` further arguments. It returns the target, its name
// for messages, and the further arguments in `rest`.
func (f *targetFlags) at(args []string, n int) (at api.At, name string, rest []string, err error) {
	if f.defaults {
		if len(args) != n {
			return at, "", nil, command.Usagef("with --defaults, leave TARGET out: give %d arguments, not %d", n, len(args))
		}
		return at, "The registry", args, nil
	}
	if len(args) != n+1 {
		return at, "", nil, command.Usagef("give %d arguments, not %d: the first is the name of a namespace or of a repository", n+1, len(args))
	}
	name, rest = args[0], args[1:]
	switch {
	case name == "":
		return at, "", nil, command.Usagef("the name of a namespace or of a repository is empty")
	case f.repository || strings.Contains(name, "/"):
		return api.At{Repository: name}, name, rest, nil
	}
	return api.At{Namespace: name}, name, rest, nil
}

// path is like at, and returns the target's path in the API.
func (f *targetFlags) path(args []string, n int) (path, name string, rest []string, err error) {
	at, name, rest, err := f.at(args, n)
	switch {
	case err != nil:
		return "", "", nil, err
	case at.Repository != "":
		return api.Path("repository", name), name, rest, nil
	case at.Namespace != "":
		return api.Path("organization", name), name, rest, nil
	}
	return "", name, rest, nil
}

func policyListCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "list TARGET", Short: "List the policies of a namespace, a repository, or the defaults", Args: cobra.ArbitraryArgs}
	format, target := command.AddFormat(cmd), addTarget(cmd, true)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		at, name, _, err := target.at(args, 0)
		if err != nil {
			return err
		}
		out, err := api.ListPolicies.Call(cmd.Context(), c, api.PolicyAt(at))
		if err != nil {
			return err
		}
		return format.Print(cmd.OutOrStdout(), out.Policies, func(w io.Writer) error {
			if len(out.Policies) == 0 {
				_, err := fmt.Fprintf(w, "%s has no policies of its own.\n", name)
				return err
			}
			rows := make([][]string, len(out.Policies))
			for i, p := range out.Policies {
				rows[i] = policyView(p).row()
			}
			return table(w, policyHeader, rows, false)
		})
	})
	return cmd
}

// policyFlags are the flags that describe a policy: either as JSON in one flag, or with a
// flag for each member.
type policyFlags struct {
	policyValues
	count countingFlags
	where selectorFlags
	guard safeguardFlags
	keep  keepFlags
}

// policyValues are the values of the flags, except for those of selectors, safeguards and keep rules.
type policyValues struct {
	json, preset, method, olderThan, maxBytes, untagged, pattern string
	numTags                                                      int
	not, orphans                                                 bool
}

func addPolicyFlags(cmd *cobra.Command) *policyFlags {
	f, flags := new(policyFlags), cmd.Flags()
	textFlag(cmd, &f.json, "policy", "", "the policy as `JSON`, in place of the flags below", checkPolicy)
	addPreset(cmd, &f.preset)
	textFlag(cmd, &f.method, "method", "", "`METHOD`: creation_date, number_of_tags, last_pulled, max_bytes or untagged (default: what the other flags ask for)",
		checkChoice(string(autoprune.CreationDate), string(autoprune.NumberOfTags), string(autoprune.LastPulled), string(autoprune.MaxBytes), string(autoprune.UntaggedManifests)))
	textFlag(cmd, &f.olderThan, "older-than", "", "tags pushed longer than `AGE` ago, such as 2w; with last_pulled, not used for so long", checkAge)
	flags.Var(command.Number(&f.numTags, 1, autoprune.MaxNumTags), "num-tags", "all tags but the newest `N`")
	f.count.add(cmd)
	textFlag(cmd, &f.maxBytes, "max-bytes", "", "the least recently used tags, until what remains of each repository stores at most this `SIZE`, such as 50GiB", checkSize)
	textFlag(cmd, &f.untagged, "untagged", "", "no tags: let garbage collection delete untagged manifests after `AGE`, such as 14d, and not before", checkAge)
	textFlag(cmd, &f.pattern, "pattern", "", "only tags in whose names this `REGEXP` is found; anchor it, as in '^v[0-9]+$'", checkPattern)
	flags.BoolVar(&f.not, "not-matching", false, "only tags in whose names the pattern isn't found")
	flags.BoolVar(&f.orphans, "remove-orphans", false, "also attached tags, such as signatures, that are a day old and whose image isn't in their repository")
	f.where.add(cmd)
	f.guard.add(cmd)
	f.keep.add(cmd)
	return f
}

// given says whether any policy flag was given.
func (f *policyFlags) given() bool {
	return f.policyValues != policyValues{} || f.count.given() || f.where.given() || f.guard.given() || f.keep.given()
}

// checkPolicy checks a policy's JSON.
func checkPolicy(text string) error {
	if !json.Valid([]byte(text)) {
		return errors.New(`it isn't JSON; write it like '{"method": "creation_date", "olderThan": "2w"}'`)
	}
	_, err := autoprune.ParsePolicy([]byte(text))
	return err
}

// check returns an error if the flags contradict each other.
func (f *policyFlags) check() error {
	switch {
	case f.json != "" && (f.policyValues != policyValues{json: f.json} || f.count.given() || f.where.given() || f.guard.given() || f.keep.given()):
		return command.Usagef("--policy has all of it: leave the other flags out")
	case f.json != "":
		return nil
	}
	if err := f.checkMethod(); err != nil {
		return err
	}
	if err := f.count.check(f.numTags != 0); err != nil {
		return err
	}
	switch {
	case f.keep.groupBy != "" && f.keep.newest == 0:
		return command.Usagef("--keep-group needs --keep-newest N")
	case f.keep.images && f.keep.newest == 0:
		return command.Usagef("--keep-count-images needs --keep-newest N")
	case f.keep.platforms && f.keep.newest == 0:
		return command.Usagef("--keep-per-platform needs --keep-newest N")
	case f.not && f.pattern == "":
		return command.Usagef("--not-matching needs --pattern REGEXP")
	}
	return nil
}

// checkMethod returns an error unless there is exactly the flag that the method needs.
func (f *policyFlags) checkMethod() error {
	methodFlags := []struct {
		given   bool
		name    string
		argued  string // with an argument
		methods []autoprune.Method
	}{
		{f.numTags != 0, "--num-tags", "--num-tags N", []autoprune.Method{autoprune.NumberOfTags}},
		{f.olderThan != "", "--older-than", "--older-than AGE, such as 2w", []autoprune.Method{autoprune.CreationDate, autoprune.LastPulled}},
		{f.maxBytes != "", "--max-bytes", "--max-bytes SIZE, such as 50GiB", []autoprune.Method{autoprune.MaxBytes}},
		{f.untagged != "", "--untagged", "--untagged AGE, such as 14d", []autoprune.Method{autoprune.UntaggedManifests}},
	}
	first := ""
	for _, flag := range methodFlags {
		switch own := slices.Contains(flag.methods, autoprune.Method(f.method)); {
		case flag.given && first != "":
			return command.Usagef("%s and %s are two policies: create one for each", first, flag.name)
		case flag.given && f.method != "" && !own:
			for _, other := range methodFlags {
				if slices.Contains(other.methods, autoprune.Method(f.method)) {
					return command.Usagef("%s isn't for --method %s, which needs %s", flag.name, f.method, other.argued)
				}
			}
		case flag.given:
			first = flag.name
		case own:
			return command.Usagef("--method %s needs %s", f.method, flag.argued)
		}
	}
	if first == "" {
		return command.Usagef("say which tags to delete: --older-than AGE, --num-tags N, --max-bytes SIZE, or --policy JSON; or, for manifests without tags, --untagged AGE")
	}
	return nil
}

// body returns the policy as JSON for the API.
func (f *policyFlags) body() (api.PolicyText, error) {
	filled, rules, err := f.withPreset()
	if err != nil {
		return nil, err
	}
	f = &filled
	if err := f.check(); err != nil || f.json != "" {
		return api.PolicyText(f.json), err
	}
	members := map[string]any{"method": autoprune.CreationDate}
	f.count.set(members)
	f.where.set(members)
	f.guard.set(members)
	switch {
	case f.method != "":
		members["method"] = f.method
	case f.numTags != 0:
		members["method"] = autoprune.NumberOfTags
	case f.maxBytes != "":
		members["method"] = autoprune.MaxBytes
	case f.untagged != "":
		members["method"] = autoprune.UntaggedManifests
	}
	if f.untagged != "" {
		members["olderThan"] = f.untagged
	}
	if f.olderThan != "" {
		members["olderThan"] = f.olderThan
	}
	if f.numTags != 0 {
		members["numTags"] = f.numTags
	}
	if f.maxBytes != "" {
		members["maxBytes"] = f.maxBytes
	}
	if f.pattern != "" {
		members["tagPattern"] = f.pattern
	}
	if f.not {
		members["tagPatternMatches"] = false
	}
	if f.orphans {
		members["removeOrphans"] = true
	}
	if rules = append(rules, f.keep.rules()...); len(rules) > 0 {
		members["keep"] = rules
	}
	return json.Marshal(members)
}

func policyCreateCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "create TARGET", Short: "Create a policy", Args: cobra.ArbitraryArgs,
		Long: "Create a policy. Its mode is observe unless --mode on says otherwise: it deletes nothing, and runs and previews show what it\n" +
			"would delete. If the policy does what it surely wasn't meant to do, by the tags that there are, the command shows that and asks.",
		Example: "  purser policy create app --num-tags 100 --mode on\n  purser policy create app/web --older-than 2w --pattern '^pr-'\n" +
			"  purser policy create --defaults --method last_pulled --older-than 90d\n" +
			"  purser policy create app/web --max-bytes 50GiB\n" +
			"  purser policy create app --num-tags 10 --per-branch\n  purser policy create app --untagged 14d\n" +
			"  purser policy create --presets\n  purser policy create app --preset pull-requests --older-than 3w\n" +
			"  purser policy create app --older-than 90d --keep-newest 10 --keep-versions releases\n" +
			"  purser policy create app --older-than 90d --mode observe --never-below 5 --window '22:00-06:00 Europe/Berlin'",
	}
	format, target, flags, yes := command.AddFormat(cmd), addTarget(cmd, true), addPolicyFlags(cmd), command.AddYes(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		at, _, _, err := target.at(args, 0)
		if err != nil {
			return err
		}
		body, err := flags.body()
		if err == nil {
			body, err = withMode(body, autoprune.Observe)
		}
		if err != nil {
			return err
		}
		out, err := confirmed(cmd, *yes, "Create the policy?", func(confirm api.PolicyConfirmation) (api.PolicyIDBody, error) {
			return api.CreatePolicy.Call(cmd.Context(), c, api.PolicyNew{PolicyAt: api.PolicyAt(at), PolicyConfirmation: confirm, Body: body})
		})
		if err != nil {
			return err
		}
		warn(cmd, out.Warnings)
		return format.Print(cmd.OutOrStdout(), out, func(w io.Writer) error {
			text := "Created policy " + out.UUID + "."
			if observes(body) {
				text += " It observes: it deletes nothing, and runs and previews show what it would delete. With --mode on, policies delete."
			}
			_, err := fmt.Fprintln(w, text)
			return err
		})
	})
	addPresets(cmd, format)
	return cmd
}

// warn prints warnings to stderr, so that they don't mix with the output.
func warn(cmd *cobra.Command, warnings []string) {
	for _, text := range warnings {
		fmt.Fprintf(cmd.ErrOrStderr(), "Warning: %s.\n", text) //nolint:errcheck // the operation itself has succeeded
	}
}

// policyItem makes a command that works on one policy.
func policyItem(src *command.Source, cmd *cobra.Command, run func(cmd *cobra.Command, c *api.Client, item api.PolicyItem) error) *cobra.Command {
	cmd.Args = cobra.ArbitraryArgs
	target := addTarget(cmd, true)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		at, _, rest, err := target.at(args, 1)
		if err != nil {
			return err
		}
		if err := checkArg("UUID", rest[0], checkUUID); err != nil {
			return err
		}
		return run(cmd, c, api.PolicyItem{PolicyAt: api.PolicyAt(at), UUID: rest[0]})
	})
	return cmd
}

func policyShowCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "show TARGET UUID", Short: "Show a policy"}
	format := command.AddFormat(cmd)
	return policyItem(src, cmd, func(cmd *cobra.Command, c *api.Client, item api.PolicyItem) error {
		found, err := api.GetPolicy.Call(cmd.Context(), c, item)
		if err != nil {
			return err
		}
		p := policyView(found)
		return format.Print(cmd.OutOrStdout(), p, func(w io.Writer) error {
			if p.Problem != "" {
				return fields(w, "uuid", p.UUID, "problem", p.Problem, "stored", p.Stored, "created", clock(&p.CreatedAt), "saved", clock(&p.UpdatedAt))
			}
			warn(cmd, p.Warnings)
			return fields(w, "uuid", p.UUID, "mode", modeText(p.Mode), "method", p.Method, "value", fmt.Sprint(p.Value), "tags", p.tags(), "grace", p.Grace, "active from", clock(p.ActiveFrom),
				"created", clock(&p.CreatedAt), "saved", clock(&p.UpdatedAt))
		})
	})
}

func policyUpdateCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "update TARGET UUID", Short: "Replace a policy"}
	cmd.Long = "Replace a policy. It keeps its mode unless --mode says otherwise. What the policy surely wasn't meant to do, and what other\n" +
		"policies would delete that it kept until now, is shown first, and the command asks."
	flags, yes := addPolicyFlags(cmd), command.AddYes(cmd)
	return policyItem(src, cmd, func(cmd *cobra.Command, c *api.Client, item api.PolicyItem) error {
		body, err := flags.body()
		if err != nil {
			return err
		}
		old, err := api.GetPolicy.Call(cmd.Context(), c, item)
		if err != nil {
			return err
		}
		if body, err = withMode(body, old.Mode); err != nil {
			return err
		}
		_, err = confirmed(cmd, *yes, "Save the policy?", func(confirm api.PolicyConfirmation) (api.None, error) {
			return api.UpdatePolicy.Call(cmd.Context(), c, api.PolicyChange{PolicyItem: item, PolicyConfirmation: confirm, Body: body})
		})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "Saved policy %s.\n", item.UUID)
		return err
	})
}

func policyDeleteCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "delete TARGET UUID", Short: "Delete a policy: nothing is deleted by it any more"}
	cmd.Long = "Delete a policy. What other policies would delete that it kept until now is shown first, and the command asks."
	yes := command.AddYes(cmd)
	return policyItem(src, cmd, func(cmd *cobra.Command, c *api.Client, item api.PolicyItem) error {
		_, err := confirmed(cmd, *yes, "Delete the policy?", func(confirm api.PolicyConfirmation) (api.PolicyIDBody, error) {
			return api.DeletePolicy.Call(cmd.Context(), c, api.PolicyRemoval{PolicyItem: item, PolicyConfirmation: confirm})
		})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "Deleted policy %s.\n", item.UUID)
		return err
	})
}
