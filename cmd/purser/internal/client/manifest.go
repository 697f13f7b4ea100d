package client

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/ui/format"
	"github.com/purser-registry/purser/internal/server/ui/imagetree"
)

func manifestCommand(src *command.Source) *cobra.Command {
	return addServer(command.Group("manifest", "Show what belongs to an image, and delete manifests without tags",
		manifestShowCommand(src), untaggedCommand(src), manifestDeleteCommand(src)))
}

func manifestShowCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show REPOSITORY:TAG|REPOSITORY@DIGEST", Short: "Show a manifest as a tree: its platforms, and what is attached to each", Args: cobra.ExactArgs(1),
		Long: "Show a manifest as a tree: the manifests that an index lists, by platform, and the signatures, SBOMs and attestations that\n" +
			"are attached to each. Sizes are with configurations and layers. A digest may be short, as this command prints it.",
		Example: "  purser manifest show library/app:v1\n  purser manifest show library/app@sha256:3f2a1b4c5d6e -o json",
	}
	out, limit := command.AddFormat(cmd), 30
	cmd.Flags().Var(command.Number(&limit, 0, command.MaxListed), "limit", "show at most `N` platforms of an index; 0: all")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		item, err := manifestItem(cmd.Context(), c, args[0])
		if err != nil {
			return err
		}
		m, err := api.GetManifest.Call(cmd.Context(), c, item)
		if err != nil {
			return err
		}
		tree, err := treeOf(cmd.Context(), c, item, &m, limit)
		if err != nil {
			return err
		}
		return out.Print(cmd.OutOrStdout(), tree, func(w io.Writer) error { return writeTree(w, args[0], item.Repository, tree) })
	})
	return cmd
}

// manifestItem returns the manifest that is written as REPOSITORY:TAG or REPOSITORY@DIGEST.
func manifestItem(ctx context.Context, c *api.Client, text string) (api.ManifestItem, error) {
	if repository, _ := command.SplitDigest(text); repository != "" {
		d, err := findDigest(ctx, c, "REPOSITORY@DIGEST", repository, text)
		return api.ManifestItem{InRepository: api.InRepository{Repository: repository}, Digest: d}, err
	}
	item, err := tagItem(text)
	if err != nil {
		return api.ManifestItem{}, command.Usagef("%q should be a repository with a tag or a digest, like library/app:v1 or library/app@sha256:…", text)
	}
	t, err := api.GetTag.Call(ctx, c, item)
	return api.ManifestItem{InRepository: item.InRepository, Digest: t.ManifestDigest}, err
}

// treeNode is a manifest, with what belongs to it.
type treeNode struct {
	Digest       oci.Digest `json:"digest"`
	Kind         string     `json:"kind"` // for people
	MediaType    string     `json:"media_type"`
	ArtifactType string     `json:"artifact_type,omitempty"`
	Platform     string     `json:"platform,omitempty"`
	Size         *int64     `json:"size,omitempty"` // with its configuration and layers; nil: unknown
	Missing      bool       `json:"missing,omitempty"`
	Content      string     `json:"content,omitempty"` // as the annotations say
	Tag          string     `json:"tag,omitempty"`     // by whose name it is attached

	Manifests     []*treeNode `json:"manifests,omitempty"` // of an index
	MoreManifests int         `json:"more_manifests,omitempty"`
	Attestations  []*treeNode `json:"attestations,omitempty"` // that BuildKit has put into the index
	Referrers     []*treeNode `json:"referrers,omitempty"`
	MoreReferrers bool        `json:"more_referrers,omitempty"`
	Attached      []*treeNode `json:"attached_by_tag,omitempty"`
}

// mostAttached limits how many tags that belong to a manifest by their name are shown. Clients have three such names.
const mostAttached = 10

