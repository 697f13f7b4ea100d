package judge

import (
	"fmt"
	"slices"
	"time"

	"github.com/purser-registry/purser/internal/policy"
)

// Code is a short word for the reason why a tag is deleted or stays, such as too_old. Codes
// are stored in the audit log, so a code must never change its meaning.
type Code string

// Reasons to delete a tag.
const (
	TooOld       Code = "too_old"       // creation_date
	BeyondNewest Code = "beyond_newest" // number_of_tags
	NotPulled    Code = "not_pulled"    // last_pulled: the last use is too long ago
	NeverPulled  Code = "never_pulled"  // last_pulled: no use is known
	BeyondBytes  Code = "beyond_bytes"  // max_bytes
	ImageGoes    Code = "image_goes"    // an attached tag whose image loses its last tag
	ImageMissing Code = "image_missing" // removeOrphans: the image isn't there
)

// Reasons to keep a tag.
const (
	Protected      Code = "protected"       // a protection rule matches it
	NoPolicy       Code = "no_policy"       // no policy applies to the repository
	NotMatched     Code = "not_matched"     // no policy's pattern and selectors select it
	Exempt         Code = "exempt"          // an undo restored it
	Young          Code = "young"           // younger than the age of the policy
	AmongNewest    Code = "among_newest"    // number_of_tags
	NoGroup        Code = "no_group"        // number_of_tags: the tag is in no group
	NoPlatform     Code = "no_platform"     // number_of_tags, perPlatform: not all of its images have a platform that is known
	TooManyGroups  Code = "too_many_groups" // number_of_tags: there are too many groups to count in each
	RecentlyPulled Code = "recently_pulled" // last_pulled
	WithinBytes    Code = "within_bytes"    // max_bytes
	NoStatistics   Code = "no_statistics"   // last_pulled or max_bytes can't be judged yet
	ImageStays     Code = "image_stays"     // an attached tag whose image isn't going
	ImageAwaited   Code = "image_awaited"   // removeOrphans: the image isn't there, but the tag is young

	KeptNewest   Code = "kept_newest"   // a keep rule: among the newest tags
	KeptVersion  Code = "kept_version"  // a keep rule: its version
	KeptUsed     Code = "kept_used"     // a keep rule: pushed or used within its age
	KeptPattern  Code = "kept_pattern"  // a keep rule: its pattern matches
	KeptPlatform Code = "kept_platform" // a keep rule with perPlatform: not all of its images have a platform that is known
	KeptUnknown  Code = "kept_unknown"  // a keep rule: it isn't known whether the tag was used

	Doubtful     Code = "doubtful"      // it isn't known whether a policy's labels and platforms select it
	KeptDoubtful Code = "kept_doubtful" // the same, and this policy has keep rules

	KeptFloor Code = "kept_floor" // a policy's least number: among the newest tags of the repository

	InGrace       Code = "in_grace"       // the policy that selects it is in its grace period, or wasn't announced
	Asks          Code = "asks"           // the policy that selects it waits because of its cap
	NoReporter    Code = "no_reporter"    // the policy that selects it requires a reporter that isn't live
	OutsideWindow Code = "outside_window" // the policy that selects it waits for a window
	// AwaitsConfirmation: the policy that selects it rests until somebody confirms its warnings.
	AwaitsConfirmation Code = "awaits_confirmation"
	Inactive           Code = "inactive" // the policies that apply have the mode off or observe, or delete no tags
	Observed           Code = "observed" // a policy with the mode observe would delete it; only in previews

	Held Code = "held" // a reporter holds its manifest: see package hold

	PolicyUnreadable Code = "policy_unreadable" // a policy that might take it can't be read
)

// Decision says whether a tag is deleted, and why. [Verdict.Reason] describes it in words.
type Decision struct {
	Delete bool
	Code   Code
	// Policy is the index in Rules.Policies of the policy that Code refers to: the first
	// policy that selects the tag, or, for a tag that stays, the first that considered
	// it. It is -1 if Code refers to no policy.
	Policy int
	// Policies are all policies that select the tag; empty when the tag stays. An undo
	// exempts the tag from all of them, because the next run would otherwise delete it by
	// another of these policies.
	Policies PolicySet
}

// Notice says why a policy selects no tag at all, or why its keep rules keep more tags than
// they should.
type Notice struct {
	Policy int // index in Rules.Policies
	Text   string
}

