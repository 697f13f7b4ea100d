package ui

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/policy"
)

// The editor of a policy works on the policy's own JSON document. It takes the members for which
// it has fields out of the document, and keeps all others, also those that a newer version of the
// API has added, as JSON beside the fields (policyForm.Others). So what has no field isn't lost.

// Members of a policy that have a field, by the kind of their value. Members that can't be shown in
// their field, such as a list with an element that has a comma, stay in Others.
var (
	textMembers   = membersOf(func(m policy.Member) bool { return m.Kind == policy.Text && m.Name != "method" })
	numberMembers = membersOf(func(m policy.Member) bool { return m.Kind == policy.Whole })
	listMembers   = membersOf(func(m policy.Member) bool { return m.Kind == policy.List })
	memberOrder   = membersOf(func(policy.Member) bool { return true }) // in which a document is shown
)

// membersOf returns the names of the members that are asked for.
func membersOf(asked func(policy.Member) bool) (names []string) {
	for _, m := range policy.Members() {
		if asked(m) {
			names = append(names, m.Name)
		}
	}
	return names
}

// Rows of keep rules and windows in a form: as many as a policy may have.
const (
	maxKeepRows   = 16
	maxWindowRows = 8
)

// policyForm is what stands in the editor.
type policyForm struct {
	AsJSON   bool   // the whole policy is written as JSON, in Document
	Document string // a JSON object
	Version  string // of the policy that the form was made from, "" for a new one

	Method      string
	Text        map[string]string // of textMembers, numberMembers and listMembers
	Excludes    bool              // the pattern names the tags that aren't selected
	Orphans     bool
	Images      bool // numTags counts images
	PerPlatform bool // numTags counts for each platform
	Keep        []keepRow
	Windows     []windowRow
	Others      string // members without a field, as a JSON object, "" for none

	// Wrong is the member whose field the registry refused, "" for none, and Why the reason.
	Wrong, Why string
}

// keepRow is a keep rule. Kind is the member that says what it keeps or, for versions, the value of
// that member.
type keepRow struct{ Kind, Value, Group string }

// windowRow is a window of time.
type windowRow struct {
	Days           []string
	From, To, Zone string
}

// On says whether the window opens on a day.
func (w windowRow) On(day string) bool { return slices.Contains(w.Days, day) }

// formError says what can't be read in a form.
type formError string

func (e formError) Error() string { return string(e) }

type document map[string]json.RawMessage

// text returns the document with its members in a fixed order, "" if it has none.
func (d document) text() string {
	if len(d) == 0 {
		return ""
	}
	names := slices.DeleteFunc(slices.Clone(memberOrder), func(name string) bool { return d[name] == nil })
	for _, name := range slices.Sorted(maps.Keys(d)) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	var b bytes.Buffer
	for i, name := range names {
		key, _ := json.Marshal(name) // a string
		fmt.Fprintf(&b, "%s%s:%s", []string{"{", ","}[min(i, 1)], key, d[name])
	}
	b.WriteString("}")
	var out bytes.Buffer
	if json.Indent(&out, b.Bytes(), "", "  ") != nil {
		return b.String()
	}
	return out.String()
}

// parseDocument parses the text of a policy or of a part of it.
func parseDocument(text string) (document, error) {
	d := make(document)
	if strings.TrimSpace(text) == "" {
		return d, nil
	}
	if err := json.Unmarshal([]byte(text), &d); err != nil || d == nil {
		if err == nil {
			err = errors.New("it is null")
		}
		return nil, formError(fmt.Sprintf("The JSON is no object that can be read: %v.", err))
	}
	return d, nil
}

// writable removes what a request can't set, and members that have no effect.
func (d document) writable() document {
	d = maps.Clone(d)
	for _, name := range api.ReadOnlyOfPolicies {
		delete(d, name)
	}
	maps.DeleteFunc(d, func(_ string, value json.RawMessage) bool { return string(value) == "null" })
	if string(d["tagPatternMatches"]) == "true" {
		delete(d, "tagPatternMatches")
	}
	if string(d["removeOrphans"]) == "false" {
		delete(d, "removeOrphans")
	}
	for _, name := range []string{"countImages", "perPlatform"} {
		if string(d[name]) == "false" {
			delete(d, name)
		}
	}
	return d
}

