package client

import (
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/oci"
)

// selectorFlags are the flags of a policy's selectors. Each has the name of a member of the
// policy's JSON.
type selectorFlags struct {
	repositories, mediaTypes, artifactTypes []string
	larger, smaller                         string
}

func (f *selectorFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	size := func(text string) error {
		_, err := autoprune.ParseSize(text)
		return err
	}
	flags.Var(listFlag{&f.repositories, oci.CheckPathPattern}, "repositories", "only in repositories that match one of these `PATTERNS`, such as acme/web/**; for policies of namespaces and defaults")
	flags.Var(listFlag{&f.mediaTypes, autoprune.CheckMediaType}, "media-type", "only tags whose manifests have one of these media `TYPES`; * stands for any characters")
	flags.Var(listFlag{&f.artifactTypes, autoprune.CheckMediaType}, "artifact-type", "only tags whose manifests have one of these artifact `TYPES`; * stands for any characters")
	textFlag(cmd, &f.larger, "larger-than", "", "only tags of more than this `SIZE`, such as 1GiB", size)
	textFlag(cmd, &f.smaller, "smaller-than", "", "only tags of less than this `SIZE`, such as 100MB", size)
}

// set sets the members of the policy's JSON.
func (f *selectorFlags) set(members map[string]any) {
	for name, list := range map[string][]string{"repositories": f.repositories, "mediaTypes": f.mediaTypes, "artifactTypes": f.artifactTypes} {
		if len(list) > 0 {
			members[name] = list
		}
	}
	for name, size := range map[string]string{"largerThan": f.larger, "smallerThan": f.smaller} {
		if size != "" {
			members[name] = size
		}
	}
}

// given says whether any of the flags was given.
func (f *selectorFlags) given() bool {
	return len(f.repositories)+len(f.mediaTypes)+len(f.artifactTypes) > 0 || f.larger != "" || f.smaller != ""
}