// treeOf returns a manifest with what belongs to it, of an index with up to `limit` platforms; 0: all.
func treeOf(ctx context.Context, c *api.Client, item api.ManifestItem, m *api.DescribedManifest, limit int) (*treeNode, error) {
	root := &treeNode{Digest: m.Digest, Kind: format.KindOf(m.MediaType, m.ArtifactType), MediaType: m.MediaType, ArtifactType: m.ArtifactType, Size: &m.Size}
	if m.Config != nil {
		root.Platform = m.Config.Platform
	}
	source := imagetree.Source{
		List: func(in api.ReferrerQuery) (api.ReferrerList, error) { return api.ListReferrers.Call(ctx, c, in) }, NotFound: missing,
	}
	if m.IsManifestList {
		// All are grouped before they are counted, so that no platform lacks an attestation that is listed far behind it.
		children := imagetree.Children(m, 0, len(m.Manifests))
		if limit > 0 && len(children) > limit {
			root.MoreManifests = len(children) - limit
			children = children[:limit]
		}
		if err := source.Attach(item, children, len(children)); err != nil {
			return nil, err
		}
		root.Manifests = childNodes(children)
	}
	if m.Referrers.Rows > 0 {
		tree, err := source.Referrers(item)
		if err != nil {
			return nil, err
		}
		root.Referrers, root.MoreReferrers = referrerNodes(tree.First), tree.Cut
	}
	tags, err := api.ListTags.Call(ctx, c, api.TagQuery{
		InRepository: item.InRepository, NameFilter: api.NameFilter{Prefix: imagetree.TagPrefix(m.Digest.String())}, Sort: "name", Limit: mostAttached,
	})
	for _, t := range tags.Tags {
		root.Attached = append(root.Attached, &treeNode{
			Digest: t.ManifestDigest, Kind: imagetree.TagKind(m.Digest.String(), t), MediaType: t.MediaType, ArtifactType: t.ArtifactType, Size: &t.Size, Tag: t.Name,
		})
	}
	return root, err
}

func childNodes(list []*imagetree.Child) []*treeNode {
	nodes := make([]*treeNode, len(list))
	for i, m := range list {
		nodes[i] = &treeNode{
			Digest: m.Digest, Kind: m.Kind, MediaType: m.MediaType, ArtifactType: m.ArtifactType, Platform: m.Platform, Size: m.TotalSize, Missing: m.Missing(),
			Attestations: childNodes(m.Attestations), Referrers: referrerNodes(m.Referrers), MoreReferrers: m.More,
		}
	}
	return nodes
}

func referrerNodes(list []*imagetree.Referrer) []*treeNode {
	nodes := make([]*treeNode, len(list))
	for i, r := range list {
		nodes[i] = &treeNode{
			Digest: r.Digest, Kind: r.Kind, MediaType: r.MediaType, ArtifactType: r.ArtifactType, Size: r.TotalSize, Content: r.Says, Referrers: referrerNodes(r.Referrers),
		}
	}
	return nodes
}

// writeTree prints a manifest, as it is called, and below it what belongs to it.
func writeTree(w io.Writer, name, repository string, root *treeNode) error {
	if err := command.Table(w, []string{"MANIFEST", "DIGEST", "SIZE", "WHAT"}, root.rows(name, "", "", nil)); err != nil {
		return err
	}
	var hints []string
	if root.MoreManifests > 0 {
		hints = append(hints, "All platforms: purser manifest show "+name+" --limit 0\n")
	}
	if slices.ContainsFunc(root.Manifests, func(n *treeNode) bool { return n.MoreReferrers }) {
		hints = append(hints, "All that is attached to one: purser manifest show "+repository+"@DIGEST\n")
	}
	if _, err := io.WriteString(w, strings.Join(hints, "")); err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	return nil
}

// rows appends the lines of the tree of a manifest. Its own begins with `indent` and is called `name`; those below
// begin with `below`.
func (n *treeNode) rows(name, indent, below string, rows [][]string) [][]string {
	size := ""
	if n.Size != nil {
		size = command.Size(*n.Size)
	}
	rows = append(rows, []string{indent + name, short(n.Digest.String()), size, n.what(name)})
	branches := n.branches()
	for i, b := range branches {
		line, further := "├─ ", "│  "
		if i == len(branches)-1 {
			line, further = "└─ ", "   "
		}
		if b.node == nil {
			rows = append(rows, []string{below + line + b.name, "", "", ""})
			continue
		}
		rows = b.node.rows(b.name, below+line, below+further, rows)
	}
	return rows
}