// take moves a member out of the document into `out`, if it has the type of `out`.
func (d document) take(name string, out any) bool {
	value, ok := d[name]
	if !ok {
		return false
	}
	in := json.NewDecoder(bytes.NewReader(value))
	in.DisallowUnknownFields()
	if in.Decode(out) != nil {
		return false
	}
	delete(d, name)
	return true
}

// formOf fills the editor's fields from a policy's document. A policy with a method that the editor
// doesn't know stays as JSON.
func formOf(d document) policyForm {
	d = d.writable()
	f := policyForm{Method: string(policy.CreationDate), Text: make(map[string]string)}
	whole := d.text()
	if d.take("method", &f.Method); !hasOption(f.Methods(), f.Method) {
		return policyForm{AsJSON: true, Document: whole}.pad()
	}
	d.renameValue(f.Method)
	f.takeTexts(d)
	matches := true
	d.take("tagPatternMatches", &matches)
	f.Excludes = !matches
	d.take("removeOrphans", &f.Orphans)
	d.take("countImages", &f.Images)
	d.take("perPlatform", &f.PerPlatform)
	f.takeRows(d)
	f.Others = d.text()
	return f.pad()
}

// amountMember returns the member that has the age, the number or the size of a policy, as its
// method needs it.
func amountMember(method string) string {
	return cmp.Or(policy.Method(method).Takes(), "olderThan")
}

// isAmount says whether a member has the age, the number or the size of a policy.
func isAmount(name string) bool {
	return name == "olderThan" || name == "numTags" || name == "maxBytes"
}

// counts says whether the form's policy counts tags, so that it may have groups.
func (f policyForm) counts() bool { return f.Method == string(policy.NumberOfTags) }

// renameValue gives the member value, which is another name for the age, the number or the size,
// the name that fits the method.
func (d document) renameValue(method string) {
	name := amountMember(method)
	if value, ok := d["value"]; ok && d[name] == nil {
		d[name] = value
		delete(d, "value")
	}
}

// takeTexts moves the members with a text input out of the document, if the input can hold their
// values.
func (f *policyForm) takeTexts(d document) {
	for _, name := range textMembers {
		var text string
		if json.Unmarshal(d[name], &text) != nil || text != strings.TrimSpace(text) || strings.ContainsFunc(text, unicode.IsControl) ||
			name == "mode" && text != "on" && !hasOption(f.Modes(), text) || policy.MemberOf(name).IsSize() && strings.Contains(text, " ") {
			continue
		}
		if text != "on" || name != "mode" {
			f.Text[name] = text
		}
		delete(d, name)
	}
	for _, name := range numberMembers {
		var n int64
		if d.take(name, &n) {
			f.Text[name] = strconv.FormatInt(n, 10)
		}
	}
	for _, name := range listMembers {
		var list []string
		if json.Unmarshal(d[name], &list) != nil || len(list) == 0 || slices.ContainsFunc(list, func(e string) bool { return e == "" || strings.ContainsFunc(e, separates) }) {
			continue
		}
		f.Text[name] = strings.Join(list, ", ")
		delete(d, name)
	}
}

// separates says whether a character separates the elements of a list in a text input.
func separates(c rune) bool { return c == ',' || unicode.IsSpace(c) || unicode.IsControl(c) }

// takeRows moves keep rules and windows out of the document, if the rows say the same.
func (f *policyForm) takeRows(d document) {
	keep, windows := d["keep"], d["windows"]
	var rules []policy.KeepRule
	if d.take("keep", &rules) {
		for _, k := range rules {
			f.Keep = append(f.Keep, keepRowOf(k))
		}
		unknown := func(k keepRow) bool { return !hasOption(f.KeepKinds(), k.Kind) }
		if len(rules) > maxKeepRows || slices.ContainsFunc(f.Keep, unknown) || !sameJSON(keep, f.keepRules()) {
			d["keep"], f.Keep = keep, nil
		}
	}
	var list []policy.Window
	if d.take("windows", &list) {
		for _, w := range list {
			f.Windows = append(f.Windows, windowRow{w.Days, w.From, w.To, w.Zone})
		}
		unknown := func(w windowRow) bool {
			return slices.ContainsFunc(w.Days, func(day string) bool { return !hasOption(days, day) })
		}
		if len(list) > maxWindowRows || slices.ContainsFunc(f.Windows, unknown) || !sameJSON(windows, f.windows()) {
			d["windows"], f.Windows = windows, nil
		}
	}
}

