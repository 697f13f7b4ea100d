package policy

import (
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/purser-registry/purser/internal/oci"
)

// Kind is what a member's value is in JSON.
type Kind int

// The kinds of members.
const (
	Text    Kind = iota + 1 // a string
	Whole                   // a number without fraction, from 1 on
	Flag                    // true or false
	List                    // an array of strings
	Map                     // an object of strings
	Objects                 // an array of objects
)

// Member is a member of a policy's JSON, with what commands and pages say about it. Its texts are the
// tags of its field:
//
//   - flag: the name of the flag that sets it. "repeated" after a comma: the flag is given once for each
//     element of a list; otherwise elements are divided by commas.
//   - usage: what the flag does, in which arg, the name of the flag's value, occurs.
//   - label and hint: what a page writes before the member's input and below it. placeholder: what the
//     empty input shows; example, if it is left out.
type Member struct {
	Name string
	Kind Kind
	f    reflect.StructField
}

// Members returns the members of a policy in the order in which its JSON has them.
func Members() []Member { return slices.Clone(allMembers) }

var (
	allMembers    = membersOf(reflect.TypeFor[Policy]())
	keepMembers   = membersOf(reflect.TypeFor[KeepRule]())
	windowMembers = membersOf(reflect.TypeFor[Window]())
)

// membersOf returns the members of a struct's JSON, with those of the structs that it embeds.
func membersOf(t reflect.Type) (list []Member) {
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); !f.Anonymous && name != "" {
			list = append(list, Member{Name: name, Kind: kindOf(f.Type), f: f})
		}
	}
	return list
}

// namesOf returns the names of members.
func namesOf(members []Member) []string {
	names := make([]string, len(members))
	for i, m := range members {
		names[i] = m.Name
	}
	return names
}

func kindOf(t reflect.Type) Kind {
	switch t {
	case reflect.TypeFor[int]():
		return Whole
	case reflect.TypeFor[bool](), reflect.TypeFor[*bool]():
		return Flag
	case reflect.TypeFor[[]string]():
		return List
	case reflect.TypeFor[map[string]string]():
		return Map
	case reflect.TypeFor[[]Window](), reflect.TypeFor[[]KeepRule]():
		return Objects
	}
	return Text
}

// MemberOf returns the member of a policy with this name in JSON; the zero value if there is none.
func MemberOf(name string) Member {
	i := slices.IndexFunc(allMembers, func(m Member) bool { return m.Name == name })
	if i < 0 {
		return Member{}
	}
	return allMembers[i]
}

// Flag returns the name of the flag that sets the member; "" if there is none. `repeated` says that it
// is given once for each element.
func (m Member) Flag() (name string, repeated bool) {
	name, option, _ := strings.Cut(m.f.Tag.Get("flag"), ",")
	return name, option == "repeated"
}

// Usage returns what the flag does, with the name of its value in backquotes.
func (m Member) Usage() string {
	usage, arg := m.f.Tag.Get("usage"), m.f.Tag.Get("arg")
	if arg == "" {
		return usage
	}
	return strings.Replace(usage, arg, "`"+arg+"`", 1)
}

// Label returns what a page writes before the member's input; "" if it has none.
func (m Member) Label() string { return m.f.Tag.Get("label") }

// Hint returns what a page writes below the member's input.
func (m Member) Hint() string { return m.f.Tag.Get("hint") }

// Placeholder returns what the member's empty input shows.
func (m Member) Placeholder() string {
	if text, ok := m.f.Tag.Lookup("placeholder"); ok {
		return text
	}
	return m.f.Tag.Get("example")
}

// IsSize returns whether the member is a size, see [ParseSize].
func (m Member) IsSize() bool { return m.f.Type == reflect.TypeFor[Size]() }

// IsPattern returns whether the member is a regular expression, see [oci.ParseTagPattern].
func (m Member) IsPattern() bool { return m.f.Type == reflect.TypeFor[oci.TagPattern]() }

// IsSafeguard returns whether the member says when and how much the policy may delete (see [Safeguards]),
// and not what.
func (m Member) IsSafeguard() bool {
	_, ok := reflect.TypeFor[Safeguards]().FieldByName(m.f.Name)
	return ok
}

// Choices returns the texts that the member may be; nil if others are allowed, too.
func (m Member) Choices() []string {
	if allowed := m.f.Tag.Get("enum"); allowed != "" {
		return strings.Split(allowed, ",")
	}
	return nil
}

// Most returns the largest number that the member may be.
func (m Member) Most() int {
	if most, err := strconv.Atoi(m.f.Tag.Get("maximum")); err == nil {
		return most
	}
	return MaxNumTags
}

// Check returns an error unless the member may have the text: as its value, or as an element of a
// list.
func (m Member) Check(text string) error {
	if m.Kind == List {
		return checks[m.f.Tag.Get("check")](text)
	}
	err := readTextMember(reflect.New(m.f.Type).Interface(), m.Name, m.f.Tag, text)
	if wrong, ok := errors.AsType[*FieldError](err); ok {
		return errors.New(wrong.Problem)
	}
	return err
}
