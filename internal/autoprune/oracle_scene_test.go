package autoprune_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/policy"
)

const (
	oracleManifests = 14 // number of a scene's manifests
	oracleImageType = "application/vnd.oci.image.manifest.v1+json"
	oracleIndexType = "application/vnd.oci.image.index.v1+json"
	oracleChartType = "application/vnd.cncf.helm.config.v1+json"
)

// oracleScene is a repository with everything by which its tags are judged.
type oracleScene struct {
	oracleInput
	own map[string]int64 // sizes of the manifests without those that they list
}

// oracleDigest returns the digest of a manifest's number. Numbers above oracleManifests
// are manifests that no scene has.
func oracleDigest(number int) string { return oracleDigests[number] }

var oracleDigests, oracleNumbers = func() (digests []string, numbers map[string]int64) {
	numbers = map[string]int64{}
	for i := range 100 {
		digests = append(digests, autoprunetest.DigestOf(fmt.Sprint("manifest ", i)).String())
		if i > 0 && i <= oracleManifests {
			numbers[digests[i]] = int64(i)
		}
	}
	return digests, numbers
}()

// draw draws one of the values, each with the same likelihood.
func draw[T any](t *rapid.T, values ...T) T { return rapid.SampledFrom(values).Draw(t, "one of") }

// often draws true in one of n cases.
func often(t *rapid.T, n int) bool { return rapid.IntRange(0, n-1).Draw(t, "often") == n-1 }

// drawOracleScene draws a repository of up to 40 tags with up to 6 policies. The namespace's
// name is `namespace`. All times are whole hours, so that many are equal to a policy's age.
func drawOracleScene(t *rapid.T, namespace string) oracleScene {
	s := oracleScene{own: map[string]int64{}}
	s.now, s.maxGroups = oracleNow, 100_000
	s.repository = namespace + "/" + draw(t, "web", "web/front", "base")
	s.manifests = map[string]oracleManifest{}
	s.refuseDefaults = often(t, 8)
	s.statistics = oracleStatistics{since: oracleAgo(1000 * time.Hour), until: oracleNow}
	switch rapid.IntRange(0, 5).Draw(t, "statistics") {
	case 0:
		s.statistics.since = time.Time{}
	case 1:
		s.statistics.since = oracleAgo(time.Duration(rapid.IntRange(1, 60).Draw(t, "since")) * time.Hour)
	case 2:
		s.statistics.until = oracleAgo(draw(t, 59*time.Minute, time.Hour, 61*time.Minute))
	}
	drawOracleManifests(t, &s)
	var seen []string
	for range rapid.IntRange(1, 6).Draw(t, "policies") {
		p, key := drawOraclePolicy(t, namespace)
		if !slices.Contains(seen, key) {
			seen = append(seen, key)
			p.drawn = p.text
			p.text = oracleResolve(p.drawn, s.now)
			s.policies = append(s.policies, p)
		}
	}
	s.protections = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"^v1\\.0", "^x3$", `\.att$`, "-rc", "7"}), 0, 2, rapid.ID[string]).Draw(t, "protections")
	// rapid prefers small numbers; most scenes have a minimum of tags for this reason.
	least := draw(t, 0, 10, 25, 38)
	for _, name := range rapid.SliceOfNDistinct(rapid.Custom(drawOracleName), least, 40, rapid.ID[string]).Draw(t, "names") {
		s.tags = append(s.tags, drawOracleTag(t, name, len(s.policies)))
	}
	return s
}

func drawOracleManifests(t *rapid.T, s *oracleScene) {
	for i := 1; i <= oracleManifests; i++ {
		m := oracleManifest{mediaType: oracleImageType, artifactType: draw(t, "", "", oracleChartType)}
		own := int64(draw(t, 900, 1000, 1024, 2000))
		m.size = own
		if i > 2 && often(t, 3) {
			m.mediaType, m.artifactType = oracleIndexType, ""
			for _, child := range rapid.SliceOfNDistinct(rapid.IntRange(1, i-1), 1, 2, rapid.ID[int]).Draw(t, "children") {
				m.children = append(m.children, oracleDigest(child))
				m.size += s.own[oracleDigest(child)]
			}
		}
		if often(t, 6) {
			m.subject = oracleDigest(draw(t, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 99))
		}
		drawOracleAttributes(t, &m)
		s.own[oracleDigest(i)], s.manifests[oracleDigest(i)] = own, m
	}
	drawOracleContents(t, s)
}

