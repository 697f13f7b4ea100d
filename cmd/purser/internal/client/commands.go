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
	"regexp"
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
		namespaceCommand(src), repoCommand(src), tagCommand(src), auditCommand(src), protectionCommand(src), quotaCommand(src), trashCommand(src),
		copyCommand(src), policyCommand(src), pruneCommand(src), holdCommand(src), reportCommand(src), pullsCommand(src), webhookCommand(src),
		loginCommand(src), logoutCommand(src), userCommand(src, ofUser...), robotCommand(src), tokenCommand(src), teamCommand(src), grantCommand(src), clockCommand(src),
	}
}

// abbreviated is how lists and the audit log show a digest.
var abbreviated = regexp.MustCompile(`^(sha256|sha512):[0-9a-f]{6,}…?$`)

// digestTags is how many tags are looked at for a digest that is abbreviated.
const digestTags = 10_000

// wholeDigest returns the argument DIGEST of a command about a tag. It may be abbreviated, as "tag list"
// and "audit list" show it, if only one manifest is meant: of those to which a tag of the repository
// points, or, with `earlier`, those to which this tag points or pointed.
func wholeDigest(ctx context.Context, c *api.Client, of api.TagItem, text string, earlier bool) (oci.Digest, error) {
	err := checkArg("DIGEST", text, checkDigest)
	if err == nil {
		return oci.ParseDigest(text)
	}
	if !abbreviated.MatchString(text) {
		return oci.Digest{}, err
	}
	begin := strings.TrimSuffix(text, "…")
	in := api.TagQuery{InRepository: of.InRepository}
	if earlier { // the earlier states of the tag, too
		in.Specific, in.OnlyActive = of.Tag, api.Some(false)
	}
	tags, more, err := api.List(ctx, c, api.ListTags, in, digestTags)
	if err != nil {
		return oci.Digest{}, err
	}
	var found []oci.Digest
	var names []string
	for _, t := range tags {
		if d := t.ManifestDigest; strings.HasPrefix(d.String(), begin) && !slices.Contains(found, d) {
			found, names = append(found, d), append(names, d.String())
		}
	}
	switch {
	case len(found) == 1 && !more:
		return found[0], nil
	case len(found) > 1:
		return oci.Digest{}, command.Usagef("DIGEST: several begin with %s: %s", begin, strings.Join(names, ", "))
	case earlier:
		return oci.Digest{}, command.Usagef("DIGEST: %s:%s never pointed to a manifest whose digest begins with %s: give the whole digest", of.Repository, of.Tag, begin)
	}
	return oci.Digest{}, command.Usagef("DIGEST: it isn't known which manifest of %s has a digest that begins with %s: give the whole digest", of.Repository, begin)
}
