package ui

import (
	"cmp"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/purser-registry/purser/internal/server/ui/format"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/policy"
	"github.com/purser-registry/purser/internal/protection"
)

func (u *UI) addSettings() { u.addPlace("/settings", showSettings, changeSettings) }

// member is an account or a team with a role.
type member struct {
	api.PermissionView
	Team bool
}

// Who returns the kind of the member: team, robot or account.
func (m member) Who() string {
	switch {
	case m.Team:
		return "team"
	case m.IsRobot != nil && *m.IsRobot:
		return "robot"
	}
	return "account"
}

// settingsData is the content of the settings of a repository or a namespace. What the client may
// not see is left out.
type settingsData struct {
	Place       place
	Visibility  string // of a repository, "" for a namespace
	Rules       []api.ProtectionRule
	RulePages   pages
	SeesRules   bool
	Members     []member
	Accounts    pages // of the members, and of the teams among them
	Teams       pages
	Find        find
	SeesMembers bool
	Prune       *api.PruneState
	Quota       *api.QuotaView
	SeesQuota   bool
	Labels      *protection.TagLabels // nil: hidden, or a repository
	MayDelete   bool
	MaySetQuota bool
	Typed       typed
}

// shownRoles is how many accounts, and how many teams, the page lists.
const shownRoles = 60

// Roles returns the roles that the page offers.
func (d settingsData) Roles() []option { return roleNames }

// roleNames are the roles by the names of the API, which are Quay's, and by Purser's.
var roleNames = []option{{"read", "reader"}, {"write", "writer"}, {"maintain", "maintainer"}, {"admin", "administrator"}}

// RoleOf returns the role of a member: as somebody has chosen it if the registry refused that, else as it is.
func (d settingsData) RoleOf(m member) string {
	if d.Typed.Value("role", "name", "") == m.Name && d.Typed.Value("role", "who", "") == m.Who() {
		return d.Typed.Value("role", "role", m.Role)
	}
	return m.Role
}

// QuotaInputs returns the fields of the form for the quota.
func (d settingsData) QuotaInputs() quotaInputs { return quotaInputs{"quota", d.Typed, d.Quota} }

func showSettings(q *request) error { return q.showSettings(http.StatusOK, typed{}, nil) }

// showSettings shows the settings, with a form that was refused or with a notice.
func (q *request) showSettings(status int, t typed, n *notice) error {
	p := q.place()
	d := settingsData{Place: p, Typed: t, MayDelete: q.mayDelete(p), MaySetQuota: q.may(auth.Operate, auth.Registry)}
	if n == nil {
		n = t.Notice()
	}
	if err := q.readSettings(&d); err != nil {
		return err
	}
	out := q.placePage(p, "/-/settings")
	out.Notice, out.Data = n, d
	if done := q.query("done"); out.Notice == nil && done != "" {
		out.Notice = &notice{Text: "Saved."}
		if done == unchanged {
			out.Notice.Text = unchangedText
		}
	}
	out.Same = []same{command("purser protection list %s", p.Name()), command("purser grant list %s", p.Name()), call("GET", p.api("/tagprotection"))}
	if p.IsNamespace() {
		out.Same = append(out.Same, command("purser quota show %s", p.Name()), command("purser namespace labels %s", p.Name()))
	} else {
		out.Same = append(out.Same, command("purser repo visibility %s public|private", p.Name()))
	}
	return q.showStatus(status, "settings", out)
}

// readSettings reads what the client may see.
func (q *request) readSettings(d *settingsData) error {
	p := d.Place
	if p.IsNamespace() {
		if _, err := run(q, api.GetNamespace, api.NamespaceSizes{InNamespace: api.InNamespace{Namespace: p.namespace}, SizeLinks: api.SizeLinks{Links: 1}}); err != nil {
			return err
		}
		if err := q.readNamespaceSettings(d); err != nil {
			return err
		}
	} else {
		info, err := run(q, api.GetRepository, api.RepositorySizes{InRepository: repositoryOf(p.repository), SizeLinks: api.SizeLinks{Links: 1}})
		if err != nil {
			return err
		}
		d.Visibility = info.Visibility
	}
	rules, err := run(q, api.ListProtection, api.ProtectionQuery{At: p.At(), Paging: q.paging("rules", 100)})
	if err != nil && !hidden(err) {
		return err
	}
	d.Rules, d.RulePages, d.SeesRules = rules.Rules, q.pagesIn("rules", rules.NextPage), err == nil
	return q.readMembers(d)
}

