package client

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/protection"
	"github.com/purser-registry/purser/internal/pullstats"
)

func tagCommand(src *command.Source) *cobra.Command {
	return addServer(command.Group("tag", "Look at tags, move, delete and restore them",
		tagListCommand(src), tagShowCommand(src), tagMoveCommand(src), tagDeleteCommand(src), tagRestoreCommand(src), tagUndoCommand(src), tagExpireCommand(src), tagImmutableCommand(src)))
}

// pulled formats when a tag or manifest was last pulled, and how often (`n`). If no pull is
// known, it returns "" rather than "never", since there may have been pulls before counting
// began.
func pulled(t *time.Time, n *int64) string {
	if t == nil {
		return ""
	}
	if n == nil {
		return clock(t)
	}
	if *n == 1 {
		return clock(t) + " (1 pull)"
	}
	return fmt.Sprintf("%s (%s pulls)", clock(t), pullstats.Display(*n))
}

// pulls formats a number of pulls. It returns "" if the number is unknown (nil).
func pulls(n *int64) string {
	if n == nil {
		return ""
	}
	return pullstats.Display(*n)
}

func tagListCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "list REPOSITORY", Short: "List the tags of a repository, the newest first", Args: cobra.ExactArgs(1)}
	listing, names := command.AddListing(cmd), addNameFlags(cmd)
	var sort, unused string
	textFlag(cmd, &sort, "sort", "-pushed", "sort by `ORDER`: name, pushed, size, last_pulled or pull_count; with - in front the other way round",
		checkOrder("name", "pushed", "size", "last_pulled", "pull_count"))
	textFlag(cmd, &unused, "not-pulled-for", "", "only tags that weren't pulled, asked for or pushed for `AGE`, such as 90d or 12w", checkAge)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		list, more, err := api.List(cmd.Context(), c, api.ListTags, api.TagQuery{
			InRepository: api.InRepository{Repository: args[0]}, NameFilter: *names, Sort: sort, NotPulled: api.Optional[string]{Value: unused, Given: unused != ""},
			Platforms: listing.Limit > 0 && listing.Limit <= api.MostOfPage, // a long list would read very many configurations
		}, listing.Limit)
		if err != nil {
			return err
		}
		return command.PrintList(cmd, listing, list, more, func(t api.ListedTag) string { return t.Name }, func(w io.Writer) error {
			rows := make([][]string, len(list))
			for i, t := range list {
				rows[i] = []string{t.Name, short(t.ManifestDigest.String()), command.Size(t.Size), strings.Join(t.Platforms, " "), clock(&t.PushedAt), clock(t.LastPulledAt), pulls(t.PullCount)}
			}
			return table(w, []string{"TAG", "DIGEST", "SIZE", "PLATFORMS", "PUSHED", "LAST PULL", "PULLS"}, rows, more)
		})
	})
	return cmd
}

// short abbreviates a digest for tables.
func short(digest string) string {
	algorithm, hash, _ := strings.Cut(digest, ":")
	return algorithm + ":" + hash[:min(12, len(hash))]
}

// splitTag splits REPOSITORY:TAG.
func splitTag(text string) (repository, tag string, err error) {
	repository, tag, ok := strings.Cut(text, ":")
	if !ok || repository == "" || tag == "" || strings.Contains(tag, "/") {
		return "", "", command.Usagef("%q should be a repository and a tag, like library/app:v1", text)
	}
	return repository, tag, nil
}

// tagItem returns REPOSITORY:TAG as inputs of the API name it.
func tagItem(text string) (api.TagItem, error) {
	repository, tag, err := splitTag(text)
	return api.TagItem{InRepository: api.InRepository{Repository: repository}, Tag: tag}, err
}

// platformsOfTag is how many platforms of an index the description of a tag has at most.
const platformsOfTag = 30

func tagShowCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "show REPOSITORY:TAG", Short: "Show a tag and what it points to", Args: cobra.ExactArgs(1),
		Long: "Show a tag and what it points to, with the platforms of an index and what is attached to each.\n" +
			"\"purser manifest show\" prints that alone, and as JSON.",
	}
	format := command.AddFormat(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		item, err := tagItem(args[0])
		if err != nil {
			return err
		}
		t, err := api.GetTag.Call(cmd.Context(), c, item)
		if err != nil {
			return err
		}
		if *format == command.JSON {
			return format.Print(cmd.OutOrStdout(), t, nil)
		}
		of := api.ManifestItem{InRepository: item.InRepository, Digest: t.ManifestDigest}
		m, err := api.GetManifest.Call(cmd.Context(), c, of)
		if err != nil {
			return err
		}
		if err := writeTag(cmd.OutOrStdout(), t, m); err != nil || !m.IsManifestList && m.Referrers.Rows == 0 {
			return err
		}
		tree, err := treeOf(cmd.Context(), c, of, &m, platformsOfTag)
		if err != nil {
			return err
		}
		if err := say(cmd, "\n"); err != nil {
			return err
		}
		return writeTree(cmd.OutOrStdout(), args[0], item.Repository, tree)
	})
	return cmd
}

