package main

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/builtinpg"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/webhook"
)

const (
	// completionTime is how long a shell waits for names.
	completionTime = time.Second
	// completionMost is how many names a shell is given.
	completionMost = "100"
)

// completer returns what an argument may be that begins with word. args are those before
// it. more says that what it returns goes on: no space follows then.
type completer func(ctx context.Context, c *client, args []string, word string) (list []string, more bool)

// completions are what the arguments of commands are, by the command's path.
var completions = map[string][]completer{
	"namespace show": {namespaces}, "namespace delete": {namespaces},
	"repo list": {namespaces}, "repo show": {repositoryNames}, "repo delete": {repositoryNames},
	"tag list": {repositoryNames}, "tag show": {tags}, "tag move": {tags, digests}, "tag delete": {tags}, "tag restore": {tags, digests},
	"audit list": {targets}, "audit export": {targets},
	"protection list": {targets}, "protection add": {targets}, "protection remove": {targets, itemsOf("/tagprotection", "rules")},
	"policy list": {targets}, "policy create": {targets}, "policy show": {targets, policies},
	"policy update": {targets, policies}, "policy delete": {targets, policies},
	"prune preview": {targets}, "prune run": {namespaces}, "prune status": {namespaces}, "prune runs": {namespaces},
	"webhook list": {namespaces}, "webhook create": {namespaces}, "webhook show": {namespaces, webhooks, deliveries},
	"webhook update": {namespaces, webhooks}, "webhook delete": {namespaces, webhooks}, "webhook test": {namespaces, webhooks},
	"webhook deliveries": {namespaces, webhooks}, "webhook redeliver": {namespaces, webhooks, deliveries},
	"prune show": {pruneRuns}, "prune undo": {pruneRuns}, "prune defaults": {namespaces, onOff},
}

// complete makes commands complete their arguments. Names come from what the command
// would ask, the registry or the database; when that is away there are none.
func (s *source) complete(root *cobra.Command) {
	for path, of := range completions {
		cmd, _, err := root.Find(strings.Fields(path))
		if err != nil {
			panic(err) // the table names a command that isn't there
		}
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			return s.completeArgument(cmd, of, args, word)
		}
	}
	if cmd, _, err := root.Find([]string{"gc", "explain"}); err == nil {
		cmd.ValidArgsFunction = s.completeExplainable
	}
	completeFlags(root)
}

func (s *source) completeArgument(cmd *cobra.Command, of []completer, args []string, word string) ([]string, cobra.ShellCompDirective) {
	const nothing = cobra.ShellCompDirectiveNoFileComp
	for _, name := range []string{"defaults", "all"} { // there is no TARGET then
		if on, err := cmd.Flags().GetBool(name); err == nil && on {
			of = of[1:]
		}
	}
	n := len(args)
	if cmd.Name() == "delete" && cmd.Parent().Name() == "tag" {
		n = 0 // each is a tag
	}
	c, err := s.client(cmd)
	if err != nil || n >= len(of) {
		return nil, nothing
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
	defer cancel()
	list, more := of[n](ctx, c, args, word)
	if more {
		return list, nothing | cobra.ShellCompDirectiveNoSpace
	}
	return list, nothing
}

// completeFlags completes flags that are one of some words.
func completeFlags(cmd *cobra.Command) {
	words := map[string][]string{
		"output": {string(formatText), string(formatJSON)}, "events": webhook.Events(), "state": {webhook.Waiting, webhook.Delivered, webhook.GivenUp}, "method": {"creation_date", "number_of_tags", "last_pulled"},
	}
	for _, k := range audit.Kinds() {
		words["kind"] = append(words["kind"], string(k))
	}
	for name, list := range words {
		if cmd.Flags().Lookup(name) != nil {
			cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(list, cobra.ShellCompDirectiveNoFileComp)) //nolint:errcheck // the flag is there
		}
	}
	for _, c := range cmd.Commands() {
		completeFlags(c)
	}
}

func namespaces(ctx context.Context, c *client, _ []string, word string) (list []string, more bool) {
	var page struct {
		Namespaces []struct{ Name string } `json:"namespaces"`
	}
	if c.get(ctx, apiPath("organization"), url.Values{"prefix": {word}, "limit": {completionMost}}, &page) == nil {
		for _, n := range page.Namespaces {
			list = append(list, n.Name)
		}
	}
	return list, false
}

func repositoryNames(ctx context.Context, c *client, _ []string, word string) (list []string, more bool) {
	var page struct {
		Repositories []repositoryView `json:"repositories"`
	}
	if c.get(ctx, apiPath("repository"), url.Values{"prefix": {word}, "limit": {completionMost}}, &page) == nil {
		for _, r := range page.Repositories {
			list = append(list, r.Repository)
		}
	}
	return list, false
}

