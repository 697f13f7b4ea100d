package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// FieldError says which member of a policy's JSON is wrong, and why. Its text is meant for
// the author of the policy.
type FieldError struct {
	Field   string // as it stands in the JSON; "" for the policy as a whole
	Problem string
}

// Error returns field and problem.
func (e *FieldError) Error() string {
	if e.Field == "" {
		return "policy: " + e.Problem
	}
	return e.Field + ": " + e.Problem
}

func fieldErrorf(field, format string, args ...any) *FieldError {
	return &FieldError{Field: field, Problem: fmt.Sprintf(format, args...)}
}

// within returns the error of a part of a policy, with the part's place before the field.
func within(place string, err error) error {
	inner, ok := errors.AsType[*FieldError](err)
	if !ok {
		return err
	}
	if inner.Field != "" {
		place += "." + inner.Field
	}
	return &FieldError{Field: place, Problem: inner.Problem}
}

// Parse reads a policy from a JSON object with the members that the fields of [Policy] have, of which
// method and the method's age, number or size must be there. Left out or null, another member has no
// effect.
//
// Three members may be called value instead, for Quay's API: olderThan, numTags and maxBytes. Quay
// stores the first two under the names that Purser uses.
//
// Fields that are named in `readOnly` may be present with any value and are ignored, so
// that a client can send back a policy that it has read from the API. Parse refuses
// everything else: other fields, a field that is given twice or written in another case, a
// field of another method, and text after the object. Every error is a [*FieldError].
func Parse(data []byte, readOnly ...string) (Policy, error) {
	known := policyFields
	known.also = readOnly
	fields, err := readFields(data, known)
	if err != nil {
		return Policy{}, err
	}
	p, err := read(fields)
	if err != nil {
		return Policy{}, err
	}
	return p, nil
}

// policyFields are the names of a policy's members.
var policyFields = object{of: "a policy", fields: append(namesOf(allMembers), "value")}

func read(fields map[string]json.RawMessage) (p Policy, err error) {
	if fields["method"] == nil {
		return p, fieldErrorf("method", "it is missing; it is one of %s", enumerated(MemberOf("method").Choices()))
	}
	if err := readMembers(&p, allMembers, map[string]json.RawMessage{"method": fields["method"]}, "method"); err != nil {
		return p, err
	}
	own := p.Method.Takes()
	name, err := useValue(fields, p.Method, own)
	if err != nil {
		return p, err
	}
	if p.Method == UntaggedManifests {
		if err := checkUntagged(fields); err != nil {
			return p, err
		}
	}
	err = readMembers(&p, allMembers, fields, "method", own)
	if wrong, ok := errors.AsType[*FieldError](err); ok && wrong.Field == own {
		wrong.Field = name
	}
	if err != nil {
		return p, err
	}
	if p.Mode == On {
		p.Mode = ""
	}
	return p, p.check()
}

// check returns an error for members that don't go together.
func (p *Policy) check() error {
	if err := checkGroupBy(p.GroupBy); err != nil {
		return err
	}
	if err := p.Counting.check(p.Method); err != nil {
		return err
	}
	matches := !p.Excludes()
	if !matches && p.TagPattern.IsZero() {
		return fieldErrorf("tagPatternMatches", "false needs a tagPattern")
	}
	if p.TagPatternMatches = nil; !p.TagPattern.IsZero() {
		p.TagPatternMatches = &matches
	}
	return p.Selectors.check()
}

// useValue gives the member value its other name, which is `own`: olderThan, numTags or maxBytes,
// depending on the policy's method. It returns the name that the policy has. It returns an error if
// neither or both are given, or if a member is given that belongs to other methods.
func useValue(fields map[string]json.RawMessage, m Method, own string) (name string, err error) {
	for _, other := range []string{"olderThan", "numTags", "maxBytes"} {
		if _, given := fields[other]; given && other != own {
			return "", fieldErrorf(other, "%s has none; it takes %s", m, own)
		}
	}
	_, given := fields[own]
	value, valueGiven := fields["value"]
	switch {
	case given && valueGiven:
		return "", fieldErrorf("value", "it says the same as %s; give one of them", own)
	case valueGiven:
		fields[own] = value
		return "value", nil
	case !given:
		return "", fieldErrorf(own, "it is missing; %s needs it", m)
	}
	return own, nil
}

