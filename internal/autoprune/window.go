package autoprune

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // for operating systems without data of time zones
)

// The JSON fields of a window.
const (
	fieldDays = "days"
	fieldFrom = "from"
	fieldTo   = "to"
	fieldZone = "zone"
)

// window is a time of day on some days of the week, by the clocks of a time zone. readWindow
// makes windows.
type window struct {
	days     [7]bool // by time.Weekday
	from, to int     // minutes since midnight; to <= from: the window ends on the next day
	zone     *time.Location
}

// WindowForm is a window in the JSON of a policy.
type WindowForm struct {
	Days []string `json:"days,omitempty" maxItems:"7" doc:"Days of the week on which the window opens. Absent: all" example:"[\"mon\",\"fri\"]"`
	From string   `json:"from,omitempty" doc:"Time of day at which the window opens. Default 00:00" example:"22:00"`
	To   string   `json:"to,omitempty" doc:"Time of day at which the window closes, on the next day unless it is later than from. Default 00:00" example:"06:00"`
	Zone string   `json:"zone,omitempty" doc:"Name of the time zone. Default UTC" example:"Europe/Berlin"`
}

// dayNames are the names of the days, in the order in which a policy's JSON has them.
var dayNames = []string{"mon", "tue", "wed", "thu", "fri", "sat", "sun"}

// weekday returns the weekday of dayNames[i].
func weekday(i int) time.Weekday { return time.Weekday((i + 1) % 7) }

func (w window) form() WindowForm {
	f := WindowForm{From: clockText(w.from), To: clockText(w.to), Zone: w.zone.String()}
	for i, name := range dayNames {
		if w.days[weekday(i)] {
			f.Days = append(f.Days, name)
		}
	}
	if len(f.Days) == len(dayNames) {
		f.Days = nil
	}
	return f
}

func clockText(minutes int) string { return fmt.Sprintf("%02d:%02d", minutes/60, minutes%60) }

// String describes the window, such as: mon,fri 22:00-06:00 Europe/Berlin.
func (f WindowForm) String() string {
	text := fmt.Sprintf("%s-%s %s", f.From, f.To, f.Zone)
	if f.Days != nil {
		text = strings.Join(f.Days, ",") + " " + text
	}
	return text
}

func (w window) equal(other window) bool {
	return w.days == other.days && w.from == other.from && w.to == other.to && w.zone.String() == other.zone.String()
}

// open returns whether the window is open.
func (w window) open(at time.Time) bool {
	local := at.In(w.zone)
	minute, today := local.Hour()*60+local.Minute(), local.Weekday()
	if w.from < w.to {
		return w.days[today] && w.from <= minute && minute < w.to
	}
	return w.days[today] && w.from <= minute || w.days[(today+6)%7] && minute < w.to
}

// opens returns when the window, which is closed at the time `at`, opens next. It is the zero
// time if that isn't within two weeks.
func (w window) opens(at time.Time) (next time.Time) {
	consider := func(t time.Time) {
		if t.After(at) && (next.IsZero() || t.Before(next)) && w.open(t) {
			next = t
		}
	}
	local := at.In(w.zone)
	for days := -1; days <= 15; days++ {
		// The clock may show a time twice, with two distances from UTC.
		wall := time.Date(local.Year(), local.Month(), local.Day()+days, 0, w.from, 0, 0, time.UTC)
		for _, near := range []time.Duration{-day, 0, day} {
			_, offset := wall.Add(near).In(w.zone).Zone()
			t := wall.Add(-time.Duration(offset) * time.Second)
			if _, own := t.In(w.zone).Zone(); own == offset {
				consider(t)
			}
		}
	}
	// The clock may also skip the beginning of the window, or go back into it.
	for t, n := at, 0; n < 8 && t.Before(at.Add(15*day)); n++ {
		_, end := t.In(w.zone).ZoneBounds()
		if end.IsZero() {
			break
		}
		consider(end)
		t = end
	}
	return next
}

// open returns whether the policy has no windows or one of them is open. If all are closed,
// `next` is when one opens, or the zero time if that isn't within two weeks.
func (g *safeguards) open(at time.Time) (open bool, next time.Time) {
	if len(g.windows) == 0 || slices.ContainsFunc(g.windows, func(w window) bool { return w.open(at) }) {
		return true, time.Time{}
	}
	for _, w := range g.windows {
		if t := w.opens(at); !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	return false, next
}

var windowFields = members{of: "a window", fields: []string{fieldDays, fieldFrom, fieldTo, fieldZone}}

func readWindow(raw json.RawMessage) (w window, err error) {
	fields, err := readFields(raw, windowFields)
	if err != nil {
		return w, err
	}
	for name, value := range fields {
		if string(value) == "null" {
			delete(fields, name)
		}
	}
	from, to := fields[fieldFrom], fields[fieldTo]
	switch {
	case from == nil && to != nil:
		return w, fieldErrorf(fieldFrom, "it is missing; give both from and to")
	case from != nil && to == nil:
		return w, fieldErrorf(fieldTo, "it is missing; give both from and to")
	case from == nil && fields[fieldDays] == nil:
		return w, fieldErrorf("", "it says nothing; a window has days, or from and to")
	case from != nil:
		if w.from, err = readClock(fieldFrom, from); err == nil {
			w.to, err = readClock(fieldTo, to)
		}
	}
	if err == nil {
		w.days, err = readDays(fields)
	}
	if err == nil {
		w.zone, err = readZone(fields[fieldZone])
	}
	return w, err
}

func readDays(fields map[string]json.RawMessage) (days [7]bool, err error) {
	known := func(text string) error {
		if !slices.Contains(dayNames, text) {
			return fmt.Errorf("%.40q is no day; days are %s", text, strings.Join(dayNames, ", "))
		}
		return nil
	}
	list, err := readList(fieldDays, fields, known)
	for i, name := range dayNames {
		days[weekday(i)] = fields[fieldDays] == nil || slices.Contains(list, name)
	}
	return days, err
}

// readClock reads a time of day, such as "22:00", as minutes since midnight.
func readClock(name string, raw json.RawMessage) (int, error) {
	text, err := readText(name, raw)
	if err != nil {
		return 0, err
	}
	at, err := time.Parse("15:04", text)
	if err != nil || len(text) != len("15:04") {
		return 0, fieldErrorf(name, "%.40q is no time of day from 00:00 to 23:59", text)
	}
	return at.Hour()*60 + at.Minute(), nil
}

func readZone(raw json.RawMessage) (*time.Location, error) {
	if raw == nil {
		return time.UTC, nil
	}
	text, err := readText(fieldZone, raw)
	if err != nil {
		return nil, err
	}
	zone, err := time.LoadLocation(text)
	if err != nil || text == "" || text == "Local" {
		return nil, fieldErrorf(fieldZone, "%.60q is no time zone that is known here; write it like Europe/Berlin or UTC", text)
	}
	return zone, nil
}
