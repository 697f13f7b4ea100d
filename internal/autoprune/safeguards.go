package autoprune

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/hold"
)

// The JSON fields of a policy's safeguards.
const (
	fieldMode       = "mode"
	fieldGrace      = "grace"
	fieldMaxDeleted = "maxDeleted"
	fieldMaxPercent = "maxDeletedPercent"
	fieldNeverBelow = "neverBelow"
	fieldWindows    = "windows"
	fieldReporters  = "requireReporter"
)

// Mode says whether a policy deletes tags.
type Mode string

// The modes.
const (
	On      Mode = "on"
	Observe Mode = "observe" // runs only record what the policy would delete
	Off     Mode = "off"     // the policy has no effect
)

// MaxWindows is how many windows a policy may have.
const MaxWindows = 8

// safeguards limit when and how much a policy deletes. The zero value doesn't limit it.
type safeguards struct {
	mode       Mode // Observe, Off or "", which is On
	windows    []window
	neverBelow int // 0: no limit
	grace      Age // graceGiven: zero is none; otherwise: Options.Grace
	graceGiven bool
	maxDeleted int      // 0: no cap
	maxPercent int      // 0: no cap
	reporters  []string // that must be live; nil: none
	untagged   Age      // zero: none, see untagged.go
}

// SafeguardForm are the safeguards of a policy in its JSON.
type SafeguardForm struct {
	Mode              Mode         `json:"mode,omitempty" enum:"on,observe,off" doc:"observe: the policy deletes nothing, but runs and previews show what it would delete. off: it has no effect. Default on, which answers leave out"`
	Windows           []WindowForm `json:"windows,omitempty" maxItems:"8" doc:"The policy deletes tags only while one of these windows of time is open"`
	Grace             string       `json:"grace,omitempty" doc:"How long the policy waits when it is new or changed, after a notice of what it would delete. 0s: not at all. Default: the setting autoprune.grace" example:"7d"`
	MaxDeleted        int          `json:"maxDeleted,omitempty" minimum:"1" maximum:"1000000000" doc:"If a run would delete more tags by the policy, it deletes none by it and asks for an approval" example:"1000"`
	MaxDeletedPercent int          `json:"maxDeletedPercent,omitempty" minimum:"1" maximum:"100" doc:"The same, as a part of the tags that the policy looks at" example:"20"`
	RequireReporter   []string     `json:"requireReporter,omitempty" maxItems:"32" doc:"The policy deletes tags only while each of these reporters of what is deployed is live in the namespace" example:"[\"prod-eu\"]"`
	KeepUntagged      string       `json:"keepUntagged,omitempty" doc:"Garbage collection deletes a manifest that the policy's selectors select at the earliest after this age from when nothing references it. It only lengthens the review delay" example:"14d"`
	NeverBelow        int          `json:"neverBelow,omitempty" minimum:"1" maximum:"1000000000" doc:"In each of its repositories, this many of the newest tags stay, whatever policy selects them" example:"5"`
}

// Safeguards returns the policy's safeguards in the form of its JSON.
func (p Policy) Safeguards() SafeguardForm {
	form := SafeguardForm{Mode: p.guard.mode, NeverBelow: p.guard.neverBelow, MaxDeleted: p.guard.maxDeleted, MaxDeletedPercent: p.guard.maxPercent, RequireReporter: p.guard.reporters, KeepUntagged: p.KeepsUntagged()}
	if p.guard.graceGiven {
		form.Grace = cmp.Or(p.guard.grace.String(), noGrace)
	}
	for _, w := range p.guard.windows {
		form.Windows = append(form.Windows, w.form())
	}
	return form
}

// String describes the safeguards, such as: mode observe, never below 5. It is "" for none.
func (f SafeguardForm) String() string {
	var texts []string
	if f.Mode != "" {
		texts = append(texts, "mode "+string(f.Mode))
	}
	if f.Grace != "" {
		texts = append(texts, "grace "+f.Grace)
	}
	for i, w := range f.Windows {
		texts = append(texts, []string{"only ", "or "}[min(i, 1)]+w.String())
	}
	if f.MaxDeleted > 0 {
		texts = append(texts, fmt.Sprintf("at most %d in a run", f.MaxDeleted))
	}
	if f.MaxDeletedPercent > 0 {
		texts = append(texts, fmt.Sprintf("at most %d%% in a run", f.MaxDeletedPercent))
	}
	if f.NeverBelow > 0 {
		texts = append(texts, fmt.Sprintf("never below %d", f.NeverBelow))
	}
	if len(f.RequireReporter) > 0 {
		texts = append(texts, "only with reports of "+strings.Join(f.RequireReporter, " and "))
	}
	if f.KeepUntagged != "" {
		texts = append(texts, "untagged manifests stay "+f.KeepUntagged)
	}
	return strings.Join(texts, ", ")
}

