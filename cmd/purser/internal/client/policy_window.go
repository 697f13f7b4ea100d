package client

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/policy"
)

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
