package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/policy"
)

// policyFlags are the flags that describe a policy: either as JSON in one flag, or with a
// flag for each member.
type policyFlags struct {
	json, preset string
	own          memberFlags // those of members
	untagged     string
	not          bool
	perBranch    bool
	windows      []string
	keep         keepFlags
}

func addPolicyFlags(cmd *cobra.Command) *policyFlags {
	f, flags := new(policyFlags), cmd.Flags()
	textFlag(cmd, &f.json, "policy", "", "the policy as `JSON`, in place of the flags below", checkPolicy)
	addPreset(cmd, &f.preset)
	f.own = addMembers(cmd)
	textFlag(cmd, &f.untagged, "untagged", "", "no tags: let garbage collection delete untagged manifests after `AGE`, such as 14d, and not before", checkAge)
	flags.BoolVar(&f.not, "not-matching", false, "only tags in whose names the pattern isn't found")
	flags.BoolVar(&f.perBranch, "per-branch", false, "let --num-tags count in each branch, for names such as main-3f2a9c1 or main-20260301; other tags stay")
	flags.Var(repeatedFlag{&f.windows, checkWindow}, "window", "delete tags only in this `WINDOW` of time, such as 'mon-fri 22:00-06:00 Europe/Berlin'; may be repeated")
	f.keep.add(cmd)
	return f
}

// given says whether a flag but --policy was given.
func (f *policyFlags) given() bool {
	return f.preset != "" || f.untagged != "" || f.not || f.perBranch || len(f.windows) > 0 || len(f.own.given()) > 0 || f.keep.given()
}

// checkPolicy checks a policy's JSON.
func checkPolicy(text string) error {
	if !json.Valid([]byte(text)) {
		return errors.New(`it isn't JSON; write it like '{"method": "creation_date", "olderThan": "2w"}'`)
	}
	_, err := policy.Parse([]byte(text))
	return err
}

// body returns the policy as JSON for the API.
func (f *policyFlags) body() (api.PolicyText, error) {
	if f.json != "" {
		if f.given() {
			return nil, command.Usagef("--policy has all of it: leave the other flags out")
		}
		return api.PolicyText(f.json), nil
	}
	members, err := f.ofPreset()
	if err != nil {
		return nil, err
	}
	maps.Copy(members, f.own.given())
	if f.untagged != "" {
		members[untaggedFlag] = f.untagged
	}
	if f.perBranch {
		if f.own.given()["groupBy"] != nil {
			return nil, command.Usagef("--per-branch is a --group-by: give one of them")
		}
		members["groupBy"] = policy.BranchPattern
	}
	if err := f.check(members); err != nil {
		return nil, err
	}
	setMethod(members)
	if f.not {
		members["tagPatternMatches"] = false
	}
	f.addWindows(members)
	if rules := f.keep.rules(); len(rules) > 0 {
		kept, _ := members["keep"].([]policy.KeepRule)
		members["keep"] = slices.Concat(kept, rules)
	}
	return json.Marshal(members)
}

// change returns what a stored policy, with its JSON, becomes by the flags, as JSON for the API. If all of
// them are safeguards, it selects what it did before; otherwise the flags describe a policy that replaces it.
func (f *policyFlags) change(stored api.PolicyView, text []byte) (api.PolicyText, error) {
	if !f.areSafeguards() {
		return f.body()
	}
	if stored.Problem != "" {
		return nil, command.Usagef("the stored policy can't be read (%s), so say with the other flags what it is to delete", stored.Problem)
	}
	stays := make(map[string]json.RawMessage)
	if err := json.Unmarshal(text, &stays); err != nil {
		return nil, err
	}
	members := make(map[string]any, len(stays))
	for name, value := range stays {
		members[name] = value
	}
	maps.Copy(members, f.own.given())
	f.addWindows(members)
	return json.Marshal(members)
}

