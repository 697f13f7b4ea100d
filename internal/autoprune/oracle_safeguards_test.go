package autoprune_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"pgregory.net/rapid"
)

// oracleZone is a time zone, by its law instead of the data that Go reads: the distance from
// UTC in minutes, and for zones that set their clocks forward, by how much and when, in UTC.
type oracleZone struct {
	offset, forward int
	begin, end      func(year int) time.Time
}

// oracleSunday returns the n-th Sunday of a month (the last one for n = 0) at an hour, in UTC.
func oracleSunday(year int, month time.Month, n int, hour time.Duration) time.Time {
	if n == 0 {
		last := time.Date(year, month+1, 0, 0, 0, 0, 0, time.UTC)
		return last.AddDate(0, 0, -oracleWeekday(last)).Add(hour)
	}
	first := time.Date(year, month, 1, 0, 0, 0, 0, time.UTC)
	return first.AddDate(0, 0, (7-oracleWeekday(first))%7+7*(n-1)).Add(hour)
}

// oracleWeekday returns the day of the week, 0 for Sunday. 1 January 1970 was a Thursday.
func oracleWeekday(t time.Time) int {
	days := t.Unix() / 86400
	return int((days + 4) % 7)
}

var oracleZones = map[string]oracleZone{
	"UTC": {},
	"Europe/Berlin": {60, 60,
		func(y int) time.Time { return oracleSunday(y, time.March, 0, time.Hour) },
		func(y int) time.Time { return oracleSunday(y, time.October, 0, time.Hour) }},
	"America/New_York": {-300, 60,
		func(y int) time.Time { return oracleSunday(y, time.March, 2, 7*time.Hour) },
		func(y int) time.Time { return oracleSunday(y, time.November, 1, 6*time.Hour) }},
	// Lord Howe is ahead by half an hour more from October to April.
	"Australia/Lord_Howe": {630, 30,
		func(y int) time.Time { return oracleSunday(y, time.October, 1, -8*time.Hour-30*time.Minute) },
		func(y int) time.Time { return oracleSunday(y, time.April, 1, -9*time.Hour) }},
	"Asia/Kathmandu":     {offset: 345},
	"America/Sao_Paulo":  {offset: -180},
	"Pacific/Kiritimati": {offset: 840},
}

// wall returns what a clock in the zone shows, as if it were UTC.
func (z oracleZone) wall(t time.Time) time.Time {
	minutes := z.offset
	if z.begin != nil {
		begin, end := z.begin(t.UTC().Year()), z.end(t.UTC().Year())
		summer := !t.Before(begin) && t.Before(end)
		if end.Before(begin) { // in the south
			summer = !t.Before(begin) || t.Before(end)
		}
		if summer {
			minutes += z.forward
		}
	}
	return t.UTC().Add(time.Duration(minutes) * time.Minute)
}

// oracleWindow is a window as its JSON has it.
type oracleWindow struct {
	Days     []string
	From, To *string
	Zone     *string
}

func (w oracleWindow) open(t time.Time) bool {
	zone := "UTC"
	if w.Zone != nil {
		zone = *w.Zone
	}
	z, known := oracleZones[zone]
	if !known {
		panic(zone)
	}
	wall := z.wall(t)
	clock := wall.Format("15:04")
	from, to := "00:00", "00:00"
	if w.From != nil {
		from, to = *w.From, *w.To
	}
	on := func(weekday int) bool {
		return w.Days == nil || slices.Contains(w.Days, []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}[weekday])
	}
	today := oracleWeekday(wall)
	if from < to {
		return on(today) && clock >= from && clock < to
	}
	return on(today) && clock >= from || on((today+6)%7) && clock < to
}

// mode returns the policy's mode.
func (r oracleRule) mode() string {
	if r.Mode == nil {
		return "on"
	}
	return *r.Mode
}

// oracleReporters are the reporters of which reports come. The others are silent or were never there.
var oracleReporters = []string{"prod-eu", "prod-us"}

// rests reports whether the policy rests since a reporter that it requires isn't live.
func (r oracleRule) rests() bool {
	return slices.ContainsFunc(r.RequireReporter, func(name string) bool { return !slices.Contains(oracleReporters, name) })
}

// waits reports whether the policy asks, rests, or all of its windows are closed.
func (r oracleRule) waits(in oracleInput) bool {
	if in.would || in.unwaiting {
		return false
	}
	return r.asks || r.rests() || r.Windows != nil && !slices.ContainsFunc(r.Windows, func(w oracleWindow) bool { return w.open(in.now) })
}

