package ui

import (
	"net/http"
	"strings"
	"time"
)

func (u *UI) addSystem() { u.add("/ui/system", showSystem, confirmClock) }

// partHealth is the state of a service that the registry depends on.
type partHealth struct {
	Kind    string `json:"kind"`
	OK      bool   `json:"ok"`
	Version string `json:"version"`
	Error   string `json:"error"`
}

// systemState is what the registry says about itself.
type systemState struct {
	Version    string     `json:"version"`
	GoVersion  string     `json:"go_version"`
	Replica    string     `json:"replica"`
	StartedAt  time.Time  `json:"started_at"`
	Uptime     int64      `json:"uptime_seconds"`
	Database   partHealth `json:"database"`
	Storage    partHealth `json:"storage"`
	Migrations struct {
		Applied int    `json:"applied"`
		Pending int    `json:"pending"`
		Last    string `json:"last"`
	} `json:"migrations"`
	Replicas []struct {
		ID      string    `json:"id"`
		Name    string    `json:"name"`
		Started time.Time `json:"started_at"`
		Seen    time.Time `json:"seen_at"`
	} `json:"replicas"`
	Settings []setting `json:"configuration"`
}

// setting is a setting in force.
type setting struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source string `json:"source"`
}

// Default says that nobody gave the setting a value.
func (s setting) Default() bool { return strings.HasPrefix(s.Source, "default") }

// Group is the part of the name before the last dot.
func (s setting) Group() string {
	i := strings.LastIndexByte(s.Name, '.')
	return s.Name[:max(i, 0)]
}

func (q *request) system() (s systemState, err error) {
	err = q.get("/system", nil, &s)
	return s, err
}

// clockState says whether the clocks are fit to delete by.
type clockState struct {
	Deletes bool    `json:"deletes"`
	Problem string  `json:"problem"`
	Doubt   bool    `json:"doubt"`
	Offset  float64 `json:"offset_seconds"`
}

func (q *request) clock() (s clockState, err error) {
	err = q.get("/clock", nil, &s)
	return s, err
}

// confirmClock says that the database's clock is right.
func confirmClock(q *request) error {
	if q.form.Get("do") != "confirm-clock" {
		return q.showSystem(&notice{Bad: true, Text: "The form doesn't say what to do."})
	}
	if err := q.call(http.MethodPost, "/clock/confirm", nil, nil); err != nil {
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
	for _, each := range s.Settings {
		if !each.Default() {
			set++
		}
		if (!given || !each.Default()) && strings.Contains(strings.ToLower(each.Name+" "+each.Value), text) {
			list = append(list, each)
		}
	}
	return q.show("system", page{
		Title: "System", Section: "system", Notice: n, Lead: "The replica that answered, and what all replicas share.",
		Data: struct {
			System      systemState
			Clock       clockState
			Settings    []setting
			Others, Set int
			Given       bool
			Query       string
		}{s, clocks, list, len(s.Settings) - set, set, given, q.query("q")},
		Same: []same{command("purser config show"), command("purser migrate status"), command("purser clock show"), call("GET", "/system"), call("GET", "/clock")},
	})
}