func drawOracleName(t *rapid.T) string {
	switch rapid.IntRange(0, 5).Draw(t, "kind of name") {
	case 0:
		of := draw(t, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 99, 98, 97, 96)
		name := strings.Replace(oracleDigest(of), ":", "-", 1) + draw(t, "", ".sig", ".att", ".sbom", ".other")
		if of > 97 && often(t, 3) {
			name = "sha512-" + strings.Split(oracleDigest(of), ":")[1]
		}
		return name
	case 1, 2, 3:
		return draw(t, "v", "", "V") + draw(t, "1", "1", "2", "01") + "." + draw(t, "0", "1", "10") + draw(t, ".0", ".1", ".2", ".10", ".02", "") +
			draw(t, "", "", "", "-rc1", "-rc.1", "-rc9", "-RC10", "-alpine", "-alpine3.20", "-rc1-alpine3", "-20260301", "-debian-12-r3",
				"-beta.x.2", "-beta.2", "-m2", "-1", "_b1", "-slim_b2")
	default:
		return draw(t, "x", "pr-", "y-pr-", "release-") + fmt.Sprint(rapid.IntRange(1, 12).Draw(t, "number"))
	}
}

func drawOracleTag(t *rapid.T, name string, policies int) oracleTag {
	hours := func(label string) time.Time {
		return oracleAgo(time.Duration(rapid.IntRange(-1, 60).Draw(t, label)) * time.Hour)
	}
	one := oracleTag{name: name, manifest: oracleDigest(draw(t, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14)), pushed: hours("pushed")}
	if often(t, 2) {
		one.used = hours("used")
	}
	if often(t, 8) {
		one.exempt = map[int]bool{rapid.IntRange(0, policies-1).Draw(t, "exempt"): true}
	}
	return one
}

// drawOraclePolicy draws a policy. Policies with equal keys mean the same.
func drawOraclePolicy(t *rapid.T, namespace string) (p oraclePolicy, key string) {
	p.scope = draw(t, "namespace", "repository", "default", "setting", "namespace", "repository")
	method := draw(t, "number_of_tags", "creation_date", "last_pulled", "max_bytes", "number_of_tags", "creation_date", "last_pulled", "max_bytes", "untagged")
	own, value := "olderThan", `"`+draw(t, "1h", "3h", "12h", "1d", "30h", "2d", "120m")+`"`
	if method == "number_of_tags" {
		own, value = "numTags", fmt.Sprint(rapid.IntRange(1, 9).Draw(t, "number of tags"))
	}
	if method == "max_bytes" {
		own, value = "maxBytes", `"`+draw(t, "1", "2kB", "5kB", "9000", "12kB", "16KiB", "25kB", "1GiB")+`"`
	}
	if method == "untagged" {
		more := draw(t, "", `, "mode": "off"`, `, "mode": "observe"`, `, "mediaTypes": ["application/vnd.oci.image.*"]`) + drawOracleAttributeSelectors(t)
		return oraclePolicy{scope: p.scope, text: fmt.Sprintf(`{"method": "untagged", %q: %s%s}`, draw(t, "olderThan", "value"), value, more)}, p.scope + method + value + more
	}
	var more strings.Builder
	if often(t, 2) {
		fmt.Fprintf(&more, `, "tagPattern": %q`, draw(t, "^v", "pr-", "^[^s]", " [0-4]$ ", "^(pr-|sha)", "."))
		more.WriteString(draw(t, "", "", `, "tagPatternMatches": true`, `, "tagPatternMatches": false`))
	}
	if often(t, 2) {
		more.WriteString(`, "removeOrphans": true`)
	}
	if often(t, 3) {
		more.WriteString(draw(t, `, "mediaTypes": ["application/vnd.oci.image.*"]`, `, "mediaTypes": ["*INDEX*", "x"]`,
			`, "artifactTypes": ["application/*helm*"]`, `, "largerThan": "1kB"`, `, "smallerThan": "1KiB"`, `, "largerThan": "1000", "smallerThan": "2kB"`))
	}
	more.WriteString(drawOracleAttributeSelectors(t))
	if p.scope != "repository" && often(t, 4) {
		fmt.Fprintf(&more, `, "repositories": [%q]`, namespace+draw(t, "/web", "/*", "/**", "/w*/f*", "/base"))
	}
	if often(t, 2) {
		var keeps []string
		for range rapid.IntRange(1, 3).Draw(t, "keep rules") {
			keeps = append(keeps, drawOracleKeep(t))
		}
		more.WriteString(`, "keep": [` + strings.Join(keeps, ", ") + "]")
	}
	more.WriteString(drawOracleSafeguards(t))
	if method == "number_of_tags" {
		more.WriteString(drawOracleCounting(t))
	}
	key = p.scope + method + value + more.String()
	p.text = fmt.Sprintf(`{"method": %q, %q: %s%s}`, method, draw(t, own, own, "value"), value, more.String())
	return p, key
}