// addWindows sets the member windows, if a window was given.
func (f *policyFlags) addWindows(members map[string]any) {
	var windows []policy.Window
	for _, text := range f.windows {
		windows = append(windows, parseWindow(text))
	}
	if windows != nil {
		members["windows"] = windows
	}
}

// areSafeguards says whether flags were given, and all of them are safeguards.
func (f *policyFlags) areSafeguards() bool {
	if !f.given() || f.json != "" || f.preset != "" || f.untagged != "" || f.not || f.perBranch || f.keep.given() {
		return false
	}
	for name := range f.own.given() {
		if !policy.MemberOf(name).IsSafeguard() {
			return false
		}
	}
	return true
}

// untaggedFlag is where the age of --untagged stands in the members until setMethod.
const untaggedFlag = "untagged"

// setMethod sets the method that the members ask for.
func setMethod(members map[string]any) {
	methods := map[string]policy.Method{"numTags": policy.NumberOfTags, "maxBytes": policy.MaxBytes, untaggedFlag: policy.UntaggedManifests}
	for member, method := range methods {
		if members[member] != nil && members["method"] == nil {
			members["method"] = method
		}
	}
	if members["method"] == nil {
		members["method"] = policy.CreationDate
	}
	if age := members[untaggedFlag]; age != nil {
		members["olderThan"] = age
		delete(members, untaggedFlag)
	}
}

// check returns an error if the flags contradict each other.
func (f *policyFlags) check(members map[string]any) error {
	if err := checkMethod(members); err != nil {
		return err
	}
	for _, name := range []string{"groupBy", "countImages", "perPlatform"} {
		if members[name] != nil && members["numTags"] == nil {
			flag, _ := policy.MemberOf(name).Flag()
			if f.perBranch && name == "groupBy" {
				flag = "per-branch"
			}
			return command.Usagef("--%s goes only with --num-tags N", flag)
		}
	}
	switch {
	case f.keep.groupBy != "" && f.keep.newest == 0:
		return command.Usagef("--keep-group needs --keep-newest N")
	case f.keep.images && f.keep.newest == 0:
		return command.Usagef("--keep-count-images needs --keep-newest N")
	case f.keep.platforms && f.keep.newest == 0:
		return command.Usagef("--keep-per-platform needs --keep-newest N")
	case f.not && members["tagPattern"] == nil:
		return command.Usagef("--not-matching needs --pattern REGEXP")
	}
	return nil
}

// checkMethod returns an error unless there is exactly the flag that the method needs.
func checkMethod(members map[string]any) error {
	methodFlags := []struct {
		member, name string
		argued       string // with an argument
		methods      []policy.Method
	}{
		{"numTags", "--num-tags", "--num-tags N", []policy.Method{policy.NumberOfTags}},
		{"olderThan", "--older-than", "--older-than AGE, such as 2w", []policy.Method{policy.CreationDate, policy.LastPulled}},
		{"maxBytes", "--max-bytes", "--max-bytes SIZE, such as 50GiB", []policy.Method{policy.MaxBytes}},
		{untaggedFlag, "--untagged", "--untagged AGE, such as 14d", []policy.Method{policy.UntaggedManifests}},
	}
	first := ""
	wanted, _ := members["method"].(string)
	for _, flag := range methodFlags {
		given := members[flag.member] != nil
		switch own := slices.Contains(flag.methods, policy.Method(wanted)); {
		case given && first != "":
			return command.Usagef("%s and %s are two policies: create one for each", first, flag.name)
		case given && wanted != "" && !own:
			for _, other := range methodFlags {
				if slices.Contains(other.methods, policy.Method(wanted)) {
					return command.Usagef("%s isn't for --method %s, which needs %s", flag.name, wanted, other.argued)
				}
			}
		case given:
			first = flag.name
		case own:
			return command.Usagef("--method %s needs %s", wanted, flag.argued)
		}
	}
	if first == "" {
		return command.Usagef("say which tags to delete: --older-than AGE, --num-tags N, --max-bytes SIZE, or --policy JSON; or, for manifests without tags, --untagged AGE")
	}
	return nil
}