func (g safeguards) equal(other safeguards) bool {
	return g.mode == other.mode && g.neverBelow == other.neverBelow &&
		g.maxDeleted == other.maxDeleted && g.maxPercent == other.maxPercent && g.untagged.Duration() == other.untagged.Duration() &&
		g.graceGiven == other.graceGiven && g.grace.Duration() == other.grace.Duration() && slices.EqualFunc(g.windows, other.windows, window.equal) &&
		slices.Equal(g.reporters, other.reporters)
}

func readSafeguards(fields map[string]json.RawMessage) (g safeguards, err error) {
	if g.mode, err = readMode(fields[fieldMode]); err != nil {
		return g, err
	}
	if g.windows, err = readWindows(fields[fieldWindows]); err != nil {
		return g, err
	}
	if g.grace, g.graceGiven, err = readGrace(fields[fieldGrace]); err != nil {
		return g, err
	}
	if g.reporters, err = readList(fieldReporters, fields, hold.CheckReporter); err != nil {
		return g, err
	}
	if raw := fields[fieldUntagged]; raw != nil && string(raw) != "null" {
		if g.untagged, err = readAgeOf(fieldUntagged, raw); err != nil {
			return g, err
		}
	}
	for _, number := range []struct {
		field string
		p     *int
		most  int
	}{{fieldNeverBelow, &g.neverBelow, MaxNumTags}, {fieldMaxDeleted, &g.maxDeleted, MaxNumTags}, {fieldMaxPercent, &g.maxPercent, 100}} {
		if raw := fields[number.field]; raw != nil && string(raw) != "null" {
			if *number.p, err = readWhole(number.field, raw, number.most); err != nil {
				return g, err
			}
		}
	}
	return g, nil
}

// noGrace is the value of the field grace of a policy without a grace period.
const noGrace = "0s"

// readGrace reads the value of the field grace.
func readGrace(raw json.RawMessage) (grace Age, given bool, err error) {
	if raw == nil || string(raw) == "null" {
		return grace, false, nil
	}
	if string(raw) == `"`+noGrace+`"` {
		return grace, true, nil
	}
	grace, err = readAgeOf(fieldGrace, raw)
	return grace, true, err
}

func readMode(raw json.RawMessage) (Mode, error) {
	if raw == nil || string(raw) == "null" {
		return "", nil
	}
	text, err := readText(fieldMode, raw)
	if err != nil {
		return "", err
	}
	switch m := Mode(text); m {
	case On:
		return "", nil
	case Observe, Off:
		return m, nil
	}
	return "", fieldErrorf(fieldMode, "%.40q is unknown; modes are %s, %s and %s", text, On, Observe, Off)
}

// readWindows reads the value of the field windows. An absent value and null are none.
func readWindows(raw json.RawMessage) ([]window, error) {
	if raw == nil || string(raw) == "null" {
		return nil, nil
	}
	if raw[0] != '[' {
		return nil, fieldErrorf(fieldWindows, "it must be an array of windows, not %s", typeName(raw))
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, malformed(err)
	}
	switch {
	case len(list) == 0:
		return nil, fieldErrorf(fieldWindows, "it is empty, so the policy would never delete anything; leave it out, or use the mode off")
	case len(list) > MaxWindows:
		return nil, fieldErrorf(fieldWindows, "it has %d windows and at most %d are allowed", len(list), MaxWindows)
	}
	windows := make([]window, len(list))
	for i, one := range list {
		var err error
		if windows[i], err = readWindow(one); err != nil {
			return nil, within(fmt.Sprintf("%s[%d]", fieldWindows, i), err)
		}
	}
	return windows, nil
}