// readMembers reads a page of the accounts with a role, and one of the teams.
func (q *request) readMembers(d *settingsData) error {
	d.Find.Text = q.query("q")
	for kind, of := range map[string]api.RoleOperations{"user": api.UserRoles, "team": api.TeamRoles} {
		list, err := run(q, of.List, api.RoleQuery{
			At: d.Place.At(), Paging: q.paging(kind, shownRoles), NameContains: api.NameContains{Contains: d.Find.Text},
		})
		if err != nil {
			if hidden(err) {
				return nil
			}
			return err
		}
		d.SeesMembers = true
		for _, v := range list.Permissions {
			d.Members = append(d.Members, member{v, kind == "team"})
		}
		if kind == "user" {
			d.Accounts = q.pagesIn(kind, list.NextPage)
		} else {
			d.Teams = q.pagesIn(kind, list.NextPage)
		}
	}
	d.Find.Needed = d.Find.Text != "" || d.Accounts != (pages{}) || d.Teams != (pages{})
	slices.SortFunc(d.Members, func(a, b member) int { return strings.Compare(a.Who()+a.Name, b.Who()+b.Name) })
	return nil
}

func (q *request) readNamespaceSettings(d *settingsData) error {
	switch state, err := run(q, api.GetPruneState, d.Place.whole()); {
	case err == nil:
		d.Prune = &state
	case !hidden(err):
		return err
	}
	switch labels, err := run(q, api.GetTagLabels, api.InNamespace{Namespace: d.Place.namespace}); {
	case err == nil:
		d.Labels = &labels
	case !hidden(err):
		return err
	}
	quota, sees, err := q.quota(d.Place.namespace)
	d.Quota, d.SeesQuota = quota, sees
	return err
}

// quota returns the quota of a namespace, nil if it has none or the client may not see it.
func (q *request) quota(namespace string) (quota *api.QuotaView, sees bool, err error) {
	list, err := run(q, api.ListQuota, api.QuotaQuery{At: api.At{Namespace: namespace}})
	if err != nil {
		if hidden(err) {
			return nil, false, nil
		}
		return nil, false, err
	}
	if len(list) == 0 {
		return nil, true, nil
	}
	return &list[0], true, nil
}

// changeSettings runs a form of the settings.
func changeSettings(q *request) error {
	p, f := q.place(), q.form
	var err error
	saved := true
	switch f.Get("do") {
	case "visibility":
		saved, err = q.saveVisibility(p)
	case "protect":
		_, err = run(q, api.CreateProtection, api.ProtectionNew{At: p.At(), Body: api.NewProtectionRule{Pattern: f.Get("pattern")}})
	case "unprotect":
		_, err = run(q, api.DeleteProtection, api.ProtectionItem{At: p.At(), UUID: f.Get("rule")})
	case "role":
		saved, err = q.saveRole(p)
	case "add":
		item, of := memberOf(p, f)
		_, err = run(q, of.Change, api.RoleChange{RoleItem: item, Body: api.RoleForm{Role: f.Get("role")}})
	case "remove":
		item, of := memberOf(p, f)
		_, err = run(q, of.Delete, item)
	case "defaults":
		_, err = run(q, api.SetPruneState, api.PruneStateChange{
			PruneNamespace: p.whole(), DefaultsConfirmation: api.DefaultsConfirmation{Confirm: q.answer()}, Body: api.PruneSetting{UsesDefaults: f.Get("defaults") == "on"},
		})
		if list := warningsOf(err); len(list) > 0 {
			return q.showSettings(http.StatusConflict, typed{}, &notice{Bad: true, Text: "Not saved yet: " + strings.Join(policy.Sentences(list), "; ") + ".", Undo: &undo{
				Action: p.Home("/-/settings"), Text: "Save it all the same",
				Fields: []field{{"do", "defaults"}, {"defaults", f.Get("defaults")}, {"confirm", q.seen(list)}},
			}})
		}
	case "labels":
		saved, err = q.saveLabels(p)
	case "quota":
		saved, err = q.saveQuota(p)
	case "delete-quota":
		var item api.QuotaItem
		if item, err = quotaItem(p, f); err == nil {
			_, err = run(q, api.DeleteQuota, item)
		}
	case "delete":
		return q.deletePlace(p)
	default:
		err = formError("The form doesn't say what to do.")
	}
	switch {
	case err != nil:
		return q.refusedSettings(err)
	case !saved:
		return q.redirect(p.Home("/-/settings?done=" + unchanged))
	}
	return q.redirect(p.Home("/-/settings?done=saved"))
}