// oracleCaps returns the rules with those marked that ask, because the run would delete more
// tags by them than their caps allow if no policy waited.
func oracleCaps(in oracleInput, rules []oracleRule, fates map[string]oracleFate) []oracleRule {
	if in.would || in.unwaiting {
		return rules
	}
	in.unwaiting = true
	unwaiting := oracle(in)
	rules = slices.Clone(rules)
	for i, r := range rules {
		deleted, of := 0, 0
		for _, t := range in.tags {
			switch f := unwaiting[t.name]; {
			case f.goes && slices.Contains(f.policies(), r.index):
				deleted++
				of++
			case !fates[t.name].attached && r.looksAt(in, t):
				of++
			}
		}
		rules[i].asks = r.MaxDeleted != nil && deleted > *r.MaxDeleted ||
			r.MaxDeletedPercent != nil && deleted > max(1, of**r.MaxDeletedPercent/100)
	}
	return rules
}

// asks returns the policies of the scene that ask.
func (in oracleInput) asks() map[int]bool {
	asks := map[int]bool{}
	fates := map[string]oracleFate{}
	for _, t := range in.tags {
		image, present := oracleImage(in, t)
		fates[t.name] = oracleFate{attached: present && image != t.manifest}
	}
	for _, r := range oracleCaps(in, oracleRules(in), fates) {
		if r.asks && r.mode() == "on" {
			asks[r.index] = true
		}
	}
	return asks
}

// oracleFloors lets neverBelow keep tags.
func oracleFloors(rules []oracleRule, tags []oracleTag, fates map[string]oracleFate) {
	for _, r := range rules {
		if r.NeverBelow == nil {
			continue
		}
		counts := func(t oracleTag) bool { return !(r.removesOrphans() && fates[t.name].orphan) }
		for _, t := range tags {
			newer := 0
			for _, u := range tags {
				if counts(u) && u.newer(t) {
					newer++
				}
			}
			if counts(t) && newer < *r.NeverBelow {
				f := fates[t.name]
				f.kept = append(f.kept, "neverBelow "+strconv.Itoa(r.index))
				fates[t.name] = f
			}
		}
	}
}

// drawOracleSafeguards draws members of a policy. Windows are drawn relative to the scene's
// now (see oracleResolve).
func drawOracleSafeguards(t *rapid.T) (text string) {
	if often(t, 4) {
		text += draw(t, `, "mode": "observe"`, `, "mode": "off"`, `, "mode": "on"`, `, "mode": null`)
	}
	if often(t, 7) {
		text += fmt.Sprintf(`, "neverBelow": %d`, draw(t, 1, 2, 3, 5, 8, 30))
	}
	if often(t, 4) {
		text += draw(t, `, "keepUntagged": "1d"`, `, "keepUntagged": "90m"`, `, "keepUntagged": "2w"`, `, "keepUntagged": null`)
	}
	if often(t, 4) {
		text += draw(t, `, "maxDeleted": 1`, `, "maxDeleted": 2`, `, "maxDeleted": 4`, `, "maxDeleted": 9`, `, "maxDeletedPercent": 1`,
			`, "maxDeletedPercent": 20`, `, "maxDeletedPercent": 45`, `, "maxDeletedPercent": 100`, `, "maxDeleted": 3, "maxDeletedPercent": 30`)
	}
	if often(t, 5) {
		var windows []string
		for range rapid.IntRange(1, 2).Draw(t, "windows") {
			windows = append(windows, fmt.Sprintf(`<%d %d %d %s>`, rapid.IntRange(-23, 23).Draw(t, "opens"), rapid.IntRange(1, 24).Draw(t, "length"),
				draw(t, 0, 0, 0, 1, 2, 5), draw(t, "UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Kiritimati")))
		}
		text += `, "windows": [` + strings.Join(windows, ", ") + `]`
	}
	if often(t, 12) {
		text += draw(t, `, "requireReporter": null`, `, "requireReporter": ["prod-eu"]`, `, "requireReporter": ["prod-us", "prod-eu"]`,
			`, "requireReporter": ["quiet"]`, `, "requireReporter": ["prod-us", "never"]`)
	}
	return text
}

var oracleDrawnWindow = regexp.MustCompile(`<(\S+) (\S+) (\S+) (\S+)>`)

// oracleResolve replaces drawn windows by JSON. A drawn window consists of the hours from now
// to its beginning, its length in hours, on which days it opens, and a zone. Half an hour is
// added, so that no window opens or closes just now.
func oracleResolve(text string, now time.Time) string {
	return oracleDrawnWindow.ReplaceAllStringFunc(text, func(drawn string) string {
		var opens, length, days int
		var zone string
		if _, err := fmt.Sscanf(strings.Trim(drawn, "<>"), "%d %d %d %s", &opens, &length, &days, &zone); err != nil {
			panic(err)
		}
		from := oracleZones[zone].wall(oracleNow).Add(time.Duration(opens)*time.Hour + 30*time.Minute)
		window := map[string]any{"from": from.Format("15:04"), "to": from.Add(time.Duration(length) * time.Hour).Format("15:04"), "zone": zone}
		if days > 0 {
			var names []string
			for i := range days {
				names = append(names, strings.ToLower(from.AddDate(0, 0, i).Format("Mon")))
			}
			window["days"] = names
		}
		one, err := json.Marshal(window)
		if err != nil {
			panic(err)
		}
		return string(one)
	})
}
