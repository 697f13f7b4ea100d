package client

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/policy"
)

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
		if err := checkArg("POLICY", args[1], checkUUID); err != nil {
			return err
		}
		in := api.PruneNamespace{Namespace: args[0]}
		s, err := api.GetPruneState.Call(cmd.Context(), c, in)
		if err != nil {
			return err
		}
		rest := pruneState(s).rest(args[1])
		if len(rest.Warnings) == 0 {
			return command.Refuse("policy " + args[1] + " waits for no confirmation in " + args[0])
		}
		warn(cmd, policy.Sentences(rest.Warnings))
		if err := command.Confirm(cmd, *yes, "Let policy %s delete tags of %s?", args[1], args[0]); err != nil {
			return err
		}
		_, err = api.ConfirmRest.Call(cmd.Context(), c, api.RestApproval{
			PrunePolicy: api.PrunePolicy{PruneNamespace: in, Policy: args[1]},
			Body:        api.RestConfirmation{Version: rest.Version, Codes: policy.Codes(rest.Warnings)},
		})
		if err != nil {
			return err
		}
		return say(cmd, "Policy %s may delete tags of %s.\n", args[1], args[0])
	})
	return cmd
}

// rest returns what is known of a policy that rests.
func (s pruneState) rest(policy string) autoprune.Rest {
	if s.Task != nil {
		for _, r := range s.Task.Rests {
			if r.Policy == policy {
				return r
			}
		}
	}
	return autoprune.Rest{}
}

// restTexts says which policies rest, and why.
func (s pruneState) restTexts() string {
	var texts []string
	for _, r := range s.Task.Rests {
		texts = append(texts, "policy "+r.Policy+": "+r.Text)
	}
	return strings.Join(texts, "; ")
}