// Reason returns a text for people that says why the tag is deleted or stays: a phrase
// without a full stop. d must be the decision that [Verdict.Decide] returned for this tag.
func (v *Verdict) Reason(t Tag, d Decision) string {
	var r *rule
	if d.Policy >= 0 {
		r = &v.rules[d.Policy]
	}
	switch d.Code {
	case TooOld:
		return fmt.Sprintf("pushed at %s, more than %s ago", Stamp(t.Created), r.policy.OlderThan)
	case BeyondNewest:
		return fmt.Sprintf("not among the newest %d%s%s", r.policy.NumTags, r.newest.which(&t), v.ofWhich(r))
	case NotPulled:
		return fmt.Sprintf("last used at %s, more than %s ago", Stamp(t.Used()), r.policy.OlderThan)
	case NeverPulled:
		return fmt.Sprintf("pushed at %s, more than %s ago, and no use recorded since %s",
			Stamp(t.Created), r.policy.OlderThan, Stamp(v.pulls.Since))
	case BeyondBytes, WithinBytes:
		return v.bytesReason(&t, r, d.Code)
	case ImageGoes:
		return "belongs to an image that loses its last tag"
	case ImageMissing:
		return "belongs to an image that isn't in the repository"
	case Protected:
		return "protected: " + v.protectedBy(&t)
	case Held:
		return "deployed: held by " + t.Held
	case NoPolicy:
		return "no policy applies"
	case NotMatched:
		return "no policy's pattern and selectors select it"
	case Exempt:
		return "restored by an undo, and exempt until the policy gets another rule or somebody ends that"
	case Young:
		return fmt.Sprintf("pushed at %s, no more than %s ago", Stamp(t.Created), r.policy.OlderThan)
	case AmongNewest:
		return fmt.Sprintf("among the newest %d%s%s", r.policy.NumTags, r.newest.which(&t), v.ofWhich(r))
	case NoGroup:
		return fmt.Sprintf("in no group by %s", policy.Quoted(r.policy.GroupBy))
	case NoPlatform:
		return platformText
	case TooManyGroups:
		return fmt.Sprintf("there are more than %d groups to count in", v.maxGroups)
	case RecentlyPulled:
		return fmt.Sprintf("last used at %s, no more than %s ago", Stamp(t.Used()), r.policy.OlderThan)
	case NoStatistics:
		return r.rests
	case KeptNewest, KeptVersion, KeptUsed, KeptPattern, KeptPlatform, KeptUnknown:
		return v.keptReason(&t)
	case Doubtful:
		return doubtText
	case KeptDoubtful:
		return "kept, because of policy " + r.id + " with keep rules " + doubtText
	case KeptFloor:
		if f := v.keptByFloor(&t); f != nil {
			return f.reason()
		}
	case InGrace, OutsideWindow, Asks, NoReporter, AwaitsConfirmation:
		return "selected by a policy that waits: " + r.waits
	case Inactive:
		if slices.ContainsFunc(v.rules, func(r rule) bool { return r.excepted }) {
			return "the repository is an exception, in which the policies of the namespace and of the registry delete nothing"
		}
		return "no policy that applies is on and deletes tags"
	case PolicyUnreadable:
		return fmt.Sprintf("policy %s selects nothing: %s", r.id, r.rests)
	case ImageStays:
		return "belongs to an image that this run doesn't delete"
	case ImageAwaited:
		return fmt.Sprintf("belongs to an image that isn't in the repository, but was pushed at %s, no more than %.0f hours ago",
			Stamp(t.Created), orphanAge.Hours())
	case Observed: // a preview knows the reason
	}
	return string(d.Code)
}

const platformText = "not all of its images have a platform that is known, so it isn't counted for any"

func Stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// ofWhich returns which tags a number_of_tags or max_bytes policy counts, "" for all.
func (v *Verdict) ofWhich(r *rule) (text string) {
	switch {
	case r.policy.TagPattern.IsZero():
	case r.policy.Excludes():
		text = fmt.Sprintf(" that don't match %s", policy.Quoted(r.policy.TagPattern))
	default:
		text = fmt.Sprintf(" that match %s", policy.Quoted(r.policy.TagPattern))
	}
	if first := v.order[0]; !v.rules[first].counts() { // r is in v.order, so it isn't empty
		text += " and that policies by age leave"
		if r.policy.TagPattern.IsZero() {
			text = " that policies by age leave"
		}
	}
	return text
}
