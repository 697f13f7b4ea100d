package autoprune

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/purser-registry/purser/internal/oci"
)

// The JSON fields of a policy. Quay's API calls both the age and the number "value". Quay
// stores them as olderThan and numTags, and Purser's own API uses these two names. The size of a
// max_bytes policy, which Quay doesn't have, may be called value, too.
const (
	fieldMethod  = "method"
	fieldAge     = "olderThan"
	fieldNumber  = "numTags"
	fieldBytes   = "maxBytes"
	fieldValue   = "value"
	fieldPattern = "tagPattern"
	fieldMatches = "tagPatternMatches"
	fieldOrphans = "removeOrphans"
)

var (
	// fieldsWithoutKeep are the fields that say which tags a policy selects, and when it
	// deletes them. A stored policy with these fields alone keeps no tag (see Saved.MayKeep).
	fieldsWithoutKeep = []string{
		fieldMethod, fieldAge, fieldNumber, fieldBytes, fieldValue, fieldGroupBy, fieldImages, fieldPerPlatform, fieldPattern, fieldMatches, fieldOrphans,
		fieldRepositories, fieldMediaTypes, fieldArtifactTypes, fieldLarger, fieldSmaller, fieldAnnotations, fieldLabels, fieldPlatforms, fieldMode, fieldWindows, fieldGrace, fieldMaxDeleted, fieldMaxPercent, fieldUntagged, fieldReporters,
	}
	policyFields = members{of: "a policy", fields: append(slices.Clone(fieldsWithoutKeep), fieldNeverBelow, fieldKeep)}
)

// members are the names that the fields of a JSON object may have. Error messages name
// `fields`, and not `also`.
type members struct {
	of           string // the object, for messages
	fields, also []string
}

// FieldError says which field of a policy's JSON is wrong, and why. Its text is meant for
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

// ParsePolicy reads a policy from a JSON object with these fields:
//
//   - method: creation_date, number_of_tags, last_pulled, max_bytes or untagged. A policy of the last
//     has only a method, olderThan, selectors and a mode, see untagged_policy.go.
//   - olderThan, for creation_date, last_pulled and untagged: an age, see [ParseAge].
//   - numTags, for number_of_tags: a whole number from 1 to [MaxNumTags].
//   - maxBytes, for max_bytes: a size, see [ParseSize].
//   - value: another name for olderThan, numTags or maxBytes; only one of the two may be given.
//   - groupBy, for number_of_tags: a pattern with parentheses, see [CountingForm]. Left out or
//     null: all tags are counted together.
//   - countImages, for number_of_tags: true if tags of the same manifest count as one. Left out or
//     null: false.
//   - perPlatform, for number_of_tags: true if tags are counted for each platform. Left out or null:
//     false.
//   - tagPattern: the pattern of the tags that the policy looks at, see
//     [oci.ParseTagPattern]. Left out or null: every tag.
//   - tagPatternMatches: true if the policy looks at the tags that match tagPattern, false
//     if it looks at the other tags. Left out or null: true. False needs a tagPattern.
//   - removeOrphans: true for a policy that also deletes orphans, see
//     [Policy.RemovesOrphans]. Left out or null: false.
//   - repositories, mediaTypes, artifactTypes: arrays of at most 32 patterns; largerThan,
//     smallerThan: sizes, see [ParseSize]; annotations, labels: objects of at most 32 patterns
//     of values; platforms: an array of at most 32 patterns, see [CheckPlatform]. They say
//     which tags the policy looks at, see [SelectorForm]. Left out or null: every tag.
//   - mode: see [Mode]. Left out or null: on.
//   - windows: an array of at most [MaxWindows] windows, see [WindowForm], of which one must
//     be open for the policy to delete tags. Left out or null: it always may.
//   - grace: the grace period, an age or 0s. Left out or null: Options.Grace.
//   - maxDeleted, maxDeletedPercent: the cap on what a run deletes by the policy, a whole number
//     and a percentage. Left out or null: none.
//   - requireReporter: an array of at most 32 names of reporters that must be live for the policy to
//     delete tags. Left out or null: none.
//   - keepUntagged: an age, for how long manifests stay from when nothing references them, see
//     [Policy.KeepsUntagged]. Left out or null: for the review delay of garbage collection.
//   - neverBelow: how many of the newest tags of each repository stay. Left out or null:
//     none must.
//   - keep: an array of at most [MaxKeeps] keep rules, see [KeepForm]. Left out or null:
//     none.
//
// Fields that are named in `readOnly` may be present with any value and are ignored, so
// that a client can send back a policy that it has read from the API. ParsePolicy refuses
// everything else: other fields, a field that is given twice or written in another case, a
// field of another method, and text after the object. Every error is a [*FieldError].
func ParsePolicy(data []byte, readOnly ...string) (Policy, error) {
	known := policyFields
	known.also = readOnly
	fields, err := readFields(data, known)
	if err != nil {
		return Policy{}, err
	}
	return readPolicy(fields)
}

