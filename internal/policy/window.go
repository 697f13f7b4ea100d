package policy

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // for operating systems without data of time zones
)

// Window is a time of day on some days of the week, by the clocks of a time zone. Only a window of a
// policy that [Parse] has read knows when it is open.
type Window struct {
	Days []string `json:"days,omitempty" maxItems:"7" check:"day" doc:"Days of the week on which the window opens. Absent: all" example:"[\"mon\",\"fri\"]"`
	From string   `json:"from,omitempty" doc:"Time of day at which the window opens. Default 00:00" example:"22:00"`
	To   string   `json:"to,omitempty" doc:"Time of day at which the window closes, on the next day unless it is later than from. Default 00:00" example:"06:00"`
	Zone string   `json:"zone,omitempty" doc:"Name of the time zone. Default UTC" example:"Europe/Berlin"`

	days     [7]bool // by time.Weekday
	from, to int     // minutes since midnight; to <= from: the window ends on the next day
	zone     *time.Location
}

// dayNames are the names of the days, in the order in which a policy's JSON has them.
var dayNames = []string{"mon", "tue", "wed", "thu", "fri", "sat", "sun"}

// weekday returns the weekday of dayNames[i].
func weekday(i int) time.Weekday { return time.Weekday((i + 1) % 7) }

func clockText(minutes int) string { return fmt.Sprintf("%02d:%02d", minutes/60, minutes%60) }

// String describes the window, such as: mon,fri 22:00-06:00 Europe/Berlin.
func (w Window) String() string {
	text := fmt.Sprintf("%s-%s %s", w.From, w.To, w.Zone)
	if w.Days != nil {
		text = strings.Join(w.Days, ",") + " " + text
	}
	return text
}

// Location returns the window's time zone.
func (w Window) Location() *time.Location { return w.zone }

// Open returns whether the window is open.
func (w Window) Open(at time.Time) bool {
	local := at.In(w.zone)
	minute, today := local.Hour()*60+local.Minute(), local.Weekday()
	if w.from < w.to {
		return w.days[today] && w.from <= minute && minute < w.to
	}
	return w.days[today] && w.from <= minute || w.days[(today+6)%7] && minute < w.to
}

// opens returns when the window, which is closed at the time `at`, opens next. It is the zero
// time if that isn't within two weeks.
func (w Window) opens(at time.Time) (next time.Time) {
	consider := func(t time.Time) {
		if t.After(at) && (next.IsZero() || t.Before(next)) && w.Open(t) {
			next = t
		}
	}
	local := at.In(w.zone)
	for days := -1; days <= 15; days++ {
		// The clock may show a time twice, with two distances from UTC.
		wall := time.Date(local.Year(), local.Month(), local.Day()+days, 0, w.from, 0, 0, time.UTC)
		for _, near := range []time.Duration{-Day, 0, Day} {
			_, offset := wall.Add(near).In(w.zone).Zone()
			t := wall.Add(-time.Duration(offset) * time.Second)
			if _, own := t.In(w.zone).Zone(); own == offset {
				consider(t)
			}
		}
	}
	// The clock may also skip the beginning of the window, or go back into it.
	for t, n := at, 0; n < 8 && t.Before(at.Add(15*Day)); n++ {
		_, end := t.In(w.zone).ZoneBounds()
		if end.IsZero() {
			break
		}
		consider(end)
		t = end
	}
	return next
}

// readWindows reads the value of the member windows.
func readWindows(raw json.RawMessage) ([]Window, error) {
	if raw[0] != '[' {
		return nil, fieldErrorf("windows", "it must be an array of windows, not %s", typeName(raw))
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, malformed(err)
	}
	switch {
	case len(list) == 0:
		return nil, fieldErrorf("windows", "it is empty, so the policy would never delete anything; leave it out, or use the mode off")
	case len(list) > MaxWindows:
		return nil, fieldErrorf("windows", "it has %d windows and at most %d are allowed", len(list), MaxWindows)
	}
	windows := make([]Window, len(list))
	for i, one := range list {
		var err error
		if windows[i], err = readWindow(one); err != nil {
			return nil, within(fmt.Sprintf("windows[%d]", i), err)
		}
	}
	return windows, nil
}

var windowFields = object{of: "a window", fields: namesOf(windowMembers)}

func readWindow(raw json.RawMessage) (w Window, err error) {
	fields, err := readFields(raw, windowFields)
	if err != nil {
		return w, err
	}
	for name, value := range fields {
		if string(value) == "null" {
			delete(fields, name)
		}
	}
	from, to := fields["from"], fields["to"]
	switch {
	case from == nil && to != nil:
		return w, fieldErrorf("from", "it is missing; give both from and to")
	case from != nil && to == nil:
		return w, fieldErrorf("to", "it is missing; give both from and to")
	case from == nil && fields["days"] == nil:
		return w, fieldErrorf("", "it says nothing; a window has days, or from and to")
	}
	if err := readMembers(&w, windowMembers, fields); err != nil {
		return w, err
	}
	if from != nil {
		if w.from, err = minutesOf("from", w.From); err == nil {
			w.to, err = minutesOf("to", w.To)
		}
		if err != nil {
			return w, err
		}
	}
	if w.zone, err = zoneOf(w.Zone, fields["zone"] != nil); err != nil {
		return w, err
	}
	w.complete()
	return w, nil
}

// complete writes the window in one form, with its days in the order of a week, and none if there are
// all.
func (w *Window) complete() {
	given := w.Days
	w.Days = nil
	for i, name := range dayNames {
		if w.days[weekday(i)] = given == nil || slices.Contains(given, name); w.days[weekday(i)] {
			w.Days = append(w.Days, name)
		}
	}
	if len(w.Days) == len(dayNames) {
		w.Days = nil
	}
	w.From, w.To, w.Zone = clockText(w.from), clockText(w.to), w.zone.String()
}

func checkDay(text string) error {
	if !slices.Contains(dayNames, text) {
		return fmt.Errorf("%.40q is no day; days are %s", text, strings.Join(dayNames, ", "))
	}
	return nil
}

// minutesOf reads a time of day, such as 22:00, as minutes since midnight.
func minutesOf(name, text string) (int, error) {
	at, err := time.Parse("15:04", text)
	if err != nil || len(text) != len("15:04") {
		return 0, fieldErrorf(name, "%.40q is no time of day from 00:00 to 23:59", text)
	}
	return at.Hour()*60 + at.Minute(), nil
}

func zoneOf(text string, given bool) (*time.Location, error) {
	if !given {
		return time.UTC, nil
	}
	zone, err := time.LoadLocation(text)
	if err != nil || text == "" || text == "Local" {
		return nil, fieldErrorf("zone", "%.60q is no time zone that is known here; write it like Europe/Berlin or UTC", text)
	}
	return zone, nil
}