// refusedSettings shows the settings again, with the reason why a form didn't work.
func (q *request) refusedSettings(err error) error {
	status := formStatus(err)
	if status == 0 {
		return err
	}
	return q.showSettings(status, q.typedForm(err, quotaFields), nil)
}

// memberOf returns the input that names the role of a form, and the operations on it.
func memberOf(p place, f url.Values) (api.RoleItem, api.RoleOperations) {
	item, name := api.RoleItem{At: p.At()}, strings.TrimSpace(f.Get("name"))
	if f.Get("who") == "team" {
		item.Team = name
		return item, api.TeamRoles
	}
	item.User = name
	return item, api.UserRoles
}

// deletePlace deletes a repository or a namespace if its name was typed.
func (q *request) deletePlace(p place) error {
	if strings.TrimSpace(q.form.Get("confirm")) != p.Name() {
		return q.refusedSettings(fieldError{"confirm", "Not deleted: type the name " + format.Clip(255, p.Name()) + " to confirm."})
	}
	var deleted api.Deleted
	var err error
	if override := q.form.Get("override") != ""; p.IsNamespace() {
		deleted, err = run(q, api.DeleteNamespace, api.NamespaceDeletion{Namespace: p.namespace, Override: override})
	} else {
		deleted, err = run(q, api.DeleteRepository, api.RepositoryDeletion{InRepository: repositoryOf(p.repository), Override: override})
	}
	if err != nil {
		return q.refusedSettings(err)
	}
	to := url.Values{"namespace": {p.namespace}, "deleted": {deleted.Trash}}
	return q.redirect("/ui/trash?" + to.Encode())
}

// quotaForm reads a quota of a form, in which an empty field stands for no limit.
func quotaForm(f url.Values) (body api.QuotaForm, err error) {
	number := func(field, text string, bits int) int64 {
		n, wrong := strconv.ParseInt(text, 10, bits)
		if wrong != nil && err == nil {
			err = fieldError{field, "“" + format.Clip(40, text) + "” is no whole number."}
		}
		return n
	}
	if text := strings.TrimSpace(f.Get("bytes")); text != "" {
		body.Limit = &text
	} else {
		body.LimitBytes = new(int64)
	}
	body.LimitRepositories, body.LimitTags = new(int64), new(int64)
	for _, limit := range []struct {
		name string
		to   *int64
	}{{"repositories", body.LimitRepositories}, {"tags", body.LimitTags}} {
		if text := strings.TrimSpace(f.Get(limit.name)); text != "" {
			*limit.to = number(limit.name, text, 64)
		}
	}
	body.Limits = []api.QuotaLimitForm{}
	for _, kind := range []string{"Warning", "Reject"} {
		for _, text := range strings.FieldsFunc(f.Get(kind), func(c rune) bool { return c == ',' || c == ' ' }) {
			n := number(kind, strings.TrimSuffix(text, "%"), 32)
			if err == nil && (n < 1 || n > 100) {
				err = fieldError{kind, "“" + format.Clip(40, text) + "” is not between 1 and 100 percent."}
			}
			body.Limits = append(body.Limits, api.QuotaLimitForm{Type: kind, Threshold: int(n)})
		}
	}
	return body, err
}

// quotaFields are the names of a form's fields by the API's members.
var quotaFields = map[string]string{"limit": "bytes", "limit_bytes": "bytes", "limit_repositories": "repositories", "limit_tags": "tags"}

// quotaItem returns the quota that a form names.
func quotaItem(p place, f url.Values) (api.QuotaItem, error) {
	id, err := strconv.ParseInt(f.Get("quota"), 10, 64)
	if err != nil {
		return api.QuotaItem{}, formError("The form names no quota.")
	}
	return api.QuotaItem{At: p.At(), ID: id}, nil
}

// quotaLine is a limit of a quota with what is used of it. The texts have the same kind of unit.
type quotaLine struct {
	Name, Used, Limit string // Limit is "" for none
	used, limit       int64
}

// Share returns what is used and the limit, for a bar.
func (l quotaLine) Share() []int64 { return []int64{l.used, l.limit} }

