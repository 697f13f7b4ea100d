package client

import (
	"fmt"
	"io"

	"github.com/purser-registry/purser/internal/autoprune"
)

// printUntagged prints the untagged manifests of a preview.
func printUntagged(w io.Writer, p autoprune.Preview) error {
	if len(p.Untagged) == 0 {
		return nil
	}
	rows := make([][]string, len(p.Untagged))
	for i, m := range p.Untagged {
		rows[i] = []string{m.Repository + "@" + m.Digest, clock(&m.Deleted), m.Reason}
	}
	if err := table(w, []string{"UNTAGGED", "GOES AFTER", "STAYS UNTIL THEN BECAUSE OF"}, rows, false); err != nil {
		return err
	}
	if p.UntaggedMore {
		fmt.Fprintln(w, "… and more: see --limit.") //nolint:errcheck // an error shows up in the last write
	}
	_, err := fmt.Fprintln(w)
	return err
}
