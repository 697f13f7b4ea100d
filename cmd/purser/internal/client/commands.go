// Package client has the commands that are clients of the management API. They show and
// change a registry's namespaces, repositories, tags, policies, pruning, holds, pull statistics,
// protection rules, webhooks, accounts, robots, teams and roles, and show its audit log. They
// need the registry's URL, but no configuration.
//
// Commands take passwords from the terminal or from standard input, and print a new secret once
// to standard output. So no secret is in the list of processes, and none is in an error.
//
// The commands have their own types for lists (repositories, tags, manifests, entries of the audit
// log). "-o json" prints these types, which have fewer members than the API's answers, since
// scripts rely on them. If the API and a command both show a whole answer, such as the state of
// garbage collection, its type is in package internal/api.
package client

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/oci"
)

// Commands returns the commands of this package. `ofUser` become subcommands of the command
// "user".
func Commands(src *command.Source, ofUser ...*cobra.Command) []*cobra.Command {
	return []*cobra.Command{
		findCommand(src), namespaceCommand(src), repoCommand(src), tagCommand(src), manifestCommand(src), auditCommand(src), protectionCommand(src), quotaCommand(src), usageCommand(src), trashCommand(src),
		copyCommand(src), policyCommand(src), pruneCommand(src), holdCommand(src), reportCommand(src), pullsCommand(src), webhookCommand(src),
		loginCommand(src), logoutCommand(src), userCommand(src, ofUser...), robotCommand(src), tokenCommand(src), sessionCommand(src), teamCommand(src), grantCommand(src), clockCommand(src),
	}
}

// findDigest returns the digest that the user has written for a manifest of a repository; `what` names it
// in errors. It may be short, if only one manifest of the repository is meant. It may begin with the
// repository, REPOSITORY@DIGEST, which must then be this one.
func findDigest(ctx context.Context, c *api.Client, what, repository, text string) (oci.Digest, error) {
	of, digest := command.SplitDigest(text)
	if of != "" && of != repository {
		return oci.Digest{}, command.Usagef("%s: %q is a manifest of another repository than %s", what, text, repository)
	}
	return command.WholeDigest(ctx, what, repository, digest, func(ctx context.Context, in api.ShortDigestItem) (api.ShortManifests, error) {
		return api.FindShortDigest.Call(ctx, c, in)
	})
}

// digestTags is how many earlier states of a tag are looked at for a short digest.
const digestTags = 10_000

// findEarlierDigest is like findDigest, for a manifest to which a tag pointed. A short digest then means
// none to which the tag never pointed: it was seen in the history of the tag.
func findEarlierDigest(ctx context.Context, c *api.Client, of api.TagItem, text string) (oci.Digest, error) {
	const what = "DIGEST"
	d, err := findDigest(ctx, c, what, of.Repository, text)
	_, written := command.SplitDigest(text)
	if err != nil || written == d.String() {
		return d, err
	}
	in := api.TagQuery{InRepository: of.InRepository, Specific: of.Tag, OnlyActive: api.Some(false)}
	states, more, err := api.List(ctx, c, api.ListTags, in, digestTags)
	if err != nil {
		return oci.Digest{}, err
	}
	if !slices.ContainsFunc(states, func(t api.ListedTag) bool { return t.ManifestDigest == d }) {
		if more {
			return oci.Digest{}, command.Usagef("%s: %s:%s didn't point to %s, the only manifest whose digest begins so, in the last %d of its states: give the whole digest if it is meant", what, of.Repository, of.Tag, d, digestTags)
		}
		return oci.Digest{}, command.Usagef("%s: %s:%s never pointed to %s, the only manifest whose digest begins so: give the whole digest if it is meant", what, of.Repository, of.Tag, d)
	}
	return d, nil
}

const (
	// completionMost limits how many completions a shell gets.
	completionMost  = "100"
	mostCompletions = 100 // the same in inputs of operations
)

// completer returns those possible values of a command's argument that begin with `word`.
// `args` are the arguments before this one. `more` says that the values are only beginnings
// of arguments, so that the shell must not add a space.
type completer func(ctx context.Context, c *api.Client, args []string, word string) (list []string, more bool)