// sameJSON says whether a value has the same JSON as a text.
func sameJSON(text json.RawMessage, value any) bool {
	b, err := json.Marshal(value)
	if err != nil {
		return false
	}
	var one, other any
	return json.Unmarshal(text, &one) == nil && json.Unmarshal(b, &other) == nil && reflect.DeepEqual(one, other)
}

// pad adds empty rows to fill in.
func (f policyForm) pad() policyForm {
	if f.Text == nil {
		f.Text = make(map[string]string)
	}
	for more := true; more && len(f.Keep) < maxKeepRows; more = len(f.Keep) < 2 || f.Keep[len(f.Keep)-1] != (keepRow{}) {
		f.Keep = append(f.Keep, keepRow{})
	}
	if n := len(f.Windows); n == 0 || n < maxWindowRows && !f.Windows[n-1].empty() {
		f.Windows = append(f.Windows, windowRow{})
	}
	return f
}

func (w windowRow) empty() bool {
	return len(w.Days) == 0 && w.From == "" && w.To == "" && w.Zone == ""
}

func keepRowOf(k policy.KeepRule) keepRow {
	newest := ""
	if k.Newest > 0 {
		newest = strconv.Itoa(k.Newest)
	}
	switch {
	case k.UsedWithin != policy.Age{}:
		return keepRow{"usedWithin", k.UsedWithin.String(), ""}
	case !k.TagPattern.IsZero():
		return keepRow{"tagPattern", k.TagPattern.String(), ""}
	case k.Versions != "":
		return keepRow{string(k.Versions), newest, ""}
	}
	switch {
	case k.CountImages:
		return keepRow{"newest_images", newest, k.GroupBy.String()}
	case k.PerPlatform:
		return keepRow{"newest_platform", newest, k.GroupBy.String()}
	}
	return keepRow{"newest", newest, k.GroupBy.String()}
}

// readPolicyForm reads the editor's fields from a form that was sent.
func readPolicyForm(v url.Values) policyForm {
	f := policyForm{
		AsJSON: v.Get("as") == "json", Document: v.Get("document"), Version: v.Get("version"),
		Method: v.Get("method"), Text: make(map[string]string), Excludes: v.Get("tagPatternMatches") == "false",
		Orphans: v.Get("removeOrphans") != "", Images: v.Get("countImages") != "", PerPlatform: v.Get("perPlatform") != "", Others: strings.TrimSpace(v.Get("others")),
	}
	for _, name := range slices.Concat(textMembers, numberMembers, listMembers) {
		f.Text[name] = strings.TrimSpace(v.Get(name))
	}
	for _, name := range membersOf(policy.Member.IsSize) { // people write 10 GiB, policies have 10GiB
		f.Text[name] = strings.ReplaceAll(f.Text[name], " ", "")
	}
	for i := range maxKeepRows {
		name := fmt.Sprintf("keep%d.", i)
		if kind := v.Get(name + "kind"); kind != "" {
			f.Keep = append(f.Keep, keepRow{kind, strings.TrimSpace(v.Get(name + "value")), strings.TrimSpace(v.Get(name + "group"))})
		}
	}
	for i := range maxWindowRows {
		name := fmt.Sprintf("window%d.", i)
		w := windowRow{v[name+"day"], strings.TrimSpace(v.Get(name + "from")), strings.TrimSpace(v.Get(name + "to")), strings.TrimSpace(v.Get(name + "zone"))}
		if !w.empty() {
			f.Windows = append(f.Windows, w)
		}
	}
	return f.pad()
}

