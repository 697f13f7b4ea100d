package ui

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/server/ui/format"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/diskspace"
	"github.com/purser-registry/purser/internal/policy"
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
		return fmt.Sprintf("it fills by %s a day, and lasts for more than a year", format.Bytes(*d.PerDay))
	}
	return fmt.Sprintf("it fills by %s a day, and is full in %s", format.Bytes(*d.PerDay), format.Unit(time.Until(*d.Full)))
}

// fullSoon is the time before a disk is full from which it needs attention.
const fullSoon = 14 * 24 * time.Hour

// concern returns what is to be done about the disk, if anything is.
func (d diskState) concern() (c concern, is bool) {
	switch {
	case d.Refuses():
		return concern{"bad", fmt.Sprintf("The disk of the %s is full: %s are free, so pushes are refused.", d.Of, format.Bytes(d.Free)), "/ui/system#disks", "Disks"}, true
	case d.Full != nil && time.Until(*d.Full) < fullSoon:
		return concern{"warn", fmt.Sprintf("The disk of the %s has %s free: %s.", d.Of, format.Bytes(d.Free), d.Forecast()), "/ui/system#disks", "Disks"}, true
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
		return q.showSystem(&notice{Bad: true, Text: format.Sentence(err.Error())})
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
		clocks.Problem = format.Sentence(err.Error())
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

// defaultsPath is the page of what holds in the whole registry: rules that protect tags, and the policies
// of namespaces that have none of their own.
const defaultsPath = "/ui/defaults"

func (u *UI) addDefaults() {
	u.add(defaultsPath, func(q *request) error { return q.showDefaults(http.StatusOK, nil) }, changeDefaults)
}

// defaultPolicy is a policy of the registry, with its text as JSON for the form that changes it.
type defaultPolicy struct {
	policyRow
	Document string
}

type defaultsData struct {
	Rules     []api.ProtectionRule
	RulePages pages
	Policies  []defaultPolicy
	Presets   []policy.Preset
	Typed     typed
	Document  string // of a new policy
	Begins    bool   // somebody has chosen with which preset it begins
}

// newDefault is what the form for a new policy contains at first.
const newDefault = `{"method": "creation_date", "olderThan": "90d", "mode": "observe"}`

// showDefaults shows what holds in the whole registry, to those who operate it.
func (q *request) showDefaults(status int, n *notice) error {
	if err := q.ui.server.Authorize(q.Context(), auth.Operate, auth.Registry); err != nil {
		return err
	}
	d := defaultsData{Presets: policy.Presets, Typed: q.refused, Document: newDefault}
	if preset, ok := policy.PresetOf(q.query("preset")); ok {
		text, err := parseDocument(preset.Policy)
		if err != nil {
			return err
		}
		text["mode"] = []byte(`"observe"`)
		d.Document, d.Begins = text.text(), true
	}
	d.Document = d.Typed.Value("create", "document", d.Document)
	rules, err := run(q, api.ListProtection, api.ProtectionQuery{Paging: q.paging("rules", 100)})
	if err != nil {
		return err
	}
	d.Rules, d.RulePages = rules.Rules, q.pagesIn("rules", rules.NextPage)
	rows, err := q.policyRows(api.At{}, "", nil)
	if err != nil && !hidden(err) { // a registry may have no auto-pruning
		return err
	}
	for _, row := range rows {
		p := defaultPolicy{policyRow: row, Document: row.Stored}
		if row.Problem == "" {
			text, err := documentOf(row.PolicyView)
			if err != nil {
				return err
			}
			p.Document = text.writable().text()
		}
		if d.Typed.Value("change", "policy", "") == row.UUID {
			p.Document = d.Typed.Value("change", "document", p.Document)
		}
		d.Policies = append(d.Policies, p)
	}
	return q.showStatus(status, "defaults", page{
		Title: "Registry-wide defaults", Section: "defaults", Notice: n, Data: d,
		Lead: "Rules that protect tags hold in all namespaces. Policies apply in each namespace that has none of its own and doesn't refuse them.",
		Same: []same{
			command("purser protection list --all"), command("purser protection add --all REGEXP"), command("purser policy list --defaults"), command("purser policy create --defaults"),
			call("GET", "/tagprotection"), call("POST", "/tagprotection"), call("GET", "/autoprunepolicy"), call("POST", "/autoprunepolicy"),
		},
	})
}

// changeDefaults runs a form of the page.
func changeDefaults(q *request) error {
	if err := q.ui.server.Authorize(q.Context(), auth.Operate, auth.Registry); err != nil {
		return err
	}
	id, document := q.form.Get("policy"), api.PolicyText(strings.TrimSpace(q.form.Get("document")))
	item := api.PolicyItem{UUID: id}
	n := &notice{Text: "Saved."}
	var err error
	switch q.form.Get("do") {
	case "protect":
		_, err = run(q, api.CreateProtection, api.ProtectionNew{Body: api.NewProtectionRule{Pattern: q.form.Get("pattern")}})
	case "unprotect":
		_, err = run(q, api.DeleteProtection, api.ProtectionItem{UUID: q.form.Get("rule")})
	case "create":
		if _, err = parseDocument(string(document)); err == nil {
			_, err = run(q, api.CreatePolicy, api.PolicyNew{PolicyConfirmation: q.confirmation(), Body: document})
		}
	case "change":
		var version int64
		if version, err = strconv.ParseInt(q.form.Get("version"), 10, 64); err != nil {
			err = formError("The form doesn't say which version of the policy it changes.")
			break
		}
		if _, err = parseDocument(string(document)); err == nil {
			_, err = run(q, api.UpdatePolicy, api.PolicyChange{PolicyItem: item, Version: version, PolicyConfirmation: q.confirmation(), Body: document})
		}
	case "delete":
		_, err = run(q, api.DeletePolicy, api.PolicyRemoval{PolicyItem: item, PolicyConfirmation: q.confirmation()})
		n.Text = "The policy is deleted, and deletes no tags any more."
	default:
		err = formError("The form doesn't say what to do.")
	}
	if list := warningsOf(err); len(list) > 0 {
		q.refused = typed{form: q.form}
		fields := []field{{"confirm", q.seen(list)}}
		for _, name := range []string{"do", "policy", "version", "document"} {
			fields = append(fields, field{name, q.form.Get(name)})
		}
		return q.showDefaults(http.StatusConflict, &notice{
			Bad: true, Text: "Nothing was changed yet: " + strings.Join(policy.Sentences(list), "; ") + ".",
			Undo: &undo{Action: defaultsPath, Text: "Do it all the same", Fields: fields},
		})
	}
	if err == nil {
		return q.showDefaults(http.StatusOK, n)
	}
	status := formStatus(err)
	if status == 0 {
		return err
	}
	return q.showDefaults(status, q.refuse(err, nil))
}