// completions maps a command's path to the completers of its arguments, in their order.
var completions = map[string][]completer{
	"usage": {namespaces}, "namespace show": {namespaces}, "namespace delete": {namespaces},
	"repo list": {namespaces}, "repo show": {repositoryNames}, "repo delete": {repositoryNames},
	"tag list": {repositoryNames}, "tag show": {tags}, "tag move": {tags, digests}, "tag delete": {tags}, "tag immutable": {tags}, "tag expire": {tags}, "tag restore": {tags, digests}, "tag undo": {repositoryNames},
	"manifest untagged": {repositoryNames}, "manifest show": {tags},
	"audit list": {targets}, "audit export": {targets},
	"protection list": {targets}, "protection add": {targets}, "protection remove": {targets, itemsOf("/tagprotection", "rules")},
	"policy list": {targets}, "policy create": {targets}, "policy show": {targets, policyIDs},
	"policy update": {targets, policyIDs}, "policy delete": {targets, policyIDs},
	"prune preview": {targets}, "prune forecast": {targets}, "prune run": {namespaces}, "prune status": {namespaces}, "prune runs": {namespaces},
	"prune asks": {namespaces}, "prune except": {repositoryNames}, "prune exceptions": {namespaces}, "namespace labels": {namespaces}, "prune approve": {namespaces, pruneAsks}, "prune confirm": {namespaces, pruneRests},
	"quota set": {namespaces}, "quota show": {namespaces}, "quota delete": {namespaces}, "quota recount": {namespaces},
	"webhook list": {namespaces}, "webhook create": {namespaces}, "webhook show": {namespaces, webhooks, deliveries},
	"webhook update": {namespaces, webhooks}, "webhook delete": {namespaces, webhooks}, "webhook test": {namespaces, webhooks},
	"webhook deliveries": {namespaces, webhooks}, "webhook redeliver": {namespaces, webhooks, deliveries},
	"pulls history": {targets}, "pulls top": {targets}, "pulls unpulled": {namespaces},
	"repo visibility": {repositoryNames, words("public", "private")},
	"robot list":      {namespaces}, "robot create": {namespaces}, "robot show": {robots}, "robot rotate": {robots}, "robot limit": {robots},
	"robot enable": {robots}, "robot disable": {robots}, "robot delete": {robots}, "robot federate": {robots},
	"user show": {users}, "user password": {users}, "user enable": {users}, "user disable": {users}, "user delete": {users}, "user revoke": {users}, "user rebind": {users}, "user admin": {users, onOff},
	"token revoke": {tokens},
	"team list":    {namespaces}, "team create": {namespaces}, "team delete": {namespaces, teams}, "team members": {namespaces, teams},
	"team add": {namespaces, teams, users}, "team remove": {namespaces, teams, members}, "team groups": {namespaces, teams},
	"grant list": {targets}, "grant set": {targets, words(roles...)}, "grant remove": {targets},
	"prune show": {pruneRuns}, "prune undo": {pruneRuns}, "prune defaults": {namespaces, onOff},
}

// Complete adds shell completion to the arguments of the commands below `root`. The values
// come from the registry to which the command would send its requests; if it can't be
// reached, there are none.
func Complete(src *command.Source, root *cobra.Command) {
	for path, of := range completions {
		cmd, _, err := root.Find(strings.Fields(path))
		if err != nil {
			panic(err) // completions names a command that doesn't exist
		}
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			return completeArgument(src, cmd, of, args, word)
		}
	}
}

func completeArgument(src *command.Source, cmd *cobra.Command, of []completer, args []string, word string) ([]string, cobra.ShellCompDirective) {
	const nothing = cobra.ShellCompDirectiveNoFileComp
	for _, name := range []string{"defaults", "all"} { // with these flags there is no TARGET
		if on, err := cmd.Flags().GetBool(name); err == nil && on {
			of = of[1:]
		}
	}
	n := len(args)
	if cmd.Name() == "delete" && cmd.Parent().Name() == "tag" {
		n = 0 // every argument is a tag
	}
	c, err := src.Client(cmd)
	if err != nil || n >= len(of) {
		return nil, nothing
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), command.CompletionTime)
	defer cancel()
	list, more := of[n](ctx, c, args, word)
	if more {
		return list, nothing | cobra.ShellCompDirectiveNoSpace
	}
	return list, nothing
}

func namespaces(ctx context.Context, c *api.Client, _ []string, word string) (list []string, more bool) {
	page, err := api.ListNamespaces.Call(ctx, c, api.NamespaceQuery{NameFilter: api.NameFilter{Prefix: word}, Limit: mostCompletions})
	if err != nil {
		return nil, false
	}
	for _, n := range page.Namespaces {
		list = append(list, n.Name)
	}
	return list, false
}

