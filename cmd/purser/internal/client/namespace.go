package client

import (
	"fmt"
	"io"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/internal/catalog"
)

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
	cmd := &cobra.Command{Use: "list", Short: "List namespaces", Args: cobra.NoArgs}
	format, limit, names := command.AddFormat(cmd), addLimit(cmd), addNameFlags(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, _ []string) error {
		list, more, err := api.List(cmd.Context(), c, api.ListNamespaces, api.NamespaceQuery{NameFilter: *names}, *limit)
		if err != nil {
			return err
		}
		return format.Print(cmd.OutOrStdout(), list, func(w io.Writer) error {
			rows := make([][]string, len(list))
			for i, n := range list {
				rows[i] = []string{n.Name, atLeast(n.Repositories), clock(&n.CreatedAt)}
			}
			return table(w, []string{"NAMESPACE", "REPOSITORIES", "CREATED"}, rows, more)
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
func sizes(s catalog.Size) (all, own string) {
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