// quotaLines returns the limits of a quota.
func quotaLines(v api.QuotaView) []quotaLine {
	lines := []quotaLine{
		{Name: "Bytes", Used: format.Bytes(v.UsedBytes), used: v.UsedBytes},
		{Name: "Repositories", Used: format.Number(v.UsedRepositories), used: v.UsedRepositories},
		{Name: "Tags", Used: format.Number(v.UsedTags), used: v.UsedTags},
	}
	for i, limit := range []*int64{v.LimitBytes, v.LimitRepositories, v.LimitTags} {
		if limit != nil && *limit > 0 {
			lines[i].limit, lines[i].Limit = *limit, format.Number(*limit)
		}
	}
	if n := lines[0].limit; n > 0 {
		lines[0].Limit = format.ExactBytes(n)
		if format.IsDecimal(lines[0].Limit) {
			lines[0].Used = format.DecimalBytes(v.UsedBytes)
		}
	}
	return lines
}

// quotaEffect says what a quota does now, if that isn't plain from its numbers: it refuses nothing, or
// something is above a limit.
func quotaEffect(v api.QuotaView) string {
	refuses, notices := 0, false // refuses is the percentage above which something is refused, 0: nothing is
	for _, l := range v.Limits {
		notices = notices || l.Type != "Reject"
		if l.Type == "Reject" && (refuses == 0 || l.Percent < refuses) {
			refuses = l.Percent
		}
	}
	var limited bool
	var above []string
	for _, l := range quotaLines(v) {
		limited = limited || l.limit > 0
		if l.limit > 0 && float64(l.used) > float64(l.limit)*float64(cmp.Or(refuses, 100))/100 {
			above = append(above, strings.ToLower(l.Name))
		}
	}
	switch {
	case !limited:
		return "This quota limits nothing: it has no limit."
	case refuses == 0 && len(above) > 0:
		return "The namespace is above its limit of " + strings.Join(above, " and ") + ". Pushes go on: nothing is refused, since no step refuses."
	case refuses == 0 && notices:
		return "This quota refuses nothing, since no step refuses: it only sends notices."
	case refuses == 0:
		return "This quota limits nothing: no step refuses or sends a notice."
	case len(above) > 0 && v.Counted:
		return "The namespace is above what it may have of " + strings.Join(above, " and ") + ": pushes that need more are refused. Nothing is deleted; pulls go on."
	}
	return ""
}

// quotaInputs are the fields of a quota in the form whose field "do" has the value Do.
type quotaInputs struct {
	Do    string
	Typed typed
	Quota *api.QuotaView // nil: the namespace has none yet
}

// quotaInput is one of the fields.
type quotaInput struct {
	Name, Label, Value, Placeholder string
	Was                             *string // what the page had shown of a quota that is there
	Number                          bool
	Mark                            template.HTMLAttr
	Fault                           *fault
}

// Inputs returns the fields with what they contain.
func (d quotaInputs) Inputs() (list []quotaInput) {
	for _, in := range []quotaInput{
		{Name: "bytes", Label: "Bytes", Placeholder: "500 GiB"},
		{Name: "repositories", Label: "Repositories", Placeholder: "no limit", Number: true},
		{Name: "tags", Label: "Tags", Placeholder: "no limit", Number: true},
		{Name: "Warning", Label: "Notice at %"},
		{Name: "Reject", Label: "Refuse above %"},
	} {
		in.Value = d.Typed.Value(d.Do, in.Name, d.stored(in.Name))
		if d.Quota != nil {
			was := d.Typed.Value(d.Do, wasPrefix+in.Name, d.stored(in.Name))
			in.Was = &was
		}
		in.Mark, in.Fault = d.Typed.Mark(d.Do, in.Name), d.Typed.At(d.Do, in.Name)
		list = append(list, in)
	}
	return list
}

// stored returns what a field contains of the quota that the namespace has.
func (d quotaInputs) stored(name string) string {
	if d.Quota == nil {
		return map[string]string{"Warning": "80", "Reject": "100"}[name]
	}
	switch name {
	case "bytes":
		if n := d.Quota.LimitBytes; n != nil {
			return format.ExactBytes(*n)
		}
		return ""
	case "repositories":
		return limitText(d.Quota.LimitRepositories)
	case "tags":
		return limitText(d.Quota.LimitTags)
	}
	var list []string
	for _, l := range d.Quota.Limits {
		if l.Type == name {
			list = append(list, strconv.Itoa(l.Percent))
		}
	}
	return strings.Join(list, ", ")
}

// limitText returns a limit as text, "" for none.
func limitText(n *int64) string {
	if n == nil {
		return ""
	}
	return strconv.FormatInt(*n, 10)
}