func readPolicy(fields map[string]json.RawMessage) (p Policy, err error) {
	if p.method, err = readMethod(fields[fieldMethod]); err != nil {
		return Policy{}, err
	}
	switch p.method {
	case NumberOfTags:
		p.number, err = readNumber(fields)
	case MaxBytes:
		p.bytes, err = readBytes(fields)
	default:
		p.age, err = readAge(fields, p.method)
	}
	if err != nil {
		return Policy{}, err
	}
	if p.method == UntaggedManifests {
		if err := checkUntagged(fields); err != nil {
			return Policy{}, err
		}
	}
	if p.count, err = readCounting(fields, p.method); err != nil {
		return Policy{}, err
	}
	if p.pattern, err = readPattern(fieldPattern, fields[fieldPattern]); err != nil {
		return Policy{}, err
	}
	matches, err := readFlag(fieldMatches, fields[fieldMatches], true)
	if err != nil {
		return Policy{}, err
	}
	p.exclude = !matches
	if p.orphans, err = readFlag(fieldOrphans, fields[fieldOrphans], false); err != nil {
		return Policy{}, err
	}
	if p.exclude && p.pattern.IsZero() {
		return Policy{}, fieldErrorf(fieldMatches, "false needs a tagPattern")
	}
	if p.where, err = readSelectors(fields); err != nil {
		return Policy{}, err
	}
	if p.guard, err = readSafeguards(fields); err != nil {
		return Policy{}, err
	}
	if p.keep, err = readKeeps(fields[fieldKeep]); err != nil {
		return Policy{}, err
	}
	return p, nil
}

