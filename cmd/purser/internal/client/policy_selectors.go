package client

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/oci"
)

// selectorFlags are the flags of a policy's selectors. Each has the name of a member of the
// policy's JSON.
type selectorFlags struct {
	repositories, mediaTypes, artifactTypes []string
	larger, smaller                         string
	annotations, labels                     map[string]string
	platforms                               []string
}

func (f *selectorFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.Var(listFlag{&f.repositories, oci.CheckPathPattern}, "repositories", "only in repositories that match one of these `PATTERNS`, such as acme/web/**; for policies of namespaces and defaults")
	flags.Var(listFlag{&f.mediaTypes, autoprune.CheckMediaType}, "media-type", "only tags whose manifests have one of these media `TYPES`; * stands for any characters")
	flags.Var(listFlag{&f.artifactTypes, autoprune.CheckMediaType}, "artifact-type", "only tags whose manifests have one of these artifact `TYPES`; * stands for any characters")
	textFlag(cmd, &f.larger, "larger-than", "", "only tags of more than this `SIZE`, such as 1GiB", checkSize)
	flags.Var(attributeFlag{&f.annotations}, "annotation", "only tags whose manifests have this annotation, as `KEY=VALUE`; * stands for any characters of the value; give it again for further annotations")
	flags.Var(attributeFlag{&f.labels}, "label", "only tags whose images have this label, as `KEY=VALUE`; * stands for any characters of the value; give it again for further labels")
	flags.Var(listFlag{&f.platforms, autoprune.CheckPlatform}, "platform", "only tags whose images are all for these `PLATFORMS`, such as linux/arm64 or windows/*")
	textFlag(cmd, &f.smaller, "smaller-than", "", "only tags of less than this `SIZE`, such as 100MB", checkSize)
}

// checkSize checks a size in bytes.
func checkSize(text string) error {
	_, err := autoprune.ParseSize(text)
	return err
}

// set sets the members of the policy's JSON.
func (f *selectorFlags) set(members map[string]any) {
	for name, list := range map[string][]string{"repositories": f.repositories, "mediaTypes": f.mediaTypes, "artifactTypes": f.artifactTypes, "platforms": f.platforms} {
		if len(list) > 0 {
			members[name] = list
		}
	}
	for name, values := range map[string]map[string]string{"annotations": f.annotations, "labels": f.labels} {
		if len(values) > 0 {
			members[name] = values
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
	return len(f.repositories)+len(f.mediaTypes)+len(f.artifactTypes)+len(f.annotations)+len(f.labels)+len(f.platforms) > 0 || f.larger != "" || f.smaller != ""
}

// attributeFlag is a flag that may be given several times, each time with KEY=VALUE. It
// implements pflag.Value.
type attributeFlag struct{ p *map[string]string }

func (v attributeFlag) String() string {
	if v.p == nil { // pflag calls it on the zero value
		return ""
	}
	var texts []string
	for _, key := range slices.Sorted(maps.Keys(*v.p)) {
		texts = append(texts, key+"="+(*v.p)[key])
	}
	return strings.Join(texts, ",")
}

func (v attributeFlag) Type() string { return "strings" }

func (v attributeFlag) Set(text string) error {
	key, value, err := autoprune.ParseAttribute(text)
	if err != nil {
		return err
	}
	if _, twice := (*v.p)[key]; twice {
		return fmt.Errorf("%.40q is given twice", key)
	}
	if *v.p == nil {
		*v.p = make(map[string]string)
	}
	(*v.p)[key] = value
	return nil
}
