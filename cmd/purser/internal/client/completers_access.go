package client

import (
	"context"
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