// policy returns the policy that the form says, as JSON.
func (f policyForm) policy() (api.PolicyText, error) {
	if f.AsJSON {
		if _, err := parseDocument(f.Document); err != nil {
			return nil, err
		}
		if strings.TrimSpace(f.Document) == "" {
			return nil, formError("Write the policy as a JSON object.")
		}
		return api.PolicyText(f.Document), nil
	}
	d, err := f.document()
	if err != nil {
		return nil, err
	}
	return api.PolicyText(d.text()), nil
}

// document puts the fields and the members without fields together.
func (f policyForm) document() (document, error) {
	d, err := parseDocument(f.Others)
	if err != nil {
		return nil, err
	}
	var twice []string
	put := func(name string, value any) {
		b, err := json.Marshal(value)
		if err != nil || d[name] != nil {
			twice = append(twice, name)
			return
		}
		d[name] = b
	}
	put("method", f.Method)
	for _, name := range textMembers {
		if text := f.Text[name]; text != "" && (!isAmount(name) || name == amountMember(f.Method)) && (name != "groupBy" || f.counts()) {
			put(name, text)
		}
	}
	for _, name := range numberMembers {
		if text := f.Text[name]; text != "" && (!isAmount(name) || name == amountMember(f.Method)) {
			put(name, numberOr(text))
		}
	}
	for _, name := range listMembers {
		if list := strings.FieldsFunc(f.Text[name], separates); len(list) > 0 {
			put(name, list)
		}
	}
	if f.Excludes {
		put("tagPatternMatches", false)
	}
	if f.Images && f.counts() {
		put("countImages", true)
	}
	if f.PerPlatform && f.counts() {
		put("perPlatform", true)
	}
	if f.Orphans {
		put("removeOrphans", true)
	}
	if rules := f.keepRules(); len(rules) > 0 {
		put("keep", rules)
	}
	if windows := f.windows(); len(windows) > 0 {
		put("windows", windows)
	}
	if len(twice) > 0 {
		return nil, formError("The JSON has members that have fields of their own, and both are filled in: " + strings.Join(twice, ", ") + ".")
	}
	return d, nil
}

// numberOr returns the number that a text says or, so that the registry says what is wrong with it,
// the text.
func numberOr(text string) any {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n
	}
	return text
}

func (f policyForm) keepRules() (list []map[string]any) {
	for _, k := range f.Keep {
		rule := make(map[string]any)
		switch k.Kind {
		case "":
			continue
		case "usedWithin", "tagPattern":
			rule[k.Kind] = k.Value
		case "newest", "newest_images", "newest_platform":
			rule["newest"] = numberOr(k.Value)
			if member := map[string]string{"newest_images": "countImages", "newest_platform": "perPlatform"}[k.Kind]; member != "" {
				rule[member] = true
			}
			if k.Group != "" {
				rule["groupBy"] = k.Group
			}
		default:
			rule["versions"] = k.Kind
			if k.Value != "" && k.Kind != string(policy.Releases) {
				rule["newest"] = numberOr(k.Value)
			}
		}
		list = append(list, rule)
	}
	return list
}

func (f policyForm) windows() (list []policy.Window) {
	for _, w := range f.Windows {
		if !w.empty() {
			list = append(list, policy.Window{Days: w.Days, From: w.From, To: w.To, Zone: w.Zone})
		}
	}
	return list
}

// switchTo returns the form in its other form, with all that it says.
func (f policyForm) switchTo(asJSON bool) (policyForm, error) {
	if asJSON {
		d, err := f.document()
		f.AsJSON, f.Document = true, d.text()
		if err != nil {
			f.AsJSON = false
		}
		return f, err
	}
	d, err := parseDocument(f.Document)
	if err != nil {
		return f, err
	}
	out := formOf(d)
	out.Version = f.Version
	return out, nil
}

// viewOf reads a policy as an answer of the API has it.
func viewOf(d document) (v api.PolicyView, err error) {
	b, err := json.Marshal(d)
	if err == nil {
		err = json.Unmarshal(b, &v)
	}
	return v, err
}
