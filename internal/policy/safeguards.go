package policy

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Mode says whether a policy deletes tags.
type Mode string

// The modes. A policy that was read has "" for On.
const (
	On      Mode = "on"
	Observe Mode = "observe" // runs only record what the policy would delete
	Off     Mode = "off"     // the policy has no effect
)

// MaxWindows is how many windows a policy may have.
const MaxWindows = 8

// Safeguards limit when and how much a policy deletes. The zero value doesn't limit it.
type Safeguards struct {
	// Mode is Observe, Off or "", which is On.
	Mode    Mode     `json:"mode,omitempty" enum:"on,observe,off" doc:"observe: the policy deletes nothing, but runs and previews show what it would delete. off: it has no effect. Default on, which answers leave out" flag:"mode" arg:"MODE" usage:"MODE: on, observe (delete nothing, and show in runs and previews what would be deleted) or off (default observe for a new policy, and what it is for another)"`
	Windows []Window `json:"windows,omitempty" maxItems:"8" doc:"The policy deletes tags only while one of these windows of time is open"`
	// Grace is zero if the policy doesn't say it, and NoWait if it has no grace period.
	Grace             Age      `json:"grace,omitzero" none:"0s" doc:"How long the policy waits when it is new or changed, after a notice of what it would delete. 0s: not at all. Default: the setting autoprune.grace" example:"7d" flag:"grace" arg:"AGE" usage:"let the policy wait for AGE, such as 7d, when it is new or changed, after a notice of what it would delete; 0s: not at all (default: autoprune.grace)" label:"Grace period" hint:"How long it waits after each change, with a notice of what it would delete. 0s: not at all."`
	MaxDeleted        int      `json:"maxDeleted,omitempty" minimum:"1" maximum:"1000000000" doc:"If a run would delete more tags by the policy, it deletes none by it and asks for an approval" example:"1000" flag:"max-deleted" arg:"N" usage:"if a run would delete more than N tags by the policy, delete none and ask for an approval" label:"Ask above so many tags in a run"`
	MaxDeletedPercent int      `json:"maxDeletedPercent,omitempty" minimum:"1" maximum:"100" doc:"The same, as a part of the tags that the policy looks at" example:"20" flag:"max-deleted-percent" arg:"PERCENTAGE" usage:"the same, with a PERCENTAGE of the tags that the policy looks at" label:"Ask above this percentage" hint:"Of the tags that it looks at."`
	RequireReporter   []string `json:"requireReporter,omitempty" maxItems:"32" check:"reporter" doc:"The policy deletes tags only while each of these reporters of what is deployed is live in the namespace" example:"[\"prod-eu\"]" flag:"require-reporter,repeated" arg:"REPORTER" usage:"delete tags only while this REPORTER of what is deployed is live in the namespace; may be repeated" label:"Only while these report" hint:"Reporters of what is deployed. While one of them isn't live, it deletes nothing. Commas between them." placeholder:"prod-eu"`
	// KeepUntagged is about manifests that nothing references, see Policy.Retains.
	KeepUntagged Age `json:"keepUntagged,omitzero" doc:"Garbage collection deletes a manifest that the policy's selectors select at the earliest after this age from when nothing references it. It only lengthens the review delay" example:"14d" flag:"keep-untagged" arg:"AGE" usage:"let garbage collection keep manifests for AGE, such as 14d, from when nothing references them" label:"Keep manifests without tags for" hint:"Empty: as long as garbage collection does."`
	NeverBelow   int `json:"neverBelow,omitempty" minimum:"1" maximum:"1000000000" doc:"In each of its repositories, this many of the newest tags stay, whatever policy selects them" example:"5" flag:"never-below" arg:"N" usage:"keep the newest N tags of each repository, whatever policies select them" label:"Always leave so many of the newest" hint:"In each repository, whatever policy selects them."`
}

// Floor returns how many of the newest tags stay in each of the policy's repositories, whatever policy selects
// them.
func (s *Safeguards) Floor() int { return s.NeverBelow }

// GraceGiven returns whether the policy says how long it waits when it is new or changed.
func (s *Safeguards) GraceGiven() bool { return s.Grace != Age{} }

// Capped returns whether the policy has a cap on what a run deletes and may delete tags.
func (s *Safeguards) Capped() bool {
	return s.Mode == "" && (s.MaxDeleted > 0 || s.MaxDeletedPercent > 0)
}

// MayDelete returns how many tags the policy's cap allows, if it considers so many.
func (s *Safeguards) MayDelete(considered int64) int64 {
	most := int64(MaxNumTags)
	if s.MaxDeleted > 0 {
		most = int64(s.MaxDeleted)
	}
	if s.MaxDeletedPercent > 0 {
		most = min(most, max(1, considered*int64(s.MaxDeletedPercent)/100))
	}
	return most
}

// Open returns whether the policy has no windows or one of them is open. If all are closed,
// `next` is when one opens, or the zero time if that isn't within two weeks.
func (s *Safeguards) Open(at time.Time) (open bool, next time.Time) {
	if len(s.Windows) == 0 || slices.ContainsFunc(s.Windows, func(w Window) bool { return w.Open(at) }) {
		return true, time.Time{}
	}
	for _, w := range s.Windows {
		if t := w.opens(at); !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	return false, next
}

// String describes the safeguards, such as: mode observe, never below 5. It is "" for none.
func (s Safeguards) String() string {
	var texts []string
	if s.Mode != "" {
		texts = append(texts, "mode "+string(s.Mode))
	}
	if s.GraceGiven() {
		texts = append(texts, "grace "+s.Grace.String())
	}
	for i, w := range s.Windows {
		texts = append(texts, []string{"only ", "or "}[min(i, 1)]+w.String())
	}
	if s.MaxDeleted > 0 {
		texts = append(texts, fmt.Sprintf("at most %d in a run", s.MaxDeleted))
	}
	if s.MaxDeletedPercent > 0 {
		texts = append(texts, fmt.Sprintf("at most %d%% in a run", s.MaxDeletedPercent))
	}
	if s.NeverBelow > 0 {
		texts = append(texts, fmt.Sprintf("never below %d", s.NeverBelow))
	}
	if len(s.RequireReporter) > 0 {
		texts = append(texts, "only with reports of "+strings.Join(s.RequireReporter, " and "))
	}
	if s.KeepUntagged != (Age{}) {
		texts = append(texts, "untagged manifests stay "+s.KeepUntagged.String())
	}
	return strings.Join(texts, ", ")
}
