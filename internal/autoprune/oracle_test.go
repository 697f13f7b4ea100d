package autoprune_test

import (
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The oracle decides which tags of a repository go, by what policies promise: docs/auto-prune.md, and where that leaves a corner open, the definitions here. It is
// written as plain loops over lists, and shares no code with package autoprune, so that a
// mistake there isn't repeated here.

// oracleInput is everything that the oracle's decision depends on.
type oracleInput struct {
	now            time.Time
	repository     string
	policies       []oraclePolicy
	refuseDefaults bool // the namespace has switched off the default policies
	protections    []string
	tags           []oracleTag
	manifests      map[string]oracleManifest // manifests of the repository by digest
	statistics     oracleStatistics
	maxGroups      int
	would          bool // policies that observe or wait delete tags, too
	unwaiting      bool // policies that wait delete tags, too
}

// oraclePolicy is the JSON of a policy. Its scope is "repository", "namespace", "default",
// or "setting" for the policy of the configuration.
// drawn is the text before oracleResolve.
type oraclePolicy struct{ scope, text, drawn string }

// oracleStatistics says from when until when the pull statistics are complete.
type oracleStatistics struct{ since, until time.Time }

type oracleTag struct {
	name, manifest string
	pushed         time.Time
	used           time.Time    // zero if the tag was never used
	exempt         map[int]bool // policies that don't delete the tag again after an undo
}

type oracleManifest struct {
	subject                 string
	children                []string
	mediaType, artifactType string
	size                    int64
	bytes                   int64            // of the manifest itself
	blobs                   map[string]int64 // sizes of its configuration and its layers by name
	annotations             map[string]string
	configuration           *oracleConfiguration // nil if it has none
	listed                  []oracleListed       // what an index lists
}

// oracleListed is an entry of an index. Its platform is "" if the index doesn't name it.
type oracleListed struct{ digest, platform string }

// oracleFate says what happens to a tag. The documentation doesn't say which of several
// policies a run names as the reason, so `selected` has all of them.
type oracleFate struct {
	goes                bool
	selected            []string // "age 0", "last use 1", "number 2", "bytes 3", "orphan 4": kind and policy
	kept                []string // "newest 0", "usedWithin 1", …: kind of rule and policy
	protected, attached bool
	orphan              bool
	exempt              bool // a policy would select the tag but for an undo
	unjudged            bool // a policy by last use can't judge the tag, or a policy is in doubt about it
	doubted             bool // a policy is in doubt about it, so that policies by number don't count it
	waits               bool // a policy that waits selects the tag
	tooMany             bool // a policy by number would select it but for too many groups
	unplatformed        bool // a policy by number that counts for each platform doesn't know its platforms
	ungrouped           bool // it is in no group of a policy by number that looks at it
	unplaced            bool // a max_bytes policy doesn't know when it was last used
}

// oracleRule is a policy as its JSON has it.
type oracleRule struct {
	index   int
	Method  string
	NumTags *json.Number
	oracleCounting
	MaxBytes          *oracleSize
	OlderThan         *string
	Value             json.RawMessage
	TagPattern        *string
	TagPatternMatches *bool
	RemoveOrphans     *bool
	Repositories      []string
	MediaTypes        []string
	ArtifactTypes     []string
	LargerThan        oracleSize
	SmallerThan       oracleSize
	Annotations       map[string]string
	Labels            map[string]string
	Platforms         []string
	Mode              *string
	Windows           []oracleWindow
	NeverBelow        *int
	KeepUntagged      *string
	RequireReporter   []string
	MaxDeleted        *int
	MaxDeletedPercent *int
	asks              bool
	Keep              []oracleKeep
}

type oracleKeep struct {
	Newest *int
	oracleCounting
	UsedWithin *string
	TagPattern *string
	Versions   *string
}

// oracleSize is a size in bytes, 0 if the policy has none.
type oracleSize int64

func (s *oracleSize) UnmarshalJSON(text []byte) error {
	units := []struct {
		name   string
		factor int64
	}{
		{"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
		{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	}
	digits := strings.Trim(string(text), `"`)
	if digits == "null" {
		return nil
	}
	factor := int64(1)
	for _, u := range units {
		if before, found := strings.CutSuffix(digits, u.name); found {
			digits, factor = strings.TrimSpace(before), u.factor
			break
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	*s = oracleSize(n * factor)
	return err
}

func oracleAge(text string) time.Duration {
	seconds := map[byte]int64{'s': 1, 'm': 60, 'h': 3600, 'd': 86400, 'w': 7 * 86400, 'y': 365 * 86400}
	last := len(text) - 1
	n, err := strconv.ParseInt(text[:last], 10, 64)
	if err != nil || seconds[text[last]] == 0 {
		panic("age " + text)
	}
	return time.Duration(n*seconds[text[last]]) * time.Second
}

func (r oracleRule) age() time.Duration {
	if r.OlderThan != nil {
		return oracleAge(*r.OlderThan)
	}
	return oracleAge(strings.Trim(string(r.Value), `"`))
}

func (r oracleRule) number() int {
	text := strings.Trim(string(r.Value), `"`)
	if r.NumTags != nil {
		text = r.NumTags.String()
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return n
}

func (r oracleRule) removesOrphans() bool { return r.RemoveOrphans != nil && *r.RemoveOrphans }

// oracleGlob matches a text with a pattern. If `slash` is set, only `**` matches slashes.
func oracleGlob(pattern, text string, slash bool) bool {
	if pattern == "" {
		return text == ""
	}
	if pattern[0] != '*' {
		return text != "" && pattern[0] == text[0] && oracleGlob(pattern[1:], text[1:], slash)
	}
	rest := strings.TrimLeft(pattern, "*")
	across := !slash || len(pattern)-len(rest) > 1
	for i := 0; i <= len(text); i++ {
		if oracleGlob(rest, text[i:], slash) {
			return true
		}
		if i < len(text) && text[i] == '/' && !across {
			return false
		}
	}
	return false
}

// oracleRules returns the policies that apply to the repository.
func oracleRules(in oracleInput) (rules []oracleRule) {
	own := false
	for _, p := range in.policies {
		own = own || p.scope == "namespace"
	}
	for i, p := range in.policies {
		if p.scope == "default" && (own || in.refuseDefaults) || p.scope == "setting" && in.refuseDefaults {
			continue
		}
		r := oracleRule{index: i}
		if err := json.Unmarshal([]byte(p.text), &r); err != nil {
			panic(p.text + ": " + err.Error())
		}
		applies := r.Repositories == nil
		for _, pattern := range r.Repositories {
			applies = applies || oracleGlob(pattern, in.repository, true)
		}
		if applies && r.mode() != "off" {
			rules = append(rules, r)
		}
	}
	return rules
}

func oracleFound(pattern, name string) bool {
	return oracleExpression(pattern).MatchString(name)
}

var oracleExpressions sync.Map // patterns that were compiled before

func oracleExpression(pattern string) *regexp.Regexp {
	if compiled, ok := oracleExpressions.Load(pattern); ok {
		return compiled.(*regexp.Regexp)
	}
	compiled := regexp.MustCompile(strings.TrimSpace(pattern))
	oracleExpressions.Store(pattern, compiled)
	return compiled
}

// looksAt reports whether the policy's pattern and selectors select a tag that isn't attached.
func (r oracleRule) looksAt(in oracleInput, t oracleTag) bool {
	return r.looksAtOthers(in, t) && r.attributes(in, t) == "yes"
}

// inDoubt reports whether the policy is in doubt about a tag that isn't attached.
func (r oracleRule) inDoubt(in oracleInput, t oracleTag) bool {
	return r.looksAtOthers(in, t) && r.attributes(in, t) == "doubt"
}

// looksAtOthers reports whether the pattern and the other selectors select the tag.
func (r oracleRule) looksAtOthers(in oracleInput, t oracleTag) bool {
	if r.TagPattern != nil {
		wanted := r.TagPatternMatches == nil || *r.TagPatternMatches
		if oracleFound(*r.TagPattern, t.name) != wanted {
			return false
		}
	}
	m := in.manifests[t.manifest]
	is := func(patterns []string, text string) bool {
		return slices.ContainsFunc(patterns, func(p string) bool {
			return text != "" && oracleGlob(strings.ToLower(p), strings.ToLower(text), false)
		})
	}
	switch {
	case r.MediaTypes != nil && !is(r.MediaTypes, m.mediaType):
		return false
	case r.ArtifactTypes != nil && !is(r.ArtifactTypes, m.artifactType):
		return false
	case r.LargerThan != 0 && m.size <= int64(r.LargerThan):
		return false
	case r.SmallerThan != 0 && m.size >= int64(r.SmallerThan):
		return false
	}
	return true
}

// oracleImage returns the digest of the image that a tag belongs to, and whether the
// repository has the image. The digest is "" if the tag belongs to none. The image in the
// tag's name, if the repository has it, comes before the subject of the tag's manifest.
func oracleImage(in oracleInput, t oracleTag) (image string, present bool) {
	named := ""
	m := oracleExpression(`^(sha256|sha512)-([0-9a-f]{64})(\.sig|\.att|\.sbom)?$`).FindStringSubmatch(t.name)
	if m != nil {
		named = m[1] + ":" + m[2]
		for digest := range in.manifests {
			if strings.HasPrefix(digest, named) {
				return digest, true
			}
		}
	}
	subject := in.manifests[t.manifest].subject
	_, present = in.manifests[subject]
	if subject == "" {
		return named, false
	}
	return subject, present
}

// newer reports whether tag t is newer than tag u.
func (t oracleTag) newer(u oracleTag) bool {
	return t.pushed.After(u.pushed) || t.pushed.Equal(u.pushed) && t.name > u.name
}

// reaches reports whether the pull statistics can tell which tags were used within an age.
func (s oracleStatistics) reaches(now time.Time, age time.Duration) bool {
	return !s.since.IsZero() && s.since.Before(now.Add(-age)) && !s.until.Before(now.Add(-time.Hour))
}

// missing reports whether there are no pull statistics, or only late ones.
func (s oracleStatistics) missing(now time.Time) bool {
	return s.since.IsZero() || s.until.Before(now.Add(-time.Hour))
}

func oracle(in oracleInput) map[string]oracleFate {
	rules := oracleRules(in)
	fates := map[string]oracleFate{}
	var tags []oracleTag
	for _, t := range in.tags {
		image, present := oracleImage(in, t)
		// A tag that names the digest of its own manifest is a tag of the image.
		f := oracleFate{attached: present && image != t.manifest, orphan: image != "" && !present}
		for _, p := range in.protections {
			f.protected = f.protected || oracleFound(p, t.name)
		}
		if !f.attached {
			tags = append(tags, t)
		}
		fates[t.name] = f
	}
	selecting := rules
	if !in.would {
		selecting = slices.DeleteFunc(slices.Clone(rules), func(r oracleRule) bool { return r.mode() == "observe" })
	}
	selecting = oracleCaps(in, selecting, fates)
	oracleByAge(in, selecting, tags, fates)
	tooMany := oracleGroups(in, selecting, rules, tags, fates) > in.maxGroups
	byNumber, byBytes := oracleByNumber(in, selecting, tags, fates, tooMany), oracleByBytes(in, selecting, tags, fates)
	for _, t := range tags {
		f := fates[t.name]
		f.selected = slices.Concat(f.selected, byNumber[t.name], byBytes[t.name])
		fates[t.name] = f
	}
	oracleKeeps(in, rules, tags, fates, tooMany)
	oracleFloors(rules, tags, fates)
	for _, t := range tags {
		f := fates[t.name]
		f.goes = len(f.selected) > 0 && len(f.kept) == 0 && !f.protected
		fates[t.name] = f
	}
	oracleAttached(in, fates)
	return fates
}

// oracleByAge applies the policies by age and by last use, and the removal of orphans.
func oracleByAge(in oracleInput, rules []oracleRule, tags []oracleTag, fates map[string]oracleFate) {
	for _, r := range rules {
		for _, t := range tags {
			doubt := r.inDoubt(in, t)
			if !doubt && !r.looksAt(in, t) {
				continue
			}
			f := fates[t.name]
			kind := ""
			switch {
			case r.Method == "untagged": // it deletes no tags
			case r.removesOrphans() && f.orphan:
				if in.now.Sub(t.pushed) > 24*time.Hour {
					kind = "orphan"
				}
			case r.Method == "number_of_tags" || r.Method == "max_bytes":
			case in.now.Sub(t.pushed) <= r.age():
			case r.Method == "creation_date":
				kind = "age"
			case !in.statistics.reaches(in.now, r.age()) || in.now.Sub(t.used) > r.age():
				kind = "last use"
			}
			unjudged := kind != "" && (r.Method == "last_pulled" && !in.statistics.reaches(in.now, r.age()) ||
				r.Method == "max_bytes" && in.statistics.missing(in.now))
			if unjudged {
				kind = ""
			}
			if doubt {
				f.doubted, unjudged, kind = f.doubted || kind != "" || unjudged, unjudged || kind != "", ""
			}
			switch {
			case kind != "" && t.exempt[r.index]:
				f.exempt = true
			case kind != "" && r.waits(in):
				f.waits = true
			case kind != "":
				f.selected = append(f.selected, kind+" "+strconv.Itoa(r.index))
			}
			f.unjudged = f.unjudged || unjudged
			fates[t.name] = f
		}
	}
}

// oracleByNumber applies the policies by number to the tags that no policy by age or last use
// selects. It returns the tags that they select.
func oracleByNumber(in oracleInput, rules []oracleRule, tags []oracleTag, fates map[string]oracleFate, tooMany bool) map[string][]string {
	selected := map[string][]string{}
	for _, r := range rules {
		if r.Method != "number_of_tags" || r.waits(in) {
			continue
		}
		kind := "number "
		switch {
		case r.CountImages:
			kind = "number of images "
		case r.PerPlatform:
			kind = "number of platform "
		case r.grouped():
			kind = "number of group "
		}
		looked, mayGo, counted := oracleCounted(in, r, tags, fates)
		// The policy deletes tags that it doesn't count, too.
		for _, t := range mayGo {
			name, _ := r.groupOf(t)
			among := slices.ContainsFunc(r.groupsOf(in, name, t), func(group string) bool {
				return r.newer(t, r.inGroup(in, group, looked), r.inGroup(in, group, counted)) < r.number()
			})
			switch {
			case among:
			case r.grouped() && tooMany:
				f := fates[t.name]
				f.tooMany = true
				fates[t.name] = f
			default:
				selected[t.name] = append(selected[t.name], kind+strconv.Itoa(r.index))
			}
		}
	}
	return selected
}

// oracleAttached lets attached tags follow their images. It repeats this, since an
// attached tag's manifest may have attached tags itself.
func oracleAttached(in oracleInput, fates map[string]oracleFate) {
	for again := true; again; {
		again = false
		for _, t := range in.tags {
			f := fates[t.name]
			if !f.attached || f.goes || f.protected {
				continue
			}
			image, _ := oracleImage(in, t)
			takers, has := map[int]bool{}, false
			for _, u := range in.tags {
				if u.manifest != image && !oracleContains(in, u.manifest, image, 0) {
					continue
				}
				has = has || !fates[u.name].goes
				for _, i := range fates[u.name].policies() {
					takers[i] = true
				}
			}
			for i := range takers {
				if !has && !t.exempt[i] {
					f.goes, again = true, true
					f.selected = append(f.selected, "attached "+strconv.Itoa(i))
				}
			}
			fates[t.name] = f
		}
	}
}

// policies returns the policies that select the tag.
func (f oracleFate) policies() (list []int) {
	for _, s := range f.selected {
		i, err := strconv.Atoi(s[strings.LastIndexByte(s, ' ')+1:])
		if err != nil {
			panic(err)
		}
		list = append(list, i)
	}
	return list
}

// oracleContains reports whether an index lists an image, itself or through other indexes.
func oracleContains(in oracleInput, index, image string, depth int) bool {
	for _, child := range in.manifests[index].children {
		if child == image || depth < 10 && oracleContains(in, child, image, depth+1) {
			return true
		}
	}
	return false
}