// readFields returns the members of the JSON object in `data` by name. It reads the object
// token by token, because encoding/json ignores the case of names and, of two members with
// one name, silently uses the last. It returns an error if a name isn't in `known` or is
// given twice.
func readFields(data []byte, known members) (map[string]json.RawMessage, error) {
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
func checkName(name string, known members) error {
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

func readMethod(raw json.RawMessage) (Method, error) {
	if raw == nil {
		return "", fieldErrorf(fieldMethod, "it is missing; methods are %s, %s, %s, %s and %s", CreationDate, NumberOfTags, LastPulled, MaxBytes, UntaggedManifests)
	}
	text, err := readText(fieldMethod, raw)
	if err != nil {
		return "", err
	}
	switch m := Method(text); m {
	case CreationDate, NumberOfTags, LastPulled, MaxBytes, UntaggedManifests:
		return m, nil
	}
	return "", fieldErrorf(fieldMethod, "%.40q is unknown; methods are %s, %s, %s, %s and %s", text, CreationDate, NumberOfTags, LastPulled, MaxBytes, UntaggedManifests)
}

// amount returns the name and the text of the field that has the policy's age, number or size.
// This is the field `own` (olderThan, numTags or maxBytes, depending on the policy's method) or
// its alias, value. amount returns an error if neither or both are given, or if a field is given
// that belongs to other methods.
func amount(fields map[string]json.RawMessage, m Method, own string) (name string, raw json.RawMessage, err error) {
	for _, other := range []string{fieldAge, fieldNumber, fieldBytes} {
		if _, given := fields[other]; given && other != own {
			return "", nil, fieldErrorf(other, "%s has none; it takes %s", m, own)
		}
	}
	raw, given := fields[own]
	value, valueGiven := fields[fieldValue]
	switch {
	case given && valueGiven:
		return "", nil, fieldErrorf(fieldValue, "it says the same as %s; give one of them", own)
	case given:
		return own, raw, nil
	case valueGiven:
		return fieldValue, value, nil
	}
	return "", nil, fieldErrorf(own, "it is missing; %s needs it", m)
}

func readAge(fields map[string]json.RawMessage, m Method) (Age, error) {
	name, raw, err := amount(fields, m, fieldAge)
	if err != nil {
		return Age{}, err
	}
	return readAgeOf(name, raw)
}

func readAgeOf(name string, raw json.RawMessage) (Age, error) {
	text, err := readText(name, raw)
	if err != nil {
		return Age{}, err
	}
	age, err := ParseAge(text)
	if err != nil {
		return Age{}, fieldErrorf(name, "%v", err)
	}
	return age, nil
}

func readNumber(fields map[string]json.RawMessage) (int, error) {
	name, raw, err := amount(fields, NumberOfTags, fieldNumber)
	if err != nil {
		return 0, err
	}
	return readWhole(name, raw, MaxNumTags)
}

func readBytes(fields map[string]json.RawMessage) (int64, error) {
	name, raw, err := amount(fields, MaxBytes, fieldBytes)
	if err != nil {
		return 0, err
	}
	text, err := readText(name, raw)
	if err != nil {
		return 0, err
	}
	return readSizeText(name, text)
}

// readWhole reads a whole number from 1 to `limit`.
func readWhole(name string, raw json.RawMessage, limit int) (int, error) {
	text := string(raw)
	switch {
	case typeName(raw) != "a number":
		return 0, fieldErrorf(name, "it must be a number such as 100, not %s", typeName(raw))
	case strings.ContainsAny(text, ".eE"):
		return 0, fieldErrorf(name, "%.40s must be a whole number in plain digits", text)
	case text[0] == '-' || text == "0":
		return 0, fieldErrorf(name, "%.40s must be at least 1", text)
	}
	n, err := strconv.Atoi(text)
	if err != nil || n > limit {
		return 0, fieldErrorf(name, "%.40s is too large; at most %d is allowed", text, limit)
	}
	return n, nil
}

func readPattern(field string, raw json.RawMessage) (oci.TagPattern, error) {
	if raw == nil || string(raw) == "null" {
		return oci.TagPattern{}, nil
	}
	text, err := readText(field, raw)
	if err != nil {
		return oci.TagPattern{}, err
	}
	pattern, err := oci.ParseTagPattern(text)
	if err != nil {
		return oci.TagPattern{}, fieldErrorf(field, "%v", err)
	}
	return pattern, nil
}

// readFlag returns the value of a boolean field. If the field is left out or null, it
// returns the default that the parameter `otherwise` has.
func readFlag(field string, raw json.RawMessage, otherwise bool) (bool, error) {
	switch string(raw) {
	case "", "null":
		return otherwise, nil
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, fieldErrorf(field, "it must be true or false, not %s", typeName(raw))
}

func readText(field string, raw json.RawMessage) (string, error) {
	if raw[0] != '"' {
		return "", fieldErrorf(field, "it must be a string, not %s", typeName(raw))
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return "", fieldErrorf(field, "it must be a string: %v", err)
	}
	return text, nil
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
