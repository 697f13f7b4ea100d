package command

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// mostSuggested limits how many names an error suggests.
const mostSuggested = 5

// unknownFlag adds to the error about a flag that a command doesn't have which one may have been meant.
func unknownFlag(cmd *cobra.Command, missing *pflag.NotExistError) error {
	name := missing.GetSpecifiedName()
	if short := missing.GetSpecifiedShortnames(); short != "" {
		if name, _, _ = strings.Cut(short, "="); !slices.Contains(flagNames(cmd), name) { // -limit for --limit
			return missing
		}
	}
	list := likely(name, flagNames(cmd))
	if same := flagSynonyms[name]; slices.Contains(flagNames(cmd), same) {
		list = []string{same}
	}
	if len(list) > 0 {
		return fmt.Errorf("%w: did you mean %s?", missing, alternatives(list, func(flag string) string { return "--" + flag }))
	}
	if !cmd.HasParent() {
		return missing
	}
	var sisters []string
	for _, c := range cmd.Parent().Commands() {
		if c != cmd && c.IsAvailableCommand() && slices.Contains(flagNames(c), name) {
			sisters = append(sisters, c.CommandPath())
		}
	}
	if len(sisters) > 0 {
		return fmt.Errorf("%w: it is a flag of %s", missing, alternatives(sisters[:min(mostSuggested, len(sisters))], quoted))
	}
	return missing
}

func quoted(text string) string { return fmt.Sprintf("%q", text) }

// alternatives joins names for "did you mean".
func alternatives(list []string, show func(string) string) string {
	texts := make([]string, len(list))
	for i, name := range list {
		texts[i] = show(name)
	}
	last := len(texts) - 1
	if last == 0 {
		return texts[0]
	}
	return strings.Join(texts[:last], ", ") + " or " + texts[last]
}

// likely returns the names that may be meant by a misspelt one, the most similar first: those that it
// begins or ends, and those that differ in a few characters.
func likely(name string, names []string) []string {
	type guess struct {
		name string
		far  int
	}
	var guesses []guess
	for _, n := range names {
		far := editDistance(name, n)
		switch near := min(2, len(name)/3); {
		case far <= near:
		case len(name) >= 3 && (strings.HasPrefix(n, name) || strings.HasSuffix(n, "-"+name)):
			far = near + 1
		case len(n) >= 4 && strings.HasPrefix(name, n+"-"):
			far = near + 2
		default:
			continue
		}
		guesses = append(guesses, guess{n, far})
	}
	slices.SortFunc(guesses, func(a, b guess) int {
		return cmp.Or(cmp.Compare(a.far, b.far), cmp.Compare(len(a.name), len(b.name)), strings.Compare(a.name, b.name))
	})
	var list []string
	for _, g := range guesses[:min(mostSuggested, len(guesses))] {
		list = append(list, g.name)
	}
	return list
}

// editDistance returns how many characters must be inserted, removed, replaced or swapped with the next one
// to make `b` of `a` (optimal string alignment).
func editDistance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

// synonyms are words that people try for commands, and the names that Purser has for them.
var synonyms = map[string][]string{
	"rm": {"delete", "remove"}, "remove": {"delete"}, "del": {"delete", "remove"}, "delete": {"remove", "revoke"}, "ls": {"list"},
	"add": {"create"}, "new": {"create", "add"}, "make": {"create", "add"}, "create": {"add", "set"}, "set": {"update", "create"},
	"get": {"show", "list"}, "describe": {"show"}, "inspect": {"show"}, "info": {"show"}, "edit": {"update"}, "change": {"update"}, "mv": {"move"}, "log": {"audit"}, "logs": {"audit"},
	"repository": {"repo"}, "repositories": {"repo"}, "ns": {"namespace"}, "account": {"user"}, "accounts": {"user"},
	"start": {"serve"}, "run": {"serve"}, "server": {"serve"}, "retention": {"policy"}, "protect": {"protection"}, "hook": {"webhook"},
}

// flagSynonyms are flags that other programs have, by the names of ours.
var flagSynonyms = map[string]string{
	"listen": "addr", "port": "addr", "bind": "addr", "address": "addr", "host": "addr", "data": "data-dir", "datadir": "data-dir", "root": "data-dir",
	"force": "yes", "registry": "server", "url": "server",
}

// byClients are words for what clients do, or what other programs call so, with what one writes instead.
var byClients = map[string]string{
	"push": "clients push: docker push HOST/NAMESPACE/NAME:TAG", "pull": "clients pull: docker pull HOST/NAMESPACE/NAME:TAG",
	"images": `write "purser repo list"`, "tags": `write "purser tag list NAMESPACE/NAME"`, "ls": `write "purser repo list"`, "ps": `write "purser hold list", which says what runs`,
}

// unknownCommand returns the error for a word that is no subcommand, with those that may have been meant.
func unknownCommand(cmd *cobra.Command, name string) error {
	if hint := byClients[name]; hint != "" && !cmd.HasParent() {
		return fmt.Errorf("unknown command %q for %q: %s", name, cmd.CommandPath(), hint)
	}
	var names, subcommands []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names, subcommands = append(names, c.Name()), append(subcommands, c.CommandPath())
		}
	}
	found := likely(name, names)
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && slices.Contains(synonyms[name], c.Name()) && !slices.Contains(found, c.Name()) {
			found = append(found, c.Name())
		}
	}
	for i, s := range found {
		found[i] = cmd.CommandPath() + " " + s
	}
	if len(found) == 0 { // perhaps the group before it is missing
		for _, group := range cmd.Commands() {
			for _, c := range group.Commands() {
				if c.Name() == name && c.IsAvailableCommand() && len(found) < mostSuggested {
					found = append(found, c.CommandPath())
				}
			}
		}
	}
	err := fmt.Errorf("unknown command %q for %q", name, cmd.CommandPath())
	if len(found) > 0 {
		return fmt.Errorf("%w: did you mean %s?", err, alternatives(found, quoted))
	}
	if cmd.HasParent() && len(subcommands) > 0 && len(subcommands) <= mostSuggested { // "grant acme ann reader"
		return fmt.Errorf("%w: write %s", err, alternatives(subcommands, quoted))
	}
	return err
}

// flagError rewords an error of pflag: one about a bad value names the flag, the value and the possible
// values, and one about an unknown flag names those that may have been meant. Other errors are returned
// unchanged.
func flagError(cmd *cobra.Command, err error) error {
	if missing, ok := errors.AsType[*pflag.NotExistError](err); ok {
		return unknownFlag(cmd, missing)
	}
	bad, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	cause := bad.Unwrap()
	switch bad.GetFlag().Value.Type() {
	case "bool":
		cause = errors.New("write true or false")
	case "duration":
		cause = errors.New("write a duration such as 90s, 30m or 6h")
	}
	return fmt.Errorf("--%s: %q isn't possible: %w", bad.GetFlag().Name, bad.GetValue(), cause)
}