// CertainlyCounts returns whether a stored policy that can't be read is certainly a number_of_tags or
// max_bytes policy, because only its number, its size or its pattern is wrong.
func CertainlyCounts(stored []byte) bool {
	fields, err := readFields(stored, policyFields)
	if err != nil || fields["olderThan"] != nil {
		return false
	}
	var p Policy
	for _, name := range []string{"method", "removeOrphans"} {
		if err := readMembers(&p, allMembers, map[string]json.RawMessage{name: fields[name]}, "method"); err != nil {
			return false
		}
	}
	return p.Method.Counts() && !p.RemoveOrphans
}

// MayRetain returns whether a stored policy that can't be read may keep manifests that nothing
// references.
func MayRetain(stored string) bool {
	return strings.Contains(stored, `"keepUntagged"`) || strings.Contains(stored, `"`+string(UntaggedManifests)+`"`)
}

// object says which names the members of a JSON object may have. Error messages name
// `fields`, and not `also`.
type object struct {
	of           string // the object, for messages
	fields, also []string
}

// readFields returns the members of the JSON object in `data` by name. It reads the object
// token by token, because encoding/json ignores the case of names and, of two members with
// one name, silently uses the last. It returns an error if a name isn't in `known` or is
// given twice.
func readFields(data []byte, known object) (map[string]json.RawMessage, error) {
	if err := checkDocument(data); err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	if _, err := decoder.Token(); err != nil { // the opening brace
		return nil, malformed(err)
	}
	fields := make(map[string]json.RawMessage)
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return nil, malformed(err)
		}
		name, _ := token.(string)
		if err := checkName(name, known); err != nil {
			return nil, err
		}
		if _, twice := fields[name]; twice {
			return nil, fieldErrorf(name, "it is given twice")
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return nil, malformed(err)
		}
		fields[name] = value
	}
	return fields, nil
}

// checkDocument returns an error unless data is exactly one JSON object.
func checkDocument(data []byte) error {
	if !utf8.Valid(data) {
		return fieldErrorf("", "it isn't valid UTF-8")
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	var document json.RawMessage
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return fieldErrorf("", "it is empty; write a JSON object such as %s", policyExample)
	} else if err != nil {
		return malformed(err)
	}
	if rest := bytes.TrimLeft(data[decoder.InputOffset():], " \t\r\n"); len(rest) > 0 {
		return fieldErrorf("", "text follows the JSON object: %.20q", rest)
	}
	if document[0] != '{' {
		return fieldErrorf("", "it must be a JSON object, not %s", typeName(document))
	}
	return nil
}

const policyExample = `{"method": "creation_date", "olderThan": "2w"}`

func malformed(err error) error {
	var at *json.SyntaxError
	if errors.As(err, &at) {
		return fieldErrorf("", "it isn't JSON: %v at byte %d", err, at.Offset)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fieldErrorf("", "it isn't JSON: it ends too early")
	}
	return fieldErrorf("", "it isn't JSON: %v", err)
}

// checkName refuses a name that no field has.
func checkName(name string, known object) error {
	if slices.Contains(known.fields, name) || slices.Contains(known.also, name) {
		return nil
	}
	shown := name
	if len(shown) > 80 {
		shown = strings.ToValidUTF8(shown[:80], "") + "…"
	}
	for _, field := range known.fields {
		if strings.EqualFold(name, field) {
			return fieldErrorf(shown, "it must be written %s", field)
		}
	}
	return fieldErrorf(shown, "unknown field; %s has %s", known.of, strings.Join(known.fields, ", "))
}

// typeName names the JSON type of raw for messages.
func typeName(raw json.RawMessage) string {
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}
