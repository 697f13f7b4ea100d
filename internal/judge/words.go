package judge

import "strings"

// codeWords has for each Code what is true of the tags that are counted under it.
var codeWords = map[Code]string{
	TooOld: "pushed too long ago", BeyondNewest: "not among the newest", NotPulled: "last used too long ago", NeverPulled: "never used, and pushed too long ago",
	BeyondBytes: "beyond the size that stays", ImageGoes: "of an image that goes too", ImageMissing: "of an image that isn't in the repository",

	Protected: "protected by a rule", NoPolicy: "in a repository without a policy", NotMatched: "selected by no policy", Exempt: "restored by an undo, and exempt since",
	Young: "pushed not long enough ago", AmongNewest: "among the newest", NoGroup: "in no group", NoPlatform: "without a platform that is known",
	TooManyGroups: "in more groups than can be counted", RecentlyPulled: "used recently", WithinBytes: "within the size that stays",
	NoStatistics: "of a policy that can't tell their last use yet", ImageStays: "of an image that stays", ImageAwaited: "of an image that may still be pushed",

	KeptNewest: "kept by a rule: among the newest", KeptVersion: "kept by a rule: by version", KeptUsed: "kept by a rule: used recently", KeptPattern: "kept by a rule: by name",
	KeptPlatform: "kept by a rule: without a platform that is known", KeptUnknown: "kept by a rule: not known whether they are used",
	Doubtful: "with labels or platforms that aren't known", KeptDoubtful: "with labels or platforms that aren't known to a policy with keep rules",
	KeptFloor: "kept as the least number of a repository",

	InGrace: "of a policy in its grace period", Asks: "of a policy that waits for an approval", NoReporter: "of a policy whose reporter is silent",
	OutsideWindow: "of a policy that waits for its window", AwaitsConfirmation: "of a policy whose warnings nobody has confirmed", Inactive: "under policies that are off, only observe or delete no tags",
	Observed: "selected by a policy that only observes", Held: "deployed", PolicyUnreadable: "of a policy that can't be read",
}

// Words says what is true of the tags that are counted under the code, as a phrase behind their number.
func (c Code) Words() string {
	if words, ok := codeWords[c]; ok {
		return words
	}
	return strings.ReplaceAll(string(c), "_", " ") // of a newer version
}
