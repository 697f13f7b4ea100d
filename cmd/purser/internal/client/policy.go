package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/policy"
)

func policyCommand(src *command.Source) *cobra.Command {
	cmd := command.Group("policy", "Manage policies, which say which tags auto-pruning deletes",
		policyListCommand(src), policyCreateCommand(src), policyShowCommand(src), policyUpdateCommand(src), policyDeleteCommand(src))
	cmd.Long = "Say which tags auto-pruning deletes. TARGET is a namespace (app) or a repository (app/web);\n" +
		"add --repo for a repository whose name has no slash. With --defaults in place of a target: the\n" +
		"policies of all namespaces that have none of their own. Of the policies that apply to a repository\n" +
		"those by age and last use come first; those by number count the remaining tags. What a --keep flag of any\n" +
		"of them keeps, none deletes. See what a policy does beforehand with \"purser prune preview\".\n" +
		"POLICY is its UUID, or how that begins."
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
	if counted := p.Counting.String(); counted != "" {
		text += ", " + counted
	}
	if where := p.Selectors.String(); where != "" {
		text += ", " + where
	}
	guard := p.Safeguards
	guard.Mode, guard.Grace = "", policy.Age{} // the mode has a column of its own
	if guard := guard.String(); guard != "" {
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
	listing, target := command.AddListing(cmd), addTarget(cmd, true)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		at, name, _, err := target.at(args, 0)
		if err != nil {
			return err
		}
		out, err := api.ListPolicies.Call(cmd.Context(), c, api.PolicyAt(at))
		if err != nil {
			return err
		}
		list, more := command.Cut(listing, out.Policies)
		return command.PrintList(cmd, listing, list, more, func(p api.PolicyView) string { return p.UUID }, func(w io.Writer) error {
			if len(list) == 0 {
				_, err := fmt.Fprintf(w, "%s has no policies of its own.\n", name)
				return err
			}
			rows := make([][]string, len(list))
			for i, p := range list {
				rows[i] = policyView(p).row()
			}
			return table(w, policyHeader, rows, more)
		})
	})
	return cmd
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
			body, err = withMode(body, policy.Observe)
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
		id, err := identifyPolicy(cmd.Context(), c, api.PolicyAt(at), rest[0])
		if err != nil {
			return err
		}
		return run(cmd, c, api.PolicyItem{PolicyAt: api.PolicyAt(at), UUID: id})
	})
	return cmd
}

func policyShowCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "show TARGET POLICY", Short: "Show a policy"}
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
			return fields(w, "uuid", p.UUID, "mode", modeText(p.Mode), "method", p.Method, "value", fmt.Sprint(p.Value), "tags", p.tags(), "grace", p.Grace.String(), "active from", clock(p.ActiveFrom),
				"created", clock(&p.CreatedAt), "saved", clock(&p.UpdatedAt))
		})
	})
}

func policyUpdateCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "update TARGET POLICY", Short: "Replace a policy"}
	cmd.Long = "Replace a policy. It keeps its mode unless --mode says otherwise. With only --mode or other safeguards (--grace, --keep-untagged,\n" +
		"--max-deleted, --never-below, --require-reporter, --window), it selects the tags that it did before. What the policy surely wasn't\n" +
		"meant to do, and what other policies would delete that it kept until now, is shown first, and the command asks."
	flags, yes := addPolicyFlags(cmd), command.AddYes(cmd)
	return policyItem(src, cmd, func(cmd *cobra.Command, c *api.Client, item api.PolicyItem) error {
		old, text, err := storedPolicy(cmd, c, item)
		if err != nil {
			return err
		}
		change := api.PolicyChange{PolicyItem: item}
		if flags.areSafeguards() {
			change.Version = old.Version // what somebody else has saved since stays
		}
		body, err := flags.change(old, text)
		if err != nil {
			return err
		}
		if body, err = withMode(body, old.Mode); err != nil {
			return err
		}
		_, err = confirmed(cmd, *yes, "Save the policy?", func(confirm api.PolicyConfirmation) (api.None, error) {
			change.PolicyConfirmation, change.Body = confirm, body
			return api.UpdatePolicy.Call(cmd.Context(), c, change)
		})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "Saved policy %s.\n", item.UUID)
		return err
	})
}

// storedPolicy returns a policy as the registry has it, and its JSON: a newer registry may have members in
// it that this command doesn't know.
func storedPolicy(cmd *cobra.Command, c *api.Client, item api.PolicyItem) (p api.PolicyView, text []byte, err error) {
	body, err := api.GetPolicy.Open(cmd.Context(), c, item)
	if err != nil {
		return p, nil, err
	}
	defer body.Close()
	if text, err = io.ReadAll(body); err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err != nil {
		return p, nil, fmt.Errorf("reading the policy: %w", err)
	}
	return p, text, nil
}

func policyDeleteCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "delete TARGET POLICY", Short: "Delete a policy: nothing is deleted by it any more"}
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

// modeText returns the mode that a policy shows; an answer of the API leaves out the mode on.
func modeText(mode policy.Mode) string {
	if mode == "" {
		return string(policy.On)
	}
	return string(mode)
}

// withMode gives a policy a mode, if its JSON has none.
func withMode(body api.PolicyText, mode policy.Mode) (api.PolicyText, error) {
	members := make(map[string]json.RawMessage)
	if err := json.Unmarshal(body, &members); err != nil {
		return nil, err
	}
	if given := members["mode"]; mode == "" || given != nil && string(given) != "null" {
		return body, nil
	}
	text, err := json.Marshal(mode)
	if err != nil {
		return nil, err
	}
	members["mode"] = text
	return json.Marshal(members)
}

// observes returns whether a policy observes.
func observes(body api.PolicyText) bool {
	var members struct{ Mode policy.Mode }
	return json.Unmarshal(body, &members) == nil && members.Mode == policy.Observe
}

// confirmed changes a policy by `change`, which gets what the user confirms. If the registry has
// warnings, it prints them and asks the user, and then confirms those that the user has seen. With
// `yes`, it confirms all.
func confirmed[O any](cmd *cobra.Command, yes bool, question string, change func(api.PolicyConfirmation) (O, error)) (O, error) {
	answer := "none"
	if yes {
		answer = "all"
	}
	for {
		out, err := change(api.PolicyConfirmation{Confirm: answer})
		list := warningsOf(err)
		if len(list) == 0 || yes {
			return out, err
		}
		warn(cmd, policy.Sentences(list))
		if err := command.Confirm(cmd, false, "%s", question); err != nil {
			return out, err
		}
		for _, code := range policy.Codes(list) { // those of the time before are among them, or gone
			answer += "," + string(code)
		}
	}
}

// warningsOf returns the warnings that the registry wants to be confirmed.
func warningsOf(err error) []policy.Warning {
	refused, ok := errors.AsType[*api.Error](err)
	if !ok || refused.Status != http.StatusConflict {
		return nil
	}
	var details struct{ Warnings []policy.Warning }
	if json.Unmarshal(refused.Details, &details) != nil {
		return nil
	}
	return details.Warnings
}

func pruneConfirmCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "confirm NAMESPACE POLICY", Short: "Let a policy that rests because of warnings delete tags", Args: cobra.ExactArgs(2),
		Long: "Before a policy deletes its first tag of a namespace, it is judged by the tags that there are. If it would do what it surely\n" +
			"wasn't meant to do and what nobody has confirmed, it rests; \"purser prune status\" says so. This command shows the\n" +
			"warnings and confirms them.",
	}
	yes := command.AddYes(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		in := api.PruneNamespace{Namespace: args[0]}
		s, err := api.GetPruneState.Call(cmd.Context(), c, in)
		if err != nil {
			return err
		}
		id, err := onlyOf(args[1], pruneState(s).resting())
		if err != nil {
			return err
		}
		rest := pruneState(s).rest(id)
		if len(rest.Warnings) == 0 {
			return command.Refuse("policy " + id + " waits for no confirmation in " + args[0])
		}
		warn(cmd, policy.Sentences(rest.Warnings))
		if err := command.Confirm(cmd, *yes, "Let policy %s delete tags of %s?", id, args[0]); err != nil {
			return err
		}
		_, err = api.ConfirmRest.Call(cmd.Context(), c, api.RestApproval{
			PrunePolicy: api.PrunePolicy{PruneNamespace: in, Policy: id},
			Body:        api.RestConfirmation{Version: rest.Version, Codes: policy.Codes(rest.Warnings)},
		})
		if err != nil {
			return err
		}
		return say(cmd, "Policy %s may delete tags of %s.\n", id, args[0])
	})
	return cmd
}

// rest returns what is known of a policy that rests.
func (s pruneState) rest(policy string) policies.Rest {
	if s.Task != nil {
		for _, r := range s.Task.Rests {
			if r.Policy == policy {
				return r
			}
		}
	}
	return policies.Rest{}
}

// resting returns the UUIDs of the policies that rest.
func (s pruneState) resting() (uuids []string) {
	if s.Task != nil {
		for _, r := range s.Task.Rests {
			uuids = append(uuids, r.Policy)
		}
	}
	return uuids
}

// restTexts says which policies rest, and why.
func (s pruneState) restTexts() string {
	var texts []string
	for _, r := range s.Task.Rests {
		texts = append(texts, "policy "+r.Policy+": "+r.Text)
	}
	return strings.Join(texts, "; ")
}
