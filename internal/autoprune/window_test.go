package autoprune_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/policy"
	"github.com/purser-registry/purser/internal/testscale"
)

// TestWindows compares windows of seven zones with a calculation by the zones' laws, for five months,
// at night for three years: in the first week of each month, where the clocks of some zones change,
// and in the weeks when the others change. It compares the minutes at which a window opens or
// closes on any clock, and the minutes before these.
func TestWindows(t *testing.T) {
	t.Parallel()
	windows := []string{
		`{"from": "22:00", "to": "06:00", "zone": %q}`,
		`{"days": ["mon", "fri"], "from": "21:15", "to": "02:30", "zone": %q}`,
		`{"days": ["sun"], "from": "02:30", "to": "02:45", "zone": %q}`,
		`{"days": ["sat", "sun"], "zone": %q}`,
		`{"days": ["sun"], "from": "01:40", "to": "01:39", "zone": %q}`,
		`{"from": "00:00", "to": "00:01", "zone": %q}`,
	}
	for zone := range oracleZones {
		t.Run(zone, func(t *testing.T) {
			t.Parallel()
			for _, form := range windows {
				text := fmt.Sprintf(form, zone)
				var want oracleWindow
				if err := json.Unmarshal([]byte(text), &want); err != nil {
					t.Fatal(err)
				}
				p := autoprunetest.Parsed(t, `{"method": "number_of_tags", "numTags": 1, "windows": [`+text+`]}`)
				compareWindow(t, text, p, want)
			}
		})
	}
}

func compareWindow(t *testing.T, text string, p policy.Policy, want oracleWindow) {
	t.Helper()
	end := time.Date(testscale.Pick(2026, 2028), 1, 1, 0, 0, 0, 0, time.UTC)
	openings := 0
	for day := time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC); day.Before(end); day = day.AddDate(0, 0, 1) {
		if day.Day() > 8 && (day.Day() < 24 || day.Month() != time.March && day.Month() != time.October) && (day.Day() > 15 || day.Month() != time.March) {
			continue
		}
		if !testscale.All && !slices.Contains([]time.Month{time.January, time.March, time.April, time.October, time.November}, day.Month()) {
			continue // the clocks change in March, October and November
		}
		for minutes := 0; minutes < 24*60; minutes += 15 {
			for _, minute := range []int{0, 1, 8, 9, 10, 14} {
				at := day.Add(time.Duration(minutes+minute) * time.Minute)
				open := want.open(at)
				if got := p.Windows[0].Open(at.Add(59 * time.Second)); got != open {
					t.Fatalf("%s is open %v at %s, want %v", text, got, at, open)
				}
				before := at.Add(-time.Minute)
				if !open || want.open(before) {
					continue
				}
				openings++
				if closed, next := p.Open(before); closed || !next.Equal(at) {
					t.Fatalf("%s opens at %s, and a minute before it is said to open at %s", text, at, next)
				}
			}
		}
	}
	if openings < testscale.Pick(4, 10) {
		t.Errorf("%s opens only %d times", text, openings)
	}
}