// memberFlags return the values of members of a policy whose flags were given; nil for the others.
type memberFlags map[string]func() any

// addMembers adds a flag for each member of a policy that has one.
func addMembers(cmd *cobra.Command) memberFlags {
	f := make(memberFlags)
	for _, m := range policy.Members() {
		if name, repeated := m.Flag(); name != "" {
			f[m.Name] = addMember(cmd, m, name, repeated)
		}
	}
	return f
}

func addMember(cmd *cobra.Command, m policy.Member, name string, repeated bool) func() any {
	switch flags := cmd.Flags(); m.Kind {
	case policy.Text:
		text, check := new(string), m.Check
		if choices := m.Choices(); choices != nil {
			check = checkChoice(choices...)
		}
		textFlag(cmd, text, name, "", m.Usage(), check)
		return func() any { return given(*text != "", *text) }
	case policy.Whole:
		n := new(int)
		flags.Var(command.Number(n, 1, m.Most()), name, m.Usage())
		return func() any { return given(*n != 0, *n) }
	case policy.Flag:
		set := flags.Bool(name, false, m.Usage())
		return func() any { return given(*set, true) }
	case policy.List:
		list := new([]string)
		if repeated {
			flags.Var(repeatedFlag{list, m.Check}, name, m.Usage())
		} else {
			flags.Var(listFlag{list, m.Check}, name, m.Usage())
		}
		return func() any { return given(len(*list) > 0, *list) }
	case policy.Map:
		values := new(map[string]string)
		flags.Var(attributeFlag{values}, name, m.Usage())
		return func() any { return given(len(*values) > 0, *values) }
	default: // there is no flag for lists of objects as such
		panic(fmt.Sprintf("the member %s can't have a flag", m.Name))
	}
}

func given(is bool, value any) any {
	if !is {
		return nil
	}
	return value
}

// given returns the members whose flags were given.
func (f memberFlags) given() map[string]any {
	members := make(map[string]any)
	for name, value := range f {
		if v := value(); v != nil {
			members[name] = v
		}
	}
	return members
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
	key, value, err := policy.ParseAttribute(text)
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

// parseWindow reads a window: days, times and a time zone in this order, divided by spaces;
// each may be left out. checkWindow says whether the result makes sense.
func parseWindow(text string) (w policy.Window) {
	words := strings.Fields(text)
	if len(words) > 0 && !strings.Contains(words[0], ":") {
		w.Days, words = parseDays(words[0]), words[1:]
	}
	if len(words) > 0 && strings.Contains(words[0], ":") {
		w.From, w.To, _ = strings.Cut(words[0], "-")
		words = words[1:]
	}
	w.Zone = strings.Join(words, " ")
	return w
}

// parseDays reads days and ranges of days, such as mon-thu,sat.
func parseDays(text string) (days []string) {
	week := []string{"mon", "tue", "wed", "thu", "fri", "sat", "sun"}
	for _, part := range strings.Split(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		from, to := slices.Index(week, first), slices.Index(week, last)
		if !isRange || from < 0 || to < 0 {
			days = append(days, part)
			continue
		}
		for i := from; ; i = (i + 1) % len(week) {
			days = append(days, week[i])
			if i == to {
				break
			}
		}
	}
	slices.Sort(days)
	return slices.Compact(days)
}

// checkWindow lets the reader of policies check the window.
func checkWindow(text string) error {
	window, err := json.Marshal(parseWindow(text))
	if err != nil {
		return err
	}
	_, err = policy.Parse(fmt.Appendf(nil, `{"method": "number_of_tags", "numTags": 1, "windows": [%s]}`, window))
	if err != nil {
		return fmt.Errorf("write it like 'mon-fri 22:00-06:00 Europe/Berlin': %s", strings.TrimPrefix(strings.TrimPrefix(err.Error(), "windows[0]"), "."))
	}
	return nil
}
