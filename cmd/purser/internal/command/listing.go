package command

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// Listing has the flags of a command that lists something.
type Listing struct {
	Format *Format
	Quiet  *bool // the names alone
	Limit  int   // most that are listed; 0: all
}

// AddListing adds the flags --output, --quiet and --limit.
func AddListing(cmd *cobra.Command) *Listing {
	l := AddUnlimitedListing(cmd)
	l.Limit = 100
	cmd.Flags().Var(Number(&l.Limit, 0, MaxListed), "limit", "list at most `N`; 0: all")
	return l
}

// AddUnlimitedListing is like AddListing, for a command whose flag --limit has other bounds.
func AddUnlimitedListing(cmd *cobra.Command) *Listing {
	l := &Listing{Format: AddFormat(cmd), Quiet: cmd.Flags().BoolP("quiet", "q", false, "print the names alone, one a line, for scripts")}
	cmd.MarkFlagsMutuallyExclusive("output", "quiet")
	return l
}

// Cut returns as many items of a list as are to be listed, and whether there are more.
func Cut[T any](l *Listing, list []T) (cut []T, more bool) {
	if l.Limit == 0 || len(list) <= l.Limit {
		return list, false
	}
	return list[:l.Limit], true
}

// PrintList prints a list as its flags say: as JSON, the names of its items, or by `text`, which says
// itself if there are more items. Otherwise standard error says so if nobody has asked for the limit, so
// that no script takes the list for whole.
func PrintList[T any](cmd *cobra.Command, l *Listing, list []T, more bool, name func(T) string, text func(w io.Writer) error) error {
	return l.Print(cmd, list, more, func(w io.Writer) error {
		for _, item := range list {
			if _, err := fmt.Fprintln(w, Printable(name(item))); err != nil {
				return fmt.Errorf("printing: %w", err)
			}
		}
		return nil
	}, text)
}

// Print is like PrintList, for an answer that has a list.
func (l *Listing) Print(cmd *cobra.Command, answer any, more bool, names, text func(w io.Writer) error) (err error) {
	if *l.Quiet {
		err = names(cmd.OutOrStdout())
	} else {
		err = l.Format.Print(cmd.OutOrStdout(), answer, text)
	}
	if limited := cmd.Flags().Changed("limit"); err == nil && more && !limited && (*l.Quiet || *l.Format != Text) {
		_, err = fmt.Fprintln(cmd.ErrOrStderr(), MoreListed)
	}
	return err
}

// MoreListed says that a list has more items than were asked for.
const MoreListed = "… and more: --limit 0 lists all."
