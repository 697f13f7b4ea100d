package policy

import "slices"

// Preset is a policy that many people want, under a name. Whoever chooses it saves an ordinary policy.
type Preset struct {
	Name   string
	Title  string // what it is for, as a phrase
	Policy string // JSON
}

// Presets are the presets that the command line and the web UI offer. docs/auto-prune.md has them,
// too, with the tags that they select.
var Presets = []Preset{
	{
		"releases", "releases forever, the rest 30 days",
		`{"method": "creation_date", "olderThan": "30d", "neverBelow": 10,
 "keep": [{"versions": "releases"}, {"usedWithin": "30d"}, {"tagPattern": "^[A-Za-z]+$"}]}`,
	},
	{
		"pull-requests", "pull requests two weeks",
		`{"method": "creation_date", "olderThan": "2w", "tagPattern": "^(?i:pr|mr|pull)-[0-9]+($|-)"}`,
	},
	{
		"branches", "the newest 10 of each branch",
		`{"method": "number_of_tags", "numTags": 10, "groupBy": "^(.+)-(?:g?[0-9a-f]{7,40}|[0-9]{4}-[0-9]{2}-[0-9]{2})$"}`,
	},
	{
		"untagged", "manifests without tags two weeks",
		`{"method": "untagged", "olderThan": "2w"}`,
	},
}

// PresetOf returns a preset by its name.
func PresetOf(name string) (Preset, bool) {
	i := slices.IndexFunc(Presets, func(p Preset) bool { return p.Name == name })
	if i < 0 {
		return Preset{}, false
	}
	return Presets[i], true
}
