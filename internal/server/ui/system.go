package ui

import (
	"fmt"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/diskspace"
)

func (u *UI) addSystem() { u.add("/ui/system", showSystem, confirmClock) }

// diskState is what a disk has free, and when it will be full.
type diskState struct{ diskspace.Disk }

// Refuses says that pushes are refused, since the disk has less left than they leave free.
func (d diskState) Refuses() bool { return d.Free < d.Reserve }

// Forecast says when the disk will be full, as a clause.
func (d diskState) Forecast() string {
	switch {
	case d.PerDay == nil:
		return "when it will be full is known after a day"
	case *d.PerDay <= 0:
		return "it hasn’t filled in the last seven days"
	case d.Full == nil:
		return fmt.Sprintf("it fills by %s a day, and lasts for more than a year", formatBytes(*d.PerDay))
	}
	return fmt.Sprintf("it fills by %s a day, and is full in %s", formatBytes(*d.PerDay), unit(time.Until(*d.Full)))
}

// fullSoon is the time before a disk is full from which it needs attention.
const fullSoon = 14 * 24 * time.Hour

// concern returns what is to be done about the disk, if anything is.
func (d diskState) concern() (c concern, is bool) {
	switch {
	case d.Refuses():
		return concern{"bad", fmt.Sprintf("The disk of the %s is full: %s are free, so pushes are refused.", d.Of, formatBytes(d.Free)), "/ui/system#disks", "Disks"}, true
	case d.Full != nil && time.Until(*d.Full) < fullSoon:
		return concern{"warn", fmt.Sprintf("The disk of the %s has %s free: %s.", d.Of, formatBytes(d.Free), d.Forecast()), "/ui/system#disks", "Disks"}, true
	}
	return c, false
}

// setting is a setting in force.
type setting struct{ api.Setting }

// Default says that nobody gave the setting a value.
func (s setting) Default() bool { return strings.HasPrefix(s.Source, "default") }

// Group is the part of the name before the last dot.
func (s setting) Group() string {
	i := strings.LastIndexByte(s.Name, '.')
	return s.Name[:max(i, 0)]
}

func (q *request) system() (api.SystemState, error) { return run(q, api.GetSystem, struct{}{}) }

func (q *request) clock() (api.Clock, error) { return run(q, api.GetClock, struct{}{}) }

// confirmClock says that the database's clock is right.
func confirmClock(q *request) error {
	if q.form.Get("do") != "confirm-clock" {
		return q.showSystem(&notice{Bad: true, Text: "The form doesn't say what to do."})
	}
	if _, err := run(q, api.ConfirmClock, struct{}{}); err != nil {
		return q.showSystem(&notice{Bad: true, Text: sentence(err.Error())})
	}
	return q.showSystem(&notice{Text: "The database's clock counts as right."})
}

func showSystem(q *request) error { return q.showSystem(nil) }

// showSystem shows the version, the health and the configuration in force.
func (q *request) showSystem(n *notice) error {
	s, err := q.system()
	if err != nil {
		return err
	}
	clocks, err := q.clock()
	if err != nil {
		clocks.Problem = sentence(err.Error())
	}
	// The parameter "set" shows only settings that were given a value, and "q" those whose name or
	// value contains a text.
	given, text := q.query("set") == "given", strings.ToLower(q.query("q"))
	var list []setting
	set := 0
	for _, one := range s.Settings {
		each := setting{one}
		if !each.Default() {
			set++
		}
		if (!given || !each.Default()) && strings.Contains(strings.ToLower(each.Name+" "+each.Value), text) {
			list = append(list, each)
		}
	}
	disks := make([]diskState, len(s.Disks))
	for i, d := range s.Disks {
		disks[i] = diskState{d}
	}
	return q.show("system", page{
		Title: "System", Section: "system", Notice: n, Lead: "The replica that answered, and what all replicas share.",
		Data: struct {
			System      api.SystemState
			Disks       []diskState
			Clock       api.Clock
			Settings    []setting
			Others, Set int
			Given       bool
			Query       string
		}{s, disks, clocks, list, len(s.Settings) - set, set, given, q.query("q")},
		Same: []same{command("purser config show"), command("purser migrate status"), command("purser clock show"), call("GET", "/system"), call("GET", "/clock")},
	})
}
