package client

import (
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/autoprune"
)

// countingFlags are the flags that say what --num-tags counts.
type countingFlags struct {
	groupBy                      string
	perBranch, images, platforms bool
}

func (f *countingFlags) add(cmd *cobra.Command) {
	textFlag(cmd, &f.groupBy, "group-by", "", "let --num-tags count in each group: what the parentheses of this `REGEXP` capture in a name. A tag in no group stays", checkPattern)
	cmd.Flags().BoolVar(&f.perBranch, "per-branch", false, "let --num-tags count in each branch, for names such as main-3f2a9c1 or main-20260301; other tags stay")
	cmd.Flags().BoolVar(&f.images, "count-images", false, "let --num-tags count images: tags of the same manifest count as one")
	cmd.Flags().BoolVar(&f.platforms, "per-platform", false, "let --num-tags count for each platform; a tag stays if it is among the newest of any of its platforms, or if these aren't all known")
}

// given says whether any of the flags was given.
func (f *countingFlags) given() bool { return *f != countingFlags{} }

// check returns an error if the flags contradict each other. `counts` says whether the policy counts
// tags.
func (f *countingFlags) check(counts bool) error {
	switch {
	case f.given() && !counts:
		return command.Usagef("%s goes only with --num-tags N", f.first())
	case f.groupBy != "" && f.perBranch:
		return command.Usagef("--per-branch is a --group-by: give one of them")
	}
	return nil
}

// first returns the name of a flag that was given.
func (f *countingFlags) first() string {
	switch {
	case f.groupBy != "":
		return "--group-by"
	case f.perBranch:
		return "--per-branch"
	case f.images:
		return "--count-images"
	}
	return "--per-platform"
}

// set adds the members of the policy for which flags were given.
func (f *countingFlags) set(members map[string]any) {
	switch {
	case f.perBranch:
		members["groupBy"] = autoprune.BranchPattern
	case f.groupBy != "":
		members["groupBy"] = f.groupBy
	}
	if f.images {
		members["countImages"] = true
	}
	if f.platforms {
		members["perPlatform"] = true
	}
}