func repositoryNames(ctx context.Context, c *api.Client, _ []string, word string) (list []string, more bool) {
	page, err := api.ListRepositories.Call(ctx, c, api.RepositoryQuery{NameFilter: api.NameFilter{Prefix: word}, Limit: mostCompletions})
	if err != nil {
		return nil, false
	}
	for _, r := range page.Repositories {
		list = append(list, r.Repository)
	}
	return list, false
}

// targets completes namespaces and repositories.
func targets(ctx context.Context, c *api.Client, args []string, word string) (list []string, more bool) {
	if !strings.Contains(word, "/") {
		list, _ = namespaces(ctx, c, args, word)
	}
	all, _ := repositoryNames(ctx, c, args, word)
	for _, r := range all {
		if strings.Contains(r, "/") { // without a slash it would be taken for a namespace
			list = append(list, r)
		}
	}
	return list, false
}

func tagPage(ctx context.Context, c *api.Client, repository, prefix string) []api.ListedTag {
	page, err := api.ListTags.Call(ctx, c, api.TagQuery{InRepository: api.InRepository{Repository: repository}, NameFilter: api.NameFilter{Prefix: prefix}, Limit: mostCompletions})
	if err != nil {
		return nil
	}
	return page.Tags
}

// tags completes an argument REPOSITORY:TAG: first the repository with its colon, then the
// tags of that repository.
func tags(ctx context.Context, c *api.Client, args []string, word string) (list []string, more bool) {
	repository, prefix, found := strings.Cut(word, ":")
	if !found {
		list, _ = repositoryNames(ctx, c, args, word)
		for i := range list {
			list[i] += ":"
		}
		return list, true
	}
	for _, t := range tagPage(ctx, c, repository, prefix) {
		list = append(list, repository+":"+t.Name)
	}
	return list, false
}

// digests completes an argument that is a digest. It offers the digests to which tags in
// the first argument's repository point.
func digests(ctx context.Context, c *api.Client, args []string, word string) (list []string, more bool) {
	repository, _, _ := strings.Cut(args[0], ":")
	for _, t := range tagPage(ctx, c, repository, "") {
		for _, d := range []string{t.ManifestDigest.String(), t.ManifestDigest.Hex()} {
			if strings.HasPrefix(d, word) {
				list = append(list, cobra.CompletionWithDesc(d, t.Name))
				break
			}
		}
	}
	return list, false
}

func policyIDs(ctx context.Context, c *api.Client, args []string, word string) ([]string, bool) {
	return itemsOf("/autoprunepolicy", "policies")(ctx, c, args, word)
}

// itemsOf returns a completer for items, such as policies, that belong to the target in the first
// argument: by their names, if they have some that people know, else by their UUIDs. What begins like a
// UUID is completed to one in any case. The API lists the items in the member `member` of its answer, at
// `path` below the target's path.
func itemsOf(path, member string) completer {
	return func(ctx context.Context, c *api.Client, args []string, word string) (list []string, more bool) {
		at := "" // the registry's
		if len(args) > 0 {
			var err error
			if at, _, _, err = (&targetFlags{}).path(args[:1], 0); err != nil {
				return nil, false
			}
		}
		var answer map[string]json.RawMessage
		var items []struct{ UUID, Method, Pattern, Title, URL, Event, State string }
		if c.Get(ctx, at+path, nil, &answer) != nil || json.Unmarshal(answer[member], &items) != nil {
			return nil, false
		}
		for _, item := range items {
			name, about := cmp.Or(item.Pattern, item.Title, item.URL), item.Method+item.Event+" "+item.State
			if item.Title != "" {
				about = item.URL
			}
			switch {
			case name != "" && strings.HasPrefix(name, word) && command.Printable(name) == name:
				list = append(list, cobra.CompletionWithDesc(name, command.Printable(strings.TrimSpace(about))))
			case (name == "" || word != "") && strings.HasPrefix(item.UUID, word):
				list = append(list, cobra.CompletionWithDesc(item.UUID, command.Printable(strings.TrimSpace(name+" "+about))))
			}
		}
		return list, false
	}
}

func webhooks(ctx context.Context, c *api.Client, args []string, word string) ([]string, bool) {
	return itemsOf("/webhook", "webhooks")(ctx, c, args, word)
}

// deliveries completes the UUIDs of the notices that were sent to the webhook in the second
// argument.
func deliveries(ctx context.Context, c *api.Client, args []string, word string) ([]string, bool) {
	id, err := identifyWebhook(ctx, c, args[0], args[1])
	if err != nil {
		return nil, false
	}
	return itemsOf("/webhook"+api.Path(id, "deliveries"), "deliveries")(ctx, c, args, word)
}

