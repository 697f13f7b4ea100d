package ui

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// members are values of a policy's members: those for which the editor has fields, those that its
// fields can't hold, and those of which it knows nothing.
var members = map[string][]string{
	"olderThan":         {`"90d"`, `"5"`, `7`, `" 1d"`},
	"maxBytes":          {`"50GiB"`, `"x"`, `"50 GiB"`, `5`},
	"numTags":           {`5`, `1e3`, `"x"`},
	"countImages":       {`true`, `1`},
	"perPlatform":       {`true`, `"yes"`},
	"groupBy":           {`"^(v)"`, `7`, `" (a)"`},
	"tagPattern":        {`"^pr-"`, `"a\nb"`, `"\"><script>"`, `" v "`},
	"tagPatternMatches": {`false`, `"no"`},
	"removeOrphans":     {`true`, `1`},
	"repositories":      {`["acme/*"]`, `["a b", "c"]`, `["a,b"]`, `[1]`, `[]`, `["acme/**","acme/web"]`},
	"platforms":         {`["linux/arm64"]`},
	"largerThan":        {`"1GiB"`},
	"labels":            {`{"stage":"test"}`},
	"mode":              {`"observe"`, `"off"`, `"later"`},
	"grace":             {`"7d"`},
	"maxDeleted":        {`100`},
	"neverBelow":        {`5`, `-1`},
	"keep": {`[{"newest":10},{"newest":2,"groupBy":"^(v)"},{"newest":3,"countImages":true},{"newest":3,"perPlatform":true},{"usedWithin":"3d"}]`, `[{"versions":"releases"},{"versions":"newest_patches","newest":2}]`,
		`[{"tagPattern":"^v","usedWithin":"3d"}]`, `[{"versions":"newest_majors"}]`, `[{"hashed":1}]`, `"all"`},
	"windows": {`[{"days":["mon","fri"],"from":"22:00","to":"06:00","zone":"Europe/Berlin"}]`, `[{"days":["someday"]}]`, `[{"from":"01:00","to":"02:00","every":2}]`},
	"future":  {`{"a":[1,2,{"b":null}]}`, `"<b>"`},
}

// TestFormKeepsDocument: what the editor makes of a policy and sends back unchanged is the same
// policy, whatever its members are.
func TestFormKeepsDocument(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		method := rapid.SampledFrom([]string{"creation_date", "last_pulled", "number_of_tags", "max_bytes", "untagged", "phase_of_the_moon"}).Draw(t, "method")
		d := document{"method": json.RawMessage(`"` + method + `"`)}
		for _, name := range slices.Sorted(maps.Keys(members)) {
			values := members[name]
			// A policy has an age, a number or a size, as its method says; the editor sends only that.
			if isAmount(name) && name != amountMember(method) || slices.Contains([]string{"groupBy", "countImages", "perPlatform"}, name) && method != "number_of_tags" {
				continue
			}
			if i := rapid.IntRange(-1, len(values)-1).Draw(t, name); i >= 0 {
				d[name] = json.RawMessage(values[i])
			}
		}
		f := formOf(d)
		sent := readPolicyForm(formValues(f))
		text, err := sent.policy()
		if err != nil {
			t.Fatalf("%s: %v", d.text(), err)
		}
		var got any
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		if !sameJSON(json.RawMessage(d.text()), got) {
			t.Fatalf("the form of %s says %s", d.text(), text)
		}
	})
}

// formValues returns what a browser sends of a form that nobody has changed. A browser strips
// newlines of inputs.
func formValues(f policyForm) url.Values {
	v := url.Values{"method": {f.Method}, "others": {f.Others}, "document": {f.Document}}
	if f.AsJSON {
		v.Set("as", "json")
	}
	for name, text := range f.Text {
		v.Set(name, strings.ReplaceAll(text, "\n", ""))
	}
	if f.Excludes {
		v.Set("tagPatternMatches", "false")
	}
	if f.Orphans {
		v.Set("removeOrphans", "true")
	}
	if f.Images {
		v.Set("countImages", "true")
	}
	if f.PerPlatform {
		v.Set("perPlatform", "true")
	}
	for i, k := range f.Keep {
		v.Set(fmt.Sprintf("keep%d.kind", i), k.Kind)
		v.Set(fmt.Sprintf("keep%d.value", i), k.Value)
		v.Set(fmt.Sprintf("keep%d.group", i), k.Group)
	}
	for i, w := range f.Windows {
		name := fmt.Sprintf("window%d.", i)
		v[name+"day"] = w.Days
		v.Set(name+"from", w.From)
		v.Set(name+"to", w.To)
		v.Set(name+"zone", w.Zone)
	}
	return v
}
