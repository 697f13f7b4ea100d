package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Version is the version of a release. Package main sets it before it reads the command line.
var Version string

// Build describes the source that this program was built from.
type Build struct {
	version  string
	revision string
}

// readBuild returns the version and revision of this program.
func readBuild() Build {
	b := Build{version: Version, revision: "unknown"}
	info, ok := debug.ReadBuildInfo()
	if ok && b.version == "" {
		b.version = info.Main.Version
	}
	b.version = cmp.Or(b.version, "(devel)")
	if !ok {
		return b
	}
	dirty := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			b.revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+changes"
		}
	}
	b.revision += dirty
	return b
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := readBuild()
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "purser %s\nrevision %s\n%s %s/%s\n",
				b.version, b.revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