func drawOracleKeep(t *rapid.T) string {
	n := rapid.IntRange(1, 4).Draw(t, "newest")
	switch rapid.IntRange(0, 7).Draw(t, "kind of keep rule") {
	case 0:
		return fmt.Sprintf(`{"newest": %d%s}`, n, draw(t, "", `, "countImages": true`, `, "perPlatform": true`))
	case 1, 2:
		return fmt.Sprintf(`{"newest": %d, "groupBy": %q}`, n, draw(t, `^([a-z]+)`, `^v?([0-9]+\.[0-9]+)\.`, `^(v)?.*?([0-9])$`))
	case 3:
		return fmt.Sprintf(`{"usedWithin": %q}`, draw(t, "1h", "5h", "600m", "1d"))
	case 4:
		return fmt.Sprintf(`{"tagPattern": %q}`, draw(t, "^release-", "^v1", "[357]$"))
	case 5:
		return `{"versions": "releases"}`
	case 6:
		return fmt.Sprintf(`{"versions": "newest_patches", "newest": %d}`, n)
	default:
		return draw(t, `{"versions": "newest_prereleases"}`, fmt.Sprintf(`{"versions": "newest_prereleases", "newest": %d}`, n))
	}
}

// judged gives the scene to Evaluate. It returns for each tag that goes the sorted indexes
// of the policies that select it.
func (s oracleScene) judged(t rapid.TB) map[string][]int {
	t.Helper()
	scopes := map[string][]judge.Applied{}
	asks := s.asks()
	for i, p := range s.policies {
		applied := judge.Applied{ID: fmt.Sprint(i), Policy: autoprunetest.Parsed(t, p.text), Everywhere: p.scope == "setting"}
		if asks[i] {
			applied.Capped = "it asks"
		}
		if slices.ContainsFunc(applied.Policy.RequireReporter, func(name string) bool { return !slices.Contains(oracleReporters, name) }) {
			applied.Unreported = "it rests"
		}
		scope := strings.Replace(p.scope, "setting", "default", 1)
		applied.Scope = policy.Scope(scope)
		scopes[scope] = append(scopes[scope], applied)
	}
	all := judge.Combine(scopes["default"], scopes["namespace"], scopes["repository"], s.refuseDefaults)
	all = slices.DeleteFunc(all, func(a judge.Applied) bool { return !a.Policy.AppliesIn(s.repository) })
	r := judge.Rules{Now: s.now, Would: s.would, Policies: all, Protection: oracleProtect(t, s.protections...), MaxGroups: s.maxGroups}
	r.Pulls = judge.PullRecord{Since: s.statistics.since, Behind: s.now.Sub(s.statistics.until)}
	var tags []judge.Tag
	for i, one := range s.tags {
		m := s.manifests[one.manifest]
		tag := judge.Tag{
			Name: one.name, Created: one.pushed, Manifest: oracleNumbers[one.manifest], Image: s.image(one),
			MediaType: m.mediaType, ArtifactType: m.artifactType, Size: m.size,
		}
		*[]*time.Time{&tag.Pulled, &tag.ManifestPulled, &tag.Checked}[i%3] = one.used
		tag.Platforms = judge.PlatformsOf(s.attributes(one.manifest).Images)
		for place, a := range all {
			switch selected, known := a.Policy.MatchAttributes(s.attributes(one.manifest)); {
			case selected:
				tag.Matched |= judge.PolicySet(0).With(place)
			case known:
				tag.Unmatched |= judge.PolicySet(0).With(place)
			}
			if id, _ := strconv.Atoi(a.ID); one.exempt[id] {
				tag.Exempt |= judge.PolicySet(0).With(place)
			}
		}
		tags = append(tags, tag)
	}
	v := oracleEvaluate(t, r, s.withContent(judge.Repository{Tags: oracleEach(tags), Parents: oracleParents(s.references())}))
	taken := map[string][]int{}
	for _, tag := range tags {
		d := v.Decide(tag)
		if d.Delete {
			taken[tag.Name] = []int{}
		}
		for place := range d.Policies.All() {
			id, _ := strconv.Atoi(all[place].ID)
			taken[tag.Name] = append(taken[tag.Name], id)
		}
		slices.Sort(taken[tag.Name])
	}
	return taken
}

// image returns the value of Tag.Image, as the reader of tags finds it in the database.
func (s oracleScene) image(one oracleTag) int64 {
	named, isNamed := judge.AttachedTo(one.name)
	subject := s.manifests[one.manifest].subject
	if id := oracleNumbers[named.String()]; isNamed && id > 0 {
		return id
	}
	switch id := oracleNumbers[subject]; {
	case id > 0:
		return id
	case isNamed || subject != "":
		return judge.MissingImage
	}
	return 0
}

func (s oracleScene) references() (list []judge.Reference) {
	for _, parent := range slices.Sorted(maps.Keys(s.manifests)) {
		for _, child := range s.manifests[parent].children {
			list = append(list, judge.Reference{Parent: oracleNumbers[parent], Child: oracleNumbers[child]})
		}
	}
	return list
}
