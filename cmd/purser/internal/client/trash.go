package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/trash"
)

func trashCommand(src *command.Source) *cobra.Command {
	cmd := command.Group("trash", "Restore deleted repositories and namespaces",
		trashListCommand(src), trashShowCommand(src), trashRestoreCommand(src), trashPurgeCommand(src))
	cmd.Long = "Restore deleted repositories and namespaces. A deleted one stays in the trash for the time of the server's setting\n" +
		"trash.keep, with its tags, policies, rules, rights and robots."
	return addServer(cmd)
}

// addPurge adds the flag --purge to the commands that delete a repository or a namespace. `fate` returns
// the sentence that says whether the deletion can be undone.
func addPurge(cmd *cobra.Command) (purge *bool, fate func() string) {
	purge = cmd.Flags().Bool("purge", false, "delete it for good, so that it can't be restored: see \"purser trash\"")
	return purge, func() string {
		if *purge {
			return "That can't be undone."
		}
		return "It can be restored only as long as the server keeps it in the trash."
	}
}

// listTrash returns what is in the trash, of a namespace or ("") of all.
func listTrash(ctx context.Context, c *api.Client, namespace string) ([]trash.Trashed, error) {
	list, _, err := api.List(ctx, c, api.ListTrash, api.TrashQuery{Namespace: namespace}, 0)
	return list, err
}

// trashKey is the form of ids in the trash.
var trashKey = regexp.MustCompile(`^(repository|namespace)-[0-9]+$`)

// trashID returns the id of something in the trash that a command line names: by its id or, as
// "trash list" shows it, by the name that it had. It returns an error if several had the name, or if
// one had a name that may be the id of another.
func trashID(ctx context.Context, c *api.Client, arg string) (string, error) {
	if trashKey.MatchString(arg) {
		return arg, noName(ctx, c, arg)
	}
	namespace, _, _ := strings.Cut(arg, "/")
	ids, err := trashNamed(ctx, c, namespace, arg)
	if err != nil {
		return "", err
	}
	if len(ids) == 0 {
		// The list of a namespace leaves out what was in it when it was deleted itself. The whole list,
		// which an administrator of the registry sees, has that.
		if all, err := trashNamed(ctx, c, "", arg); err == nil {
			ids = all
		}
	}
	switch len(ids) {
	case 0:
		return "", command.Refuse(fmt.Sprintf("nothing in the trash was called %s: \"purser trash list\" shows what there is", arg))
	case 1:
		return ids[0], nil
	}
	return "", command.Refuse(fmt.Sprintf("%d things in the trash were called %s: name one by its id, %s", len(ids), arg, strings.Join(ids, ", ")))
}

// noName returns an error if something in the trash, of what the client may restore, was called like
// the id `id`.
func noName(ctx context.Context, c *api.Client, id string) error {
	ids, err := trashNamed(ctx, c, id, id)
	if e, ok := errors.AsType[*api.Error](err); ok && (e.Status == http.StatusForbidden || e.Status == http.StatusNotFound) {
		return nil // there is nothing of such a namespace, or nothing that the client may know of
	}
	if err == nil && len(ids) > 0 {
		return command.Refuse(fmt.Sprintf("%s may be an id, and is the name that something in the trash had: name that by its id, %s, or look at the list of \"purser trash list\"",
			id, strings.Join(ids, ", ")))
	}
	return err
}

// trashNamed returns the ids of what was called so, of a namespace ("": of all).
func trashNamed(ctx context.Context, c *api.Client, namespace, name string) (ids []string, err error) {
	list, err := listTrash(ctx, c, namespace)
	for _, t := range list {
		if t.Name == name {
			ids = append(ids, t.ID)
		}
	}
	return ids, err
}

func trashListCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "list [NAMESPACE]", Short: "List what can be restored", Args: cobra.MaximumNArgs(1)}
	listing := command.AddListing(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		namespace := ""
		if len(args) > 0 {
			namespace = args[0]
		}
		all, err := listTrash(cmd.Context(), c, namespace)
		if err != nil {
			return err
		}
		list, more := command.Cut(listing, all)
		return command.PrintList(cmd, listing, list, more, func(t trash.Trashed) string { return t.ID }, func(w io.Writer) error {
			if len(list) == 0 {
				_, err := fmt.Fprintln(w, "The trash is empty.")
				return err
			}
			rows := make([][]string, len(list))
			for i, t := range list {
				rows[i] = []string{t.ID, t.Name, since(&t.DeletedAt), clock(&t.ExpiresAt), t.DeletedBy}
			}
			return table(w, []string{"ID", "NAME", "DELETED", "KEPT UNTIL", "BY"}, rows, more)
		})
	})
	return cmd
}

func trashShowCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "show ID|NAME", Short: "Show something in the trash, and what keeps it from being restored", Args: cobra.ExactArgs(1)}
	format := command.AddFormat(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		id, err := trashID(cmd.Context(), c, args[0])
		if err != nil {
			return err
		}
		t, err := api.GetTrash.Call(cmd.Context(), c, api.TrashItem{ID: id})
		if err != nil {
			return err
		}
		return format.Print(cmd.OutOrStdout(), t, func(w io.Writer) error {
			var why []string
			for _, conflict := range t.Conflicts {
				why = append(why, conflict.Name+": "+conflict.Why)
			}
			return fields(w, "id", t.ID, "name", t.Name, "deleted", since(&t.DeletedAt), "by", t.DeletedBy, "kept until", clock(&t.ExpiresAt),
				"repositories", upTo(t.Repos), "tags", upTo(t.Tags), "manifests", upTo(t.Manifests), "conflicts", strings.Join(why, "; "))
		})
	})
	return cmd
}

// upTo formats a number at which counting may have stopped.
func upTo(n catalog.Count) string {
	if n.Exact {
		return humanize.Comma(n.Rows)
	}
	return "over " + humanize.Comma(n.Rows)
}

func trashRestoreCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "restore ID|NAME", Short: "Restore a deleted repository or namespace", Args: cobra.ExactArgs(1)}
	as := cmd.Flags().String("as", "", "give it this `NAME`; a repository stays in its namespace (default: the name that it had)")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		id, err := trashID(cmd.Context(), c, args[0])
		if err != nil {
			return err
		}
		out, err := api.RestoreTrash.Call(cmd.Context(), c, api.TrashRestoration{TrashItem: api.TrashItem{ID: id}, Body: api.RestoreForm{As: *as}})
		if err != nil {
			return err
		}
		return say(cmd, "Restored %s.\n", out.Name)
	})
	return cmd
}

func trashPurgeCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "purge ID|NAME", Short: "Delete something in the trash for good", Args: cobra.ExactArgs(1)}
	yes := command.AddYes(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		id, err := trashID(cmd.Context(), c, args[0])
		if err != nil {
			return err
		}
		t, err := api.GetTrash.Call(cmd.Context(), c, api.TrashItem{ID: id})
		if err != nil {
			return err
		}
		if err := command.Confirm(cmd, *yes, "Delete the %s %s (%s) for good? That can't be undone.", t.Kind, t.Name, t.ID); err != nil {
			return err
		}
		if _, err := api.PurgeTrash.Call(cmd.Context(), c, api.TrashItem{ID: id}); err != nil {
			return err
		}
		return say(cmd, "Purged %s.\n", t.Name)
	})
	return cmd
}
