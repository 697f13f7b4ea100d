package command

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Version is the version of a release, "" in other builds. Package main sets it before it
// reads the command line.
var Version string

// Main says that the running program is purser. It is false in tests, which run commands in the
// tests' own process.
var Main bool

// Build describes the source that this program was built from.
type Build struct {
	Version  string
	Revision string
}

// ReadBuild returns the version and revision of this program.
func ReadBuild() Build {
	b := Build{Version: Version, Revision: "unknown"}
	info, ok := debug.ReadBuildInfo()
	if ok && b.Version == "" {
		b.Version = info.Main.Version
	}
	b.Version = cmp.Or(b.Version, "(devel)")
	if !ok {
		return b
	}
	dirty := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			b.Revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+changes"
		}
	}
	b.Revision += dirty
	return b
}

func VersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := ReadBuild()
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "purser %s\nrevision %s\n%s %s/%s\n",
				b.Version, b.Revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
