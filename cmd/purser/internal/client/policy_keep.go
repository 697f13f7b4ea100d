package client

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/autoprune"
)

// keepFlags are the flags that describe a policy's keep rules.
type keepFlags struct {
	newest             int
	groupBy, used      string
	images, platforms  bool
	patterns, versions []string
}

func (f *keepFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.Var(command.Number(&f.newest, 1, autoprune.MaxNumTags), "keep-newest", "keep the newest `N` tags, whatever policies select them")
	textFlag(cmd, &f.groupBy, "keep-group", "", "let --keep-newest keep N tags of each group: what the parentheses of this `REGEXP` capture in their names", checkPattern)
	flags.BoolVar(&f.images, "keep-count-images", false, "let --keep-newest count images: tags of the same manifest count as one")
	flags.BoolVar(&f.platforms, "keep-per-platform", false, "let --keep-newest keep N tags of each platform, and tags whose platforms aren't all known")
	textFlag(cmd, &f.used, "keep-used", "", "keep tags that were pushed or used within `AGE`, such as 30d", checkAge)
	flags.Var(repeatedFlag{&f.patterns, checkPattern}, "keep-pattern", "keep tags in whose names this `REGEXP` is found; may be repeated")
	flags.Var(repeatedFlag{&f.versions, checkVersions}, "keep-versions",
		"keep tags by their versions: releases, newest_patches[:N] of each minor version, or newest_prereleases[:N]; may be repeated (`KIND`)")
}

// given says whether any of the flags was given.
func (f *keepFlags) given() bool {
	return f.newest != 0 || f.groupBy != "" || f.images || f.platforms || f.used != "" || len(f.patterns)+len(f.versions) > 0
}

// rules returns the keep rules in the API's format.
func (f *keepFlags) rules() (rules []autoprune.KeepForm) {
	if f.newest != 0 {
		rules = append(rules, autoprune.KeepForm{Newest: f.newest, GroupBy: f.groupBy, CountImages: f.images, PerPlatform: f.platforms})
	}
	if f.used != "" {
		rules = append(rules, autoprune.KeepForm{UsedWithin: f.used})
	}
	for _, pattern := range f.patterns {
		rules = append(rules, autoprune.KeepForm{TagPattern: pattern})
	}
	for _, text := range f.versions {
		k, _ := parseVersions(text) // checked when the command line was parsed
		rules = append(rules, k)
	}
	return rules
}

// parseVersions reads the value of --keep-versions.
func parseVersions(text string) (k autoprune.KeepForm, err error) {
	kind, number, counted := strings.Cut(text, ":")
	k.Versions = autoprune.Versions(kind)
	switch k.Versions {
	case autoprune.Releases:
		if counted {
			return k, errors.New("releases keeps every release: leave the number out")
		}
		return k, nil
	case autoprune.NewestPatches, autoprune.NewestPrereleases:
	default:
		return k, fmt.Errorf("write %s, %s or %s", autoprune.Releases, autoprune.NewestPatches, autoprune.NewestPrereleases)
	}
	k.Newest = 1
	if counted {
		if k.Newest, err = strconv.Atoi(number); err != nil || k.Newest < 1 || k.Newest > autoprune.MaxNewestVersions {
			return k, fmt.Errorf("the number after the colon must be from 1 to %d", autoprune.MaxNewestVersions)
		}
	}
	return k, nil
}

func checkVersions(text string) error {
	_, err := parseVersions(text)
	return err
}

// repeatedFlag is a flag that may be given several times; `check` checks each value. It
// implements pflag.Value.
type repeatedFlag struct {
	p     *[]string
	check func(text string) error
}

func (v repeatedFlag) String() string {
	if v.p == nil { // pflag calls it on the zero value
		return ""
	}
	return strings.Join(*v.p, " ")
}
func (v repeatedFlag) Type() string { return "string" }

func (v repeatedFlag) Set(text string) error {
	if err := v.check(text); err != nil {
		return err
	}
	*v.p = append(*v.p, text)
	return nil
}

// keepsText describes a policy's keep rules, "" for none.
func keepsText(rules []autoprune.KeepForm) string {
	texts := make([]string, len(rules))
	for i, k := range rules {
		texts[i] = k.String()
	}
	return strings.Join(texts, ", ")
}
