package client

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/browse"
)

func repoCommand(src *command.Source) *cobra.Command {
	return addServer(command.Group("repo", "Look at repositories, create and delete them",
		repoListCommand(src), repoShowCommand(src), repoCreateCommand(src), repoDeleteCommand(src), repoVisibilityCommand(src)))
}

// statisticsOf returns the columns of --statistics. What the registry doesn't know is "".
func statisticsOf(r api.RepositoryStatistics) []string {
	var count string
	if r.RecentPulls != nil {
		count = pulls(&r.RecentPulls.Count)
	}
	return []string{clock(r.LastPulledAt), count}
}

// listedSize returns the size of a repository or a namespace in a list, followed by a plus sign if it is only a
// lower bound, and "" if the registry doesn't say it.
func listedSize(s *browse.Size) string {
	if s == nil {
		return ""
	}
	if !s.Exact {
		return command.Size(s.Bytes) + "+"
	}
	return command.Size(s.Bytes)
}

// listsSizes says whether a list of repositories or namespaces shows their sizes. Adding them up for a long
// list would take long.
func listsSizes(l *command.Listing) bool {
	return !*l.Quiet && l.Limit > 0 && l.Limit <= api.MostOfPage
}

// sizesListed is the help for listsSizes.
var sizesListed = fmt.Sprintf("Sizes are shown up to --limit %d.", api.MostOfPage)

func repoListCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "list [NAMESPACE]", Short: "List repositories, of a namespace or all", Args: cobra.MaximumNArgs(1), Long: "List repositories, of a namespace or all. " + sizesListed}
	listing, names := command.AddListing(cmd), addNameFlags(cmd)
	var sort string
	textFlag(cmd, &sort, "sort", "name", "sort by `ORDER`: name or created; with - in front the other way round", checkOrder("name", "created"))
	statistics := cmd.Flags().Bool("statistics", false, "show last pull and the pulls of 30 days too")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		in := api.RepositoryQuery{NameFilter: *names, Sort: sort, Statistics: listsSizes(listing) || *statistics && !*listing.Quiet}
		if len(args) > 0 {
			in.Namespace = args[0]
		}
		list, more, err := api.List(cmd.Context(), c, api.ListRepositories, in, listing.Limit)
		if err != nil {
			return err
		}
		return command.PrintList(cmd, listing, list, more, func(r api.ListedRepository) string { return r.Repository }, func(w io.Writer) error {
			head := []string{"REPOSITORY", "TAGS", "SIZE", "LAST PUSH", "CREATED"}
			if !in.Statistics {
				head = slices.Delete(head, 2, 3)
			}
			if *statistics {
				head = append(head, "LAST PULL", "PULLS IN 30D")
			}
			rows := make([][]string, len(list))
			for i, r := range list {
				rows[i] = []string{r.Repository, atLeast(r.Tags), listedSize(r.Size), since(r.PushedAt), clock(&r.CreatedAt)}
				if !in.Statistics {
					rows[i] = slices.Delete(rows[i], 2, 3)
				}
				if *statistics {
					rows[i] = append(rows[i], statisticsOf(r.RepositoryStatistics)...)
				}
			}
			return table(w, head, rows, more)
		})
	})
	return cmd
}

// repository is the input that asks for a repository.
func repository(name string) api.RepositorySizes {
	return api.RepositorySizes{InRepository: api.InRepository{Repository: name}}
}

func repoShowCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show REPOSITORY", Short: "Show how much a repository holds", Args: cobra.ExactArgs(1),
		Long: "Show how much a repository holds: its size is that of all blobs in it, and of its own are those that\n" +
			"no other repository has, which are free when it is deleted.",
	}
	format := command.AddFormat(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		d, err := api.GetRepository.Call(cmd.Context(), c, repository(args[0]))
		if err != nil {
			return err
		}
		return format.Print(cmd.OutOrStdout(), d, func(w io.Writer) error {
			all, own := sizes(d.Size)
			return fields(w, "repository", d.Repository, "created", clock(&d.CreatedAt), "last push", since(d.PushedAt),
				"tags", humanize.Comma(d.Tags), "manifests", humanize.Comma(d.Manifests), "size", all, "of its own", own)
		})
	})
	return cmd
}

func repoCreateCommand(src *command.Source) *cobra.Command {
	return &cobra.Command{
		Use: "create REPOSITORY", Short: "Create a repository before the first push to it", Args: cobra.ExactArgs(1),
		RunE: withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
			if _, err := api.CreateRepository.Call(cmd.Context(), c, api.RepositoryNew{Body: api.NewRepository{Repository: args[0]}}); err != nil {
				return err
			}
			return say(cmd, "Created repository %s.\n", args[0])
		}),
	}
}

func repoDeleteCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "delete REPOSITORY", Short: "Delete a repository with all its tags and manifests", Args: cobra.ExactArgs(1)}
	yes, holds := command.AddYes(cmd), addOverrideHolds(cmd)
	purge, fate := addPurge(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		in := repository(args[0])
		var d api.DescribedRepository
		if !*yes {
			var err error
			if d, err = api.GetRepository.Call(cmd.Context(), c, in); err != nil {
				return err
			}
		}
		if err := command.Confirm(cmd, *yes, "Delete repository %s with %s? %s", args[0], command.Count(d.Tags, "tag"), fate()); err != nil {
			return err
		}
		if _, err := api.DeleteRepository.Call(cmd.Context(), c, api.RepositoryDeletion{InRepository: in.InRepository, Override: *holds, Purge: *purge}); err != nil {
			return err
		}
		return say(cmd, "Deleted repository %s.\n", args[0])
	})
	return cmd
}

func repoVisibilityCommand(src *command.Source) *cobra.Command {
	return &cobra.Command{
		Use: "visibility REPOSITORY public|private", Short: "Say whether everybody may pull from a repository", Args: cobra.ExactArgs(2),
		RunE: withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
			if err := checkArg("public|private", args[1], checkChoice(catalog.Public, catalog.Private)); err != nil {
				return err
			}
			in := api.VisibilityChange{InRepository: api.InRepository{Repository: args[0]}}
			in.Body.Visibility = args[1]
			if _, err := api.ChangeVisibility.Call(cmd.Context(), c, in); err != nil {
				return err
			}
			return say(cmd, "Repository %s is %s now.\n", args[0], args[1])
		}),
	}
}

func namespaceCommand(src *command.Source) *cobra.Command {
	return addServer(command.Group("namespace", "Look at namespaces, create and delete them",
		namespaceListCommand(src), namespaceShowCommand(src), namespaceCreateCommand(src), namespaceDeleteCommand(src), namespaceLabelsCommand(src)))
}

// addNameFlags adds the flags --prefix and --contains, which restrict a list to names with this
// beginning or this part.
func addNameFlags(cmd *cobra.Command) *api.NameFilter {
	f := new(api.NameFilter)
	cmd.Flags().StringVar(&f.Prefix, "prefix", "", "only names that begin with `TEXT`")
	cmd.Flags().StringVar(&f.Contains, "contains", "", "only names that hold `TEXT`")
	return f
}

func namespaceListCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List namespaces", Args: cobra.NoArgs, Long: "List namespaces. " + sizesListed}
	listing, names := command.AddListing(cmd), addNameFlags(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, _ []string) error {
		list, more, err := api.List(cmd.Context(), c, api.ListNamespaces, api.NamespaceQuery{NameFilter: *names, Statistics: listsSizes(listing)}, listing.Limit)
		if err != nil {
			return err
		}
		return command.PrintList(cmd, listing, list, more, func(n browse.NamespaceInfo) string { return n.Name }, func(w io.Writer) error {
			head, rows := []string{"NAMESPACE", "REPOSITORIES", "SIZE", "CREATED"}, make([][]string, len(list))
			for i, n := range list {
				rows[i] = []string{n.Name, atLeast(n.Repositories), listedSize(n.Size), clock(&n.CreatedAt)}
				if !listsSizes(listing) {
					rows[i] = slices.Delete(rows[i], 2, 3)
				}
			}
			if !listsSizes(listing) {
				head = slices.Delete(head, 2, 3)
			}
			return table(w, head, rows, more)
		})
	})
	return cmd
}

// atLeast formats a count, followed by a plus sign if the count is only a lower bound.
func atLeast(n catalog.Count) string {
	if n.Exact {
		return humanize.Comma(n.Rows)
	}
	return humanize.Comma(n.Rows) + "+"
}

// sizes formats, for a repository or namespace, the size of all its blobs (`all`), and the
// size of the blobs that nothing else uses (`own`).
func sizes(s browse.Size) (all, own string) {
	atLeast := ""
	if !s.Exact {
		atLeast = "at least "
	}
	all, own = atLeast+command.Size(s.Bytes)+" in "+command.Count(s.Blobs, "blob"), "only shown to those who may pull everything"
	if s.OwnBytes != nil {
		own = atLeast + command.Size(*s.OwnBytes)
	}
	return all, own
}