func pruneRuns(ctx context.Context, c *api.Client, _ []string, word string) (list []string, more bool) {
	if page, err := api.ListPruneRuns.Call(ctx, c, api.PruneRunQuery{}); err == nil {
		for _, r := range page.Runs {
			if strings.HasPrefix(r.ID, word) {
				list = append(list, cobra.CompletionWithDesc(r.ID, r.Namespace+" "+r.State))
			}
		}
	}
	return list, false
}

// pruneAsks completes the policies that ask for an approval in the namespace of the first
// argument.
func pruneAsks(ctx context.Context, c *api.Client, args []string, word string) (list []string, more bool) {
	in := api.AskQuery{PruneNamespace: api.PruneNamespace{Namespace: args[0]}}
	if answer, err := api.ListAsks.Call(ctx, c, in); err == nil {
		for _, a := range answer.Asks {
			if strings.HasPrefix(a.Policy, word) {
				list = append(list, cobra.CompletionWithDesc(a.Policy, command.Count(a.Would, "tag")))
			}
		}
	}
	return list, false
}

// pruneRests completes the policies that rest because of warnings in the namespace of the first argument.
func pruneRests(ctx context.Context, c *api.Client, args []string, word string) (list []string, more bool) {
	s, err := api.GetPruneState.Call(ctx, c, api.PruneNamespace{Namespace: args[0]})
	if err == nil && s.Task != nil {
		for _, r := range s.Task.Rests {
			if len(r.Warnings) > 0 && strings.HasPrefix(r.Policy, word) {
				list = append(list, cobra.CompletionWithDesc(r.Policy, command.Printable(r.Warnings[0].Text)))
			}
		}
	}
	return list, false
}

func onOff(context.Context, *api.Client, []string, string) ([]string, bool) {
	return []string{"on", "off"}, false
}

// words returns a completer for an argument that is one of these words.
func words(list ...string) completer {
	return func(context.Context, *api.Client, []string, string) ([]string, bool) { return list, false }
}

// named returns the names of a list that begin with `word`.
func named[T any](list []T, word string, name func(T) string) (names []string) {
	for _, item := range list {
		if strings.HasPrefix(name(item), word) {
			names = append(names, name(item))
		}
	}
	return names
}

// users completes the names of people's accounts.
func users(ctx context.Context, c *api.Client, _ []string, word string) (list []string, more bool) {
	page, _ := api.ListUsers.Call(ctx, c, api.UserQuery{Contains: word, Limit: 100})
	return named(page.Users, word, func(u api.UserView) string { return u.Username }), false
}

// robots completes a robot: first its namespace with a plus sign, then the namespace's robots.
func robots(ctx context.Context, c *api.Client, args []string, word string) (list []string, more bool) {
	namespace, _, found := strings.Cut(word, "+")
	if !found {
		list, _ = namespaces(ctx, c, args, word)
		for i := range list {
			list[i] += "+"
		}
		return list, true
	}
	page, _ := api.ListRobots.Call(ctx, c, api.RobotQuery{At: api.At{Namespace: namespace}, NameContains: api.NameContains{Contains: word}})
	return named(page.Robots, word, func(r api.RobotView) string { return r.Name }), false
}

// tokens completes the identifiers of the user's own tokens.
func tokens(ctx context.Context, c *api.Client, _ []string, word string) (list []string, more bool) {
	page, _ := api.ListTokens.Call(ctx, c, api.TokenQuery{})
	for _, t := range page.Tokens {
		if strings.HasPrefix(t.UUID, word) {
			list = append(list, cobra.CompletionWithDesc(t.UUID, command.Printable(t.Title)))
		}
	}
	return list, false
}

// teams completes the teams of the namespace in the first argument.
func teams(ctx context.Context, c *api.Client, args []string, word string) (list []string, more bool) {
	page, _ := api.ListTeams.Call(ctx, c, api.TeamQuery{InNamespace: api.InNamespace{Namespace: args[0]}, NameContains: api.NameContains{Contains: word}})
	return named(page.Teams, word, func(t api.TeamView) string { return t.Name }), false
}

// members completes the members of the team in the first two arguments.
func members(ctx context.Context, c *api.Client, args []string, word string) (list []string, more bool) {
	page, _ := api.ListTeamMembers.Call(ctx, c, api.TeamMemberQuery{TeamItem: api.TeamOf(args[0], args[1])})
	return named(page.Members, word, func(m api.MemberView) string { return m.Name }), false
}