// targets are namespaces and repositories.
func targets(ctx context.Context, c *client, args []string, word string) (list []string, more bool) {
	if !strings.Contains(word, "/") {
		list, _ = namespaces(ctx, c, args, word)
	}
	all, _ := repositoryNames(ctx, c, args, word)
	for _, r := range all {
		if strings.Contains(r, "/") { // others are taken for namespaces
			list = append(list, r)
		}
	}
	return list, false
}

func tagPage(ctx context.Context, c *client, repository, prefix string) []tagView {
	var page struct {
		Tags []tagView `json:"tags"`
	}
	if c.get(ctx, apiPath("repository", repository, "tag"), url.Values{"prefix": {prefix}, "limit": {completionMost}}, &page) != nil {
		return nil
	}
	return page.Tags
}

// tags are repositories with a colon, and behind it their tags.
func tags(ctx context.Context, c *client, args []string, word string) (list []string, more bool) {
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

// digests are those that tags of the repository of the first argument point to.
func digests(ctx context.Context, c *client, args []string, word string) (list []string, more bool) {
	repository, _, _ := strings.Cut(args[0], ":")
	for _, t := range tagPage(ctx, c, repository, "") {
		if strings.HasPrefix(t.Digest, word) {
			list = append(list, cobra.CompletionWithDesc(t.Digest, t.Name))
		}
	}
	return list, false
}

func policies(ctx context.Context, c *client, args []string, word string) ([]string, bool) {
	return itemsOf("/autoprunepolicy", "policies")(ctx, c, args, word)
}

// itemsOf are the UUIDs of what a target has at a path.
func itemsOf(path, member string) completer {
	return func(ctx context.Context, c *client, args []string, word string) (list []string, more bool) {
		at := "" // of the registry
		if len(args) > 0 {
			var err error
			if at, _, _, err = (&targetFlags{}).path(args[:1], 0); err != nil {
				return nil, false
			}
		}
		var answer map[string]json.RawMessage
		var items []struct{ UUID, Method, Pattern, URL, Event, State string }
		if c.get(ctx, at+path, nil, &answer) != nil || json.Unmarshal(answer[member], &items) != nil {
			return nil, false
		}
		for _, item := range items {
			if strings.HasPrefix(item.UUID, word) {
				list = append(list, cobra.CompletionWithDesc(item.UUID, printable(strings.TrimSpace(item.Method+item.Pattern+item.URL+item.Event+" "+item.State))))
			}
		}
		return list, false
	}
}

func webhooks(ctx context.Context, c *client, args []string, word string) ([]string, bool) {
	return itemsOf("/webhook", "webhooks")(ctx, c, args, word)
}

// deliveries are the notices of the webhook of the second argument.
func deliveries(ctx context.Context, c *client, args []string, word string) ([]string, bool) {
	return itemsOf("/webhook"+apiPath(args[1], "deliveries"), "deliveries")(ctx, c, args, word)
}

func pruneRuns(ctx context.Context, c *client, _ []string, word string) (list []string, more bool) {
	var page struct {
		Runs []struct{ ID, Namespace, State string } `json:"runs"`
	}
	if c.get(ctx, apiPath("autoprune", "runs"), nil, &page) == nil {
		for _, r := range page.Runs {
			if strings.HasPrefix(r.ID, word) {
				list = append(list, cobra.CompletionWithDesc(r.ID, r.Namespace+" "+r.State))
			}
		}
	}
	return list, false
}

func onOff(context.Context, *client, []string, string) ([]string, bool) {
	return []string{"on", "off"}, false
}

// completeExplainable completes the repository of a manifest, from the database: the one
// that is configured, or the built-in one if it runs. None is started.
func (s *source) completeExplainable(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	const goesOn = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	cfg, err := s.load(cmd)
	if err != nil || len(args) > 0 || strings.Contains(word, "@") {
		return nil, goesOn
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
	defer cancel()
	dsn := string(cfg.Database.Main)
	if dsn == "" {
		if dsn, err = builtinpg.RunningDSN(postgresDir(cfg), databaseName); err != nil {
			return nil, goesOn
		}
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	d, err := db.Open(ctx, db.Options{DSN: dsn, MaxConns: 2, ApplicationName: "purser completion", Log: log})
	if err != nil {
		return nil, goesOn
	}
	defer d.Close()
	list, _, err := catalog.New(catalog.Options{DB: d, CacheOff: true, Log: log}).BrowseRepositories(ctx, catalog.RepositoryQuery{NameFilter: catalog.NameFilter{Prefix: word}, Limit: 100})
	if err != nil {
		return nil, goesOn
	}
	var names []string
	for _, r := range list {
		names = append(names, r.Path+"@")
	}
	return names, goesOn
}