// namespace is the input that asks for a namespace.
func namespace(name string) api.NamespaceSizes {
	return api.NamespaceSizes{InNamespace: api.InNamespace{Namespace: name}}
}

func namespaceShowCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "show NAMESPACE", Short: "Show how much a namespace holds", Args: cobra.ExactArgs(1)}
	format := command.AddFormat(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		found, err := api.GetNamespace.Call(cmd.Context(), c, namespace(args[0]))
		if err != nil {
			return err
		}
		d := found.NamespaceDetails
		return format.Print(cmd.OutOrStdout(), d, func(w io.Writer) error {
			all, own := sizes(d.Size)
			return fields(w, "namespace", d.Name, "created", clock(&d.CreatedAt),
				"repositories", humanize.Comma(d.Repositories), "size", all, "of its own", own)
		})
	})
	return cmd
}

func namespaceCreateCommand(src *command.Source) *cobra.Command {
	return &cobra.Command{
		Use: "create NAMESPACE", Short: "Create a namespace before the first push to it", Args: cobra.ExactArgs(1),
		RunE: withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
			if _, err := api.CreateNamespace.Call(cmd.Context(), c, api.NamespaceNew{Body: api.NewNamespace{Name: args[0]}}); err != nil {
				return err
			}
			return say(cmd, "Created namespace %s.\n", args[0])
		}),
	}
}

// say prints what was done.
func say(cmd *cobra.Command, format string, args ...any) error {
	if _, err := fmt.Fprintf(cmd.OutOrStdout(), format, args...); err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	return nil
}

func namespaceDeleteCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "delete NAMESPACE", Short: "Delete a namespace with all its repositories", Args: cobra.ExactArgs(1)}
	yes, holds := command.AddYes(cmd), addOverrideHolds(cmd)
	purge, fate := addPurge(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		var d api.NamespaceDetails
		var err error
		if !*yes { // the question says what would be deleted
			if d, err = api.GetNamespace.Call(cmd.Context(), c, namespace(args[0])); err != nil {
				return err
			}
		}
		err = command.Confirm(cmd, *yes, "Delete namespace %s with %s? %s", args[0], counted(d.Repositories, "repository", "repositories"), fate())
		if err != nil {
			return err
		}
		if _, err := api.DeleteNamespace.Call(cmd.Context(), c, api.NamespaceDeletion{Namespace: args[0], Override: *holds, Purge: *purge}); err != nil {
			return err
		}
		return say(cmd, "Deleted namespace %s.\n", args[0])
	})
	return cmd
}

func counted(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return humanize.Comma(n) + " " + many
}

// since formats a time; "never" for nil.
func since(t *time.Time) string {
	if t == nil {
		return "never"
	}
	return clock(t)
}

// findCommand makes the command that searches a registry.
func findCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "find TEXT", Short: "Search namespaces, repositories, tags and digests", Args: cobra.ExactArgs(1),
		Long: "Search everything from which you may pull. TEXT is a part of a name, the beginning of a tag's name, a digest or its\n" +
			"first 6 digits, repository:tag, repository@digest, or a reference as a client has printed it.",
	}
	format, limit := command.AddFormat(cmd), 10
	cmd.Flags().Var(command.Number(&limit, 1, 50), "limit", "show at most `N` of each kind")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		if strings.TrimSpace(args[0]) == "" {
			return command.Usagef("TEXT: it is empty")
		}
		found, err := api.Find.Call(cmd.Context(), c, api.FindQuery{Query: args[0], Limit: limit})
		if err != nil {
			return err
		}
		return format.Print(cmd.OutOrStdout(), found, func(w io.Writer) error {
			var rows [][]string
			for _, i := range found.Results {
				rows = append(rows, []string{i.Kind, i.Name, foundMore(i)})
			}
			if err := table(w, []string{"KIND", "NAME", "TAGS OR DIGEST"}, rows, false); err != nil {
				return err
			}
			if len(found.More) > 0 {
				_, err = fmt.Fprintf(w, "There may be more (%s): write more of the name, or repository:tag.\n", strings.Join(found.More, ", "))
			}
			return err
		})
	})
	return addServer(cmd)
}

// foundMore returns what is shown beside the name of a result: where a tag points, and which tags point to
// a manifest.
func foundMore(i api.FoundItem) string {
	switch i.Kind {
	case api.FoundTag:
		return i.Digest.String()
	case api.FoundManifest:
		return cmp.Or(strings.Join(i.Tags, ", "), "no tag")
	}
	return ""
}
