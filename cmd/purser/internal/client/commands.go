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
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/oci"
)

// Commands returns the commands of this package. `ofUser` become subcommands of the command
// "user".
func Commands(src *command.Source, ofUser ...*cobra.Command) []*cobra.Command {
	return []*cobra.Command{
		findCommand(src), namespaceCommand(src), repoCommand(src), tagCommand(src), manifestCommand(src), auditCommand(src), protectionCommand(src), quotaCommand(src), trashCommand(src),
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
