package client

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/hold"
)

// safeguardFlags are the flags of a policy's safeguards.
type safeguardFlags struct {
	mode       string
	grace      string
	neverBelow int
	maxDeleted int
	maxPercent int
	untagged   string
	windows    []string
	reporters  []string
}

func (f *safeguardFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	textFlag(cmd, &f.mode, "mode", "", "`MODE`: on, observe (delete nothing, and show in runs and previews what would be deleted) or off (default observe for a new policy, and what it is for another)",
		checkChoice(string(autoprune.On), string(autoprune.Observe), string(autoprune.Off)))
	flags.Var(command.Number(&f.neverBelow, 1, autoprune.MaxNumTags), "never-below", "keep the newest `N` tags of each repository, whatever policies select them")
	flags.Var(command.Number(&f.maxDeleted, 1, autoprune.MaxNumTags), "max-deleted", "if a run would delete more than `N` tags by the policy, delete none and ask for an approval")
	flags.Var(command.Number(&f.maxPercent, 1, 100), "max-deleted-percent", "the same, with a `PERCENTAGE` of the tags that the policy looks at")
	textFlag(cmd, &f.grace, "grace", "", "let the policy wait for `AGE`, such as 7d, when it is new or changed, after a notice of what it would delete; 0s: not at all (default: autoprune.grace)", checkGrace)
	textFlag(cmd, &f.untagged, "keep-untagged", "", "let garbage collection keep manifests for `AGE`, such as 14d, from when nothing references them", checkAge)
	flags.Var(repeatedFlag{&f.reporters, hold.CheckReporter}, "require-reporter", "delete tags only while this `REPORTER` of what is deployed is live in the namespace; may be repeated")
	flags.Var(repeatedFlag{&f.windows, checkWindow}, "window", "delete tags only in this `WINDOW` of time, such as 'mon-fri 22:00-06:00 Europe/Berlin'; may be repeated")
}

// given says whether any of the flags was given.
func (f *safeguardFlags) given() bool {
	return f.mode != "" || f.grace != "" || f.untagged != "" || f.neverBelow != 0 || f.maxDeleted != 0 || f.maxPercent != 0 || len(f.windows) > 0 || len(f.reporters) > 0
}

// set sets the members of the policy's JSON.
func (f *safeguardFlags) set(members map[string]any) {
	if f.mode != "" {
		members["mode"] = f.mode
	}
	if f.neverBelow != 0 {
		members["neverBelow"] = f.neverBelow
	}
	if f.maxDeleted != 0 {
		members["maxDeleted"] = f.maxDeleted
	}
	if f.maxPercent != 0 {
		members["maxDeletedPercent"] = f.maxPercent
	}
	if f.grace != "" {
		members["grace"] = f.grace
	}
	if f.untagged != "" {
		members["keepUntagged"] = f.untagged
	}
	if len(f.reporters) > 0 {
		members["requireReporter"] = f.reporters
	}
	var windows []autoprune.WindowForm
	for _, text := range f.windows {
		windows = append(windows, parseWindow(text))
	}
	if windows != nil {
		members["windows"] = windows
	}
}

// parseWindow reads a window: days, times and a time zone in this order, divided by spaces;
// each may be left out. checkWindow says whether the result makes sense.
func parseWindow(text string) (w autoprune.WindowForm) {
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
	_, err = autoprune.ParsePolicy(fmt.Appendf(nil, `{"method": "number_of_tags", "numTags": 1, "windows": [%s]}`, window))
	if err != nil {
		return fmt.Errorf("write it like 'mon-fri 22:00-06:00 Europe/Berlin': %s", strings.TrimPrefix(strings.TrimPrefix(err.Error(), "windows[0]"), "."))
	}
	return nil
}

// checkGrace checks the length of a grace period.
func checkGrace(text string) error {
	if text == "0s" {
		return nil
	}
	return checkAge(text)
}

// modeText returns the mode that a policy shows; an answer of the API leaves out the mode on.
func modeText(mode autoprune.Mode) string {
	if mode == "" {
		return string(autoprune.On)
	}
	return string(mode)
}
