package client

import (
	"context"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
)

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
	var page struct{ Robots []api.RobotView }
	if c.Get(ctx, api.Path("organization", namespace, "robots"), url.Values{"contains": {word}}, &page) == nil {
		for _, r := range page.Robots {
			if strings.HasPrefix(r.Name, word) {
				list = append(list, r.Name)
			}
		}
	}
	return list, false
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
	var page struct{ Teams []api.TeamView }
	if c.Get(ctx, api.Path("organization", args[0], "team"), url.Values{"contains": {word}}, &page) == nil {
		for _, t := range page.Teams {
			if strings.HasPrefix(t.Name, word) {
				list = append(list, t.Name)
			}
		}
	}
	return list, false
}

// members completes the members of the team in the first two arguments.
func members(ctx context.Context, c *api.Client, args []string, word string) (list []string, more bool) {
	var page struct{ Members []api.MemberView }
	if c.Get(ctx, teamPath(args)+"/members", nil, &page) == nil {
		for _, m := range page.Members {
			if strings.HasPrefix(m.Name, word) {
				list = append(list, m.Name)
			}
		}
	}
	return list, false
}
