package client

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/policy"
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
	flags.Var(command.Number(&f.newest, 1, policy.MaxNumTags), "keep-newest", "keep the newest `N` tags, whatever policies select them")
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
func (f *keepFlags) rules() (rules []policy.KeepRule) {
	// Texts were checked when the command line was parsed.
	if f.newest != 0 {
		k := policy.KeepRule{Newest: f.newest, CountImages: f.images, PerPlatform: f.platforms}
		_ = k.GroupBy.UnmarshalText([]byte(f.groupBy))
		rules = append(rules, k)
	}
	if f.used != "" {
		var k policy.KeepRule
		_ = k.UsedWithin.UnmarshalText([]byte(f.used))
		rules = append(rules, k)
	}
	for _, pattern := range f.patterns {
		var k policy.KeepRule
		_ = k.TagPattern.UnmarshalText([]byte(pattern))
		rules = append(rules, k)
	}
	for _, text := range f.versions {
		k, _ := parseVersions(text)
		rules = append(rules, k)
	}
	return rules
}

// parseVersions reads the value of --keep-versions.
func parseVersions(text string) (k policy.KeepRule, err error) {
	kind, number, counted := strings.Cut(text, ":")
	k.Versions = policy.Versions(kind)
	switch k.Versions {
	case policy.Releases:
		if counted {
			return k, errors.New("releases keeps every release: leave the number out")
		}
		return k, nil
	case policy.NewestPatches, policy.NewestPrereleases:
	default:
		return k, fmt.Errorf("write %s, %s or %s", policy.Releases, policy.NewestPatches, policy.NewestPrereleases)
	}
	k.Newest = 1
	if counted {
		if k.Newest, err = strconv.Atoi(number); err != nil || k.Newest < 1 || k.Newest > policy.MaxNewestVersions {
			return k, fmt.Errorf("the number after the colon must be from 1 to %d", policy.MaxNewestVersions)
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
func keepsText(rules []policy.KeepRule) string {
	texts := make([]string, len(rules))
	for i, k := range rules {
		texts[i] = k.String()
	}
	return strings.Join(texts, ", ")
}