func writeTag(w io.Writer, t api.ListedTag, m api.DescribedManifest) error {
	platform, built, layers := strings.Join(t.Platforms, ", "), "", ""
	if m.Config != nil {
		platform, built, layers = m.Config.Platform, builtAt(m.Config.Created), humanize.Comma(int64(len(m.Layers)))
		if t.ArtifactType == m.Config.MediaType { // the manifest has no artifact type of its own
			t.ArtifactType = ""
		}
	}
	referrers := ""
	if m.Referrers.Rows > 0 {
		referrers = atLeast(m.Referrers)
	}
	expires, immutable := "", ""
	if t.EndTS != 0 {
		at := time.Unix(t.EndTS, 0)
		expires = clock(&at)
	}
	if t.Immutable {
		immutable = "yes"
	}
	others := ""
	for _, name := range m.Tags {
		if name != t.Name {
			others += " " + name
		}
	}
	return fields(w, "tag", t.Name, "digest", t.ManifestDigest.String(), "type", t.MediaType, "artifact type", t.ArtifactType,
		"size", command.Size(t.Size), "platform", platform, "built", built, "layers", layers, "referrers", referrers,
		"other tags", strings.TrimSpace(others), "first push", clock(&t.CreatedAt), "last push", clock(&t.PushedAt),
		"last pull", pulled(t.LastPulledAt, t.PullCount), "expires", expires, "immutable", immutable)
}

// builtAt formats the build time in an image's configuration. It returns a text that isn't
// a time unchanged, and "" for the zero time, which reproducible builds often set.
func builtAt(text string) string {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return text
	}
	return clock(&t)
}

func tagMoveCommand(src *command.Source) *cobra.Command {
	return &cobra.Command{
		Use: "move REPOSITORY:TAG DIGEST", Short: "Point a tag, which may be new, to a manifest of the repository", Args: cobra.ExactArgs(2),
		Long: "Point a tag, which may be new, to a manifest of the repository. The digest may be short: its first digits, at\n" +
			"least 6, if only one manifest of the repository has a digest that begins so.",
		RunE: withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
			item, err := tagItem(args[0])
			if err != nil {
				return err
			}
			digest, err := findDigest(cmd.Context(), c, "DIGEST", item.Repository, args[1])
			if err != nil {
				return err
			}
			in := api.TagChange{TagItem: item, Body: api.MovedTag{ManifestDigest: digest.String()}}
			if _, err := api.ChangeTag.Call(cmd.Context(), c, in); err != nil {
				return err
			}
			return say(cmd, "%s points to %s.\n", args[0], digest)
		}),
	}
}

func tagRestoreCommand(src *command.Source) *cobra.Command {
	return &cobra.Command{
		Use: "restore REPOSITORY:TAG DIGEST", Short: "Bring back a tag that was deleted or moved", Args: cobra.ExactArgs(2),
		Long: "Bring back a tag that was deleted or moved, as long as garbage collection hasn't deleted its manifest.\n" +
			"\"purser audit list\" knows which manifest it pointed to; the digest may be short, as it shows it.",
		RunE: withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
			item, err := tagItem(args[0])
			if err != nil {
				return err
			}
			in := api.TagRestoration{TagItem: item}
			digest, err := findEarlierDigest(cmd.Context(), c, item, args[1])
			if err != nil {
				return err
			}
			in.Body.ManifestDigest = digest
			if _, err := api.RestoreTag.Call(cmd.Context(), c, in); err != nil {
				return err
			}
			return say(cmd, "%s points to %s again.\n", args[0], digest)
		}),
	}
}

func tagDeleteCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete REPOSITORY:TAG...", Short: "Delete tags", Args: cobra.MinimumNArgs(1),
		Long: "Delete tags. In the name of a tag, * stands for any characters; quote it, so that the shell leaves it alone. What a pattern\n" +
			"selects is shown before. Tags that are protected or deployed stay, and are named; the others are deleted, and\n" +
			"\"purser tag undo\" restores them.",
		Example: "  purser tag delete library/app:v1 library/app:v2\n  purser tag delete 'library/app:pr-7-*' --yes",
	}
	yes, count := command.AddYes(cmd), addCount(cmd)
	override := cmd.Flags().Bool("override-protection", false, "delete protected tags too")
	holds := addOverrideHolds(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		if strings.Contains(strings.Join(args, ""), "*") {
			if *override {
				return command.Usagef("--override-protection is for tags that are named, and not for a pattern")
			}
			return deleteSelected(cmd, c, args, *count, *yes, *holds)
		}
		items := make([]api.TagItem, len(args)) // all arguments are parsed first: if one is misspelt, nothing is deleted
		for i, arg := range args {
			var err error
			if items[i], err = tagItem(arg); err != nil {
				return err
			}
		}
		if err := command.Confirm(cmd, *yes, "Delete %s? They can be restored until garbage collection deletes their manifests.", strings.Join(args, ", ")); err != nil {
			return err
		}
		for i, item := range items {
			if _, err := api.DeleteTag.Call(cmd.Context(), c, api.TagDeletion{TagItem: item, Override: *override, Holds: *holds}); err != nil {
				return fmt.Errorf("deleting %s: %w", args[i], err)
			}
			if err := say(cmd, "Deleted %s.\n", args[i]); err != nil {
				return err
			}
		}
		return nil
	})
	return cmd
}

// deleteSelected deletes the tags that the arguments select, at least one of which is a pattern.
func deleteSelected(cmd *cobra.Command, c *api.Client, args []string, count int, yes, holds bool) error {
	list, err := parseSelections(args)
	if err != nil {
		return err
	}
	deletion := func(ctx context.Context, in api.InRepository, selection api.TagSelection, deletion string) (api.ChangedTags, error) {
		body := api.SelectedDeletion{TagSelection: selection, OverrideHolds: holds, Deletion: deletion}
		return api.DeleteTags.Call(ctx, c, api.TagsDeletion{InRepository: in, Body: body})
	}
	return changeAll(cmd, deletion, list, count, yes, "Delete %s? They can be restored until garbage collection deletes their manifests.",
		func(tags string) string { return "Deleted " + tags + "." })
}

// addOverrideHolds adds the flag --override-holds.
func addOverrideHolds(cmd *cobra.Command) *bool {
	return cmd.Flags().Bool("override-holds", false, "delete what is deployed too: see \"purser hold\"")
}

func namespaceLabelsCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "labels NAMESPACE", Short: "Show or say which labels of pushed images decide about their tags", Args: cobra.ExactArgs(1),
		Long: "Show or say which labels of a pushed image decide about its tag: io.purser.expires-after and quay.expires-after, such as 2d,\n" +
			"say when it is deleted, io.purser.immutable and quay.immutable, true, that nobody may move or delete it. None of them\n" +
			"counts unless this says so.",
		Example: "  purser namespace labels app --expires-after\n  purser namespace labels app --expires-after=false --immutable",
	}
	format := command.AddFormat(cmd)
	var want protection.TagLabels
	cmd.Flags().BoolVar(&want.Expiry, "expires-after", false, "let labels give tags an expiration")
	cmd.Flags().BoolVar(&want.Immutable, "immutable", false, "let labels make tags immutable")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		in := api.InNamespace{Namespace: args[0]}
		now, err := api.GetTagLabels.Call(cmd.Context(), c, in)
		if err != nil {
			return err
		}
		changed := false
		for name, value := range map[string]struct{ from, to *bool }{"expires-after": {&want.Expiry, &now.Expiry}, "immutable": {&want.Immutable, &now.Immutable}} {
			if cmd.Flags().Changed(name) {
				changed, *value.to = true, *value.from
			}
		}
		if changed {
			if _, err := api.SetTagLabels.Call(cmd.Context(), c, api.TagLabelsChange{InNamespace: in, Body: now}); err != nil {
				return err
			}
		}
		return format.Print(cmd.OutOrStdout(), now, func(w io.Writer) error {
			words := map[bool]string{true: "counts", false: "is ignored"}
			return fields(w, "namespace", args[0], "expires-after", words[now.Expiry], "immutable", words[now.Immutable])
		})
	})
	return cmd
}

func tagImmutableCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "immutable REPOSITORY:TAG", Short: "Make a tag immutable, so that nobody moves or deletes it, or undo that", Args: cobra.ExactArgs(1),
	}
	undo := cmd.Flags().Bool("undo", false, "let the tag be moved and deleted again")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		item, err := tagItem(args[0])
		if err != nil {
			return err
		}
		immutable := !*undo
		if _, err := api.ChangeTag.Call(cmd.Context(), c, api.TagChange{TagItem: item, Body: api.MovedTag{Immutable: &immutable}}); err != nil {
			return err
		}
		if *undo {
			return say(cmd, "%s may be moved and deleted again.\n", args[0])
		}
		return say(cmd, "%s is immutable.\n", args[0])
	})
	return cmd
}