// branch is a manifest below another one in the tree, or a text about what isn't shown.
type branch struct {
	name string
	node *treeNode // nil: the name is the text
}

func (n *treeNode) branches() (list []branch) {
	add := func(nodes []*treeNode) {
		for _, b := range nodes {
			list = append(list, branch{format.Clip(60, cmp.Or(b.Platform, b.Kind)), b})
		}
	}
	add(n.Manifests)
	if n.MoreManifests > 0 {
		list = append(list, branch{name: fmt.Sprintf("and %d more", n.MoreManifests)})
	}
	add(n.Attestations)
	add(n.Referrers)
	if n.MoreReferrers {
		list = append(list, branch{name: "and more"})
	}
	add(n.Attached)
	return list
}

// what says what a manifest is, as far as its name doesn't.
func (n *treeNode) what(name string) string {
	var parts []string
	if name != n.Kind {
		parts = append(parts, n.Kind)
	}
	if n.Platform != "" && name != n.Platform {
		parts = append(parts, format.Clip(60, n.Platform))
	}
	if _, known := format.Artifacts[n.ArtifactType]; !known && n.ArtifactType != "" {
		parts = append(parts, format.Clip(100, n.ArtifactType))
	}
	if n.Content != "" {
		parts = append(parts, format.Clip(120, n.Content))
	}
	if n.Tag != "" {
		parts = append(parts, "by the name of a tag")
	}
	if n.Missing {
		parts = append(parts, "not in this repository")
	}
	return strings.Join(parts, ", ")
}

func untaggedCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "untagged REPOSITORY", Short: "List the manifests of a repository to which no tag points", Args: cobra.ExactArgs(1),
		Long: "List the manifests of a repository to which no tag points, in the order of their digests. An index may list them, or they\n" +
			"refer to a subject, as signatures do; the others go when garbage collection reviews them.",
	}
	listing := command.AddListing(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		in := api.UntaggedQuery{InRepository: api.InRepository{Repository: args[0]}}
		list, more, err := api.List(cmd.Context(), c, api.ListUntagged, in, listing.Limit)
		if err != nil {
			return err
		}
		return command.PrintList(cmd, listing, list, more, func(m api.UntaggedManifest) string { return m.Digest.String() }, func(w io.Writer) error {
			rows := make([][]string, len(list))
			for i, m := range list {
				needed := ""
				switch {
				case m.Index != nil:
					needed = "index " + short(m.Index.String())
				case m.Subject != nil:
					needed = "subject " + short(m.Subject.String())
				}
				rows[i] = []string{m.Digest.String(), command.Size(m.Size), clock(&m.PushedAt), needed}
			}
			return table(w, []string{"DIGEST", "SIZE", "PUSHED", "BELONGS TO"}, rows, more)
		})
	})
	return cmd
}

func manifestDeleteCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete REPOSITORY@DIGEST...", Short: "Delete manifests without tags", Args: cobra.MinimumNArgs(1),
		Long: "Delete manifests to which no tag points. Only a push brings one back. A manifest stays that has got a tag, that an index\n" +
			"lists or that is deployed.",
	}
	yes, holds := command.AddYes(cmd), addOverrideHolds(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		items := make([]api.ManifestItem, len(args)) // all arguments are parsed first: if one is misspelt, nothing is deleted
		for i, arg := range args {
			repository, text, ok := strings.Cut(arg, "@")
			d, err := oci.ParseDigest(text)
			if !ok || repository == "" || err != nil {
				return command.Usagef("%q should be a repository and a digest, like library/app@sha256:…", arg)
			}
			items[i] = api.ManifestItem{InRepository: api.InRepository{Repository: repository}, Digest: d}
		}
		if err := command.Confirm(cmd, *yes, "Delete %s? Only a push brings them back.", strings.Join(args, ", ")); err != nil {
			return err
		}
		for i, item := range items {
			if _, err := api.DeleteManifest.Call(cmd.Context(), c, api.ManifestDeletion{ManifestItem: item, Untagged: true, Override: *holds}); err != nil {
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
