package ui

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/policy"
)

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
			command("purser protection list"), command("purser protection add --pattern PATTERN"), command("purser policy list"), command("purser policy create"),
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
