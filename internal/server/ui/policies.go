package ui

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/server/ui/format"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/policy"
)

// addPolicies adds the pages on auto-prune policies.
func (u *UI) addPolicies() {
	u.addPlace("/policies", func(q *request) error { return q.showPolicies(nil) }, changePolicies)
	u.addPlace("/policies/new", newPolicy, savePolicy)
	u.addPlace("/policies/preview", showPreview, previewPolicy)
	u.addPlace("/policies/{policy}", editPolicy, savePolicy)
	u.add("/ui/repositories/{repository}/-/exemptions", func(q *request) error { return q.showExemptions(nil) }, endExemptions)
	u.addPlace("/forecast", showForecast, showForecast)
}

// policyRow is a policy in a list.
type policyRow struct {
	api.PolicyView
	Words policyWords
	Of    string // to what it belongs
	Edit  string // path of its editor, "" for a policy of another place
	Ask   *autoprune.Ask
	Rest  *policies.Rest
	Waits bool // its grace period lasts
}

// policyRows lists the policies of a namespace, a repository or the registry.
func (q *request) policyRows(at api.At, of string, p *place) ([]policyRow, error) {
	list, err := run(q, api.ListPolicies, api.PolicyAt(at))
	if err != nil {
		return nil, err
	}
	rows := make([]policyRow, 0, len(list.Policies))
	for _, v := range list.Policies {
		row := policyRow{PolicyView: v, Words: wordsOf(v), Of: of, Waits: v.ActiveFrom != nil && v.ActiveFrom.After(time.Now())}
		if p != nil {
			row.Edit = p.Home("/-/policies/" + url.PathEscape(v.UUID))
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// policiesData is the content of the page that lists policies.
type policiesData struct {
	Place     place
	Own       []policyRow
	Others    []policyRow     // of the namespace or the registry, which apply here too
	State     *api.PruneState // nil: hidden
	Asks      []autoprune.Ask
	NoDefault bool   // the namespace has refused the registry's default policies
	FreeAt    string // the page that frees bytes in the namespace, "": it isn't for the client
	// Exceptions are the repositories in which only their own policies delete.
	Exceptions []policies.Exception
}

// showPolicies lists the policies of a place, and those of others that apply there.
func (q *request) showPolicies(n *notice) error {
	p := q.place()
	d := policiesData{Place: p}
	if p.IsNamespace() {
		d.FreeAt = q.freeAt(p.namespace)
	}
	var err error
	if d.Own, err = q.policyRows(p.At(), "", &p); err != nil {
		return err
	}
	if err := q.inherited(&d); err != nil {
		return err
	}
	if err := q.asked(&d); err != nil {
		return err
	}
	d.markRests()
	if err := q.exceptions(&d); err != nil {
		return err
	}
	out := q.placePage(p, "/-/policies")
	out.Heading, out.Notice, out.Data = p.Name(), n, d
	if out.Notice == nil {
		out.Notice = doneNotice(q.query("done"))
	}
	out.Same = []same{
		command("purser policy list %s", p.Name()), command("purser prune preview %s", p.Name()), call("GET", p.api("/autoprunepolicy")),
	}
	return q.show("policies", out)
}

// doneNotice tells what the form has done from which the browser was sent to this page.
func doneNotice(done string) *notice {
	text, ok := map[string]string{
		"created": "The policy is saved. Workers apply it soon; the list of runs says what they have deleted.",
		"saved":   "The policy is saved, and applies from now on.",
	}[done]
	if !ok {
		return nil
	}
	return &notice{Text: text}
}

// inherited adds the policies of the namespace and of the registry that apply in the place.
func (q *request) inherited(d *policiesData) error {
	p := d.Place
	own := len(d.Own) // policies of the namespace
	if !p.IsNamespace() {
		rows, err := q.policyRows(api.At{Namespace: p.namespace}, "namespace "+p.namespace, nil)
		if err != nil && !hidden(err) {
			return err
		}
		d.Others, own = rows, len(rows)
	}
	state, err := run(q, api.GetPruneState, p.whole())
	switch {
	case hidden(err):
		return nil
	case err != nil:
		return err
	}
	d.State, d.NoDefault = &state, !state.UsesDefaults
	if d.NoDefault {
		return nil
	}
	rows, err := q.policyRows(api.At{}, "the registry", nil)
	if err != nil && !hidden(err) {
		return err
	}
	for _, row := range rows {
		if own == 0 || row.Setting != "" {
			d.Others = append(d.Others, row)
		}
	}
	return nil
}

// asked adds the policies that wait for an approval.
func (q *request) asked(d *policiesData) error {
	var asks []autoprune.Ask
	for in := (api.AskQuery{PruneNamespace: d.Place.whole()}); ; {
		list, err := run(q, api.ListAsks, in)
		if err != nil {
			if hidden(err) {
				return nil
			}
			return err
		}
		if asks = append(asks, list.Asks...); list.NextPage == "" {
			break
		}
		in.NextPage = list.NextPage
	}
	for _, rows := range [][]policyRow{d.Own, d.Others} {
		for i := range rows {
			for j, ask := range asks {
				if ask.Policy == rows[i].UUID {
					rows[i].Ask = &asks[j]
				}
			}
		}
	}
	return nil
}

// changePolicies runs a form of the page that lists policies.
func changePolicies(q *request) error {
	p, id := q.place(), q.form.Get("policy")
	switch q.form.Get("do") {
	case "delete":
		return q.deletePolicy(p, id)
	case "confirm":
		return q.confirmRest(p, id)
	case "approve":
		version, _ := strconv.ParseInt(q.form.Get("version"), 10, 64)
		tags, _ := strconv.ParseInt(q.form.Get("tags"), 10, 64)
		_, err := run(q, api.ApproveAsk, api.AskApproval{
			PrunePolicy: api.PrunePolicy{PruneNamespace: p.whole(), Policy: id}, Body: api.PruneApproval{Version: version, Tags: tags},
		})
		return q.showPolicies(noticeOf(err, "Approved: the policy may delete up to "+format.Plural(tags, "tag", "tags")+" in one run within 7 days."))
	case "except", "unexcept":
		return q.except(p, q.form.Get("do") == "except")
	case "run":
		_, err := run(q, api.PruneNow, p.whole())
		return q.showPolicies(noticeOf(err, "A worker prunes namespace "+p.namespace+" next. The list of runs says what it has deleted."))
	}
	return q.showPolicies(&notice{Bad: true, Text: "The form doesn't say what to do."})
}

// noticeOf tells that a form has worked, or the registry's reason why not.
func noticeOf(err error, text string) *notice {
	if err != nil {
		return &notice{Bad: true, Text: format.Sentence(err.Error())}
	}
	return &notice{Text: text}
}

// deletePolicy deletes a policy, and offers to save it again.
func (q *request) deletePolicy(p place, id string) error {
	item := api.PolicyItem{PolicyAt: p.PolicyAt(), UUID: id}
	v, err := run(q, api.GetPolicy, item)
	if err == nil {
		_, err = run(q, api.DeletePolicy, api.PolicyRemoval{PolicyItem: item, PolicyConfirmation: q.confirmation()})
	}
	if list := warningsOf(err); len(list) > 0 {
		return q.showPolicies(&notice{Bad: true, Text: "Not deleted yet: " + strings.Join(policy.Sentences(list), "; ") + ".", Undo: &undo{
			Action: p.Home("/-/policies"), Text: "Delete it all the same",
			Fields: []field{{"do", "delete"}, {"policy", id}, {"confirm", q.seen(list)}},
		}})
	}
	n := noticeOf(err, "The policy is deleted, and deletes no tags any more.")
	if err == nil && v.Problem == "" {
		d, err := documentOf(v)
		if err != nil {
			return err
		}
		n.Undo = &undo{Action: p.Home("/-/policies/new"), Text: "Undo", Fields: []field{{"as", "json"}, {"document", d.writable().text()}}}
	}
	return q.showPolicies(n)
}

// editorData is the content of the editor's page.
type editorData struct {
	Place   place
	ID      string // of the policy, "" for a new one
	Form    policyForm
	Preview *previewData
	Theirs  *policyRow // what somebody else has saved meanwhile
	Setting string     // the setting that defines the policy, which can't be changed here then
	Problem string     // why this version can't read the policy
	// Found is what the policy surely wasn't meant to do, which is to be confirmed, and Confirm what
	// the form sends for that.
	Found   []policy.Warning
	Confirm string
	// Unreported says that no reporter is live in the namespace, so that last use proves nothing.
	Unreported bool
}

// Action is where the form is sent to.
func (d editorData) Action() string { return d.Place.Home("/-/policies/" + cmp.Or(d.ID, "new")) }

// Presets are the policies with which a new policy may start.
func (d editorData) Presets() []policy.Preset {
	if d.ID != "" {
		return nil
	}
	return policy.Presets
}

func newPolicy(q *request) error {
	d := document{"method": []byte(`"creation_date"`), "olderThan": []byte(`"90d"`), "mode": []byte(`"observe"`)}
	if preset, ok := policy.PresetOf(q.query("preset")); ok {
		var err error
		if d, err = parseDocument(preset.Policy); err != nil {
			return err
		}
		d["mode"] = []byte(`"observe"`)
	}
	return q.showEditor(http.StatusOK, editorData{Place: q.place(), Form: formOf(d)}, nil)
}

// readPolicy reads a policy for the editor.
func (q *request) readPolicy(p place, id string) (editorData, error) {
	e := editorData{Place: p, ID: id}
	v, err := run(q, api.GetPolicy, api.PolicyItem{PolicyAt: p.PolicyAt(), UUID: id})
	if err != nil {
		return e, err
	}
	d, err := documentOf(v)
	if err != nil {
		return e, err
	}
	e.Form, e.Setting, e.Problem = formOf(d), v.Setting, v.Problem
	if v.Problem != "" {
		e.Form = policyForm{AsJSON: true, Document: v.Stored}.pad()
	}
	e.Form.Version = strconv.FormatInt(v.Version, 10)
	return e, nil
}

// documentOf returns the document of a policy, as answers of the API have it.
func documentOf(v api.PolicyView) (document, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return parseDocument(string(b))
}

func editPolicy(q *request) error {
	e, err := q.readPolicy(q.place(), q.values["policy"])
	if err != nil {
		return err
	}
	return q.showEditor(http.StatusOK, e, nil)
}

// savePolicy saves what stands in the editor. If the registry refuses it, the editor shows why,
// with all that was written.
func savePolicy(q *request) error {
	e := editorData{Place: q.place(), ID: q.values["policy"], Form: readPolicyForm(q.form)}
	if to := q.form.Get("switch"); to != "" {
		form, err := e.Form.switchTo(to == "json")
		e.Form = form
		if err != nil {
			return q.showEditor(http.StatusOK, e, noticeOf(err, ""))
		}
		return q.showEditor(http.StatusOK, e, nil)
	}
	body, err := e.Form.policy()
	switch {
	case err != nil:
	case e.ID == "":
		if _, err = run(q, api.CreatePolicy, api.PolicyNew{PolicyAt: e.Place.PolicyAt(), PolicyConfirmation: q.confirmation(), Body: body}); err == nil {
			return q.redirect(e.Place.Home("/-/policies?done=created"))
		}
	default:
		if err = q.updatePolicy(e, body); err == nil {
			return q.redirect(e.Place.Home("/-/policies?done=saved"))
		}
	}
	return q.refusedPolicy(e, err)
}

// updatePolicy replaces the policy in the editor, if it still has the version that was read.
func (q *request) updatePolicy(e editorData, body api.PolicyText) error {
	version, err := strconv.ParseInt(cmp.Or(e.Form.Version, "0"), 10, 64)
	if err != nil {
		return formError("The form doesn't say which version of the policy it changes.")
	}
	_, err = run(q, api.UpdatePolicy, api.PolicyChange{
		PolicyItem: api.PolicyItem{PolicyAt: e.Place.PolicyAt(), UUID: e.ID}, Version: version, PolicyConfirmation: q.confirmation(), Body: body,
	})
	return err
}

// refusedPolicy shows the editor again, with the reason why the policy wasn't saved.
func (q *request) refusedPolicy(e editorData, err error) error {
	status := formStatus(err)
	if status == 0 {
		return err
	}
	if e.Found = warningsOf(err); len(e.Found) > 0 {
		e.Confirm = q.seen(e.Found)
		return q.showEditor(status, e, nil)
	}
	if e.Form.Wrong = wrongMember(err); e.Form.Wrong != "" {
		_, why := memberOfError(err)
		e.Form.Why = format.Sentence(why)
	}
	n := noticeOf(err, "")
	if status == http.StatusConflict && e.ID != "" {
		current, again := q.readPolicyRow(e.Place, e.ID)
		if version := fmt.Sprint(current.Version); again == nil && version != e.Form.Version {
			e.Theirs, e.Form.Version = &current, version
			n.Text = "Not saved: somebody else has saved this policy while you edited it. Below is what it says now, and then what you wrote. Save again to replace it."
		}
	}
	return q.showEditor(status, e, n)
}

func (q *request) readPolicyRow(p place, id string) (policyRow, error) {
	v, err := run(q, api.GetPolicy, api.PolicyItem{PolicyAt: p.PolicyAt(), UUID: id})
	return policyRow{PolicyView: v, Words: wordsOf(v)}, err
}

func (q *request) showEditor(status int, e editorData, n *notice) error {
	out := q.placePage(e.Place, "/-/policies")
	out.Crumbs = append(out.Crumbs, crumb{e.Place.Name(), e.Place.Home("")}, crumb{"Policies", e.Place.Home("/-/policies")})
	state, err := run(q, api.GetPruneState, e.Place.whole())
	if err != nil && !hidden(err) {
		return err
	}
	e.Unreported = err == nil && !state.Reported
	out.Title, out.Tabs, out.Notice, out.Data = "New policy", nil, n, e
	out.Same = []same{command("purser policy create %s", e.Place.Name()), call("POST", e.Place.api("/autoprunepolicy"))}
	if e.ID != "" {
		out.Title = "Policy"
		out.Same = []same{command("purser policy update %s %s", e.Place.Name(), e.ID), call("PUT", e.Place.api("/autoprunepolicy/%s", e.ID))}
	}
	return q.showStatus(status, "policy", out)
}

// answer is what the form confirms of a policy's warnings: their codes, or none.
func (q *request) answer() string { return cmp.Or(q.form.Get("confirm"), "none") }

// confirmation is the answer as an operation's input has it.
func (q *request) confirmation() api.PolicyConfirmation {
	return api.PolicyConfirmation{Confirm: q.answer()}
}

// seen returns what a form sends whose page has shown these warnings, after those that were
// confirmed before.
func (q *request) seen(list []policy.Warning) string {
	answer := q.answer()
	for _, code := range policy.Codes(list) {
		answer += "," + string(code)
	}
	return answer
}

// warningsOf returns the warnings that the registry wants to be confirmed.
func warningsOf(err error) []policy.Warning {
	refused, ok := errors.AsType[*apiError](err)
	if !ok || refused.status != http.StatusConflict {
		return nil
	}
	var details struct{ Warnings []policy.Warning }
	if json.Unmarshal(refused.details, &details) != nil {
		return nil
	}
	return details.Warnings
}

// markRests adds to the policies why they rest.
func (d *policiesData) markRests() {
	if d.State == nil || d.State.Task == nil {
		return
	}
	for _, rows := range [][]policyRow{d.Own, d.Others} {
		for i := range rows {
			for j, r := range d.State.Task.Rests {
				if r.Policy == rows[i].UUID {
					rows[i].Rest = &d.State.Task.Rests[j]
				}
			}
		}
	}
}

// Codes returns the codes of the warnings for which the policy rests, as a form sends them.
func (r policyRow) Codes() string {
	var codes []string
	for _, code := range policy.Codes(r.Rest.Warnings) {
		codes = append(codes, string(code))
	}
	return strings.Join(codes, ",")
}

// confirmRest lets a policy delete that rests because of warnings.
func (q *request) confirmRest(p place, id string) error {
	version, _ := strconv.ParseInt(q.form.Get("version"), 10, 64)
	body := api.RestConfirmation{Version: version, Codes: []policy.WarningCode{}}
	for code := range strings.SplitSeq(q.form.Get("codes"), ",") {
		body.Codes = append(body.Codes, policy.WarningCode(code))
	}
	_, err := run(q, api.ConfirmRest, api.RestApproval{PrunePolicy: api.PrunePolicy{PruneNamespace: p.whole(), Policy: id}, Body: body})
	return q.showPolicies(noticeOf(err, "Confirmed: the policy deletes tags from now on."))
}
