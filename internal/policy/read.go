package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/oci"
)

// A member of a policy is read by its field's type and tags. The tag json has the member's name, enum the
// texts that it may be, maximum its largest number, check the name of the function in `checks` for the
// elements of a list, and none the text that an age may be besides lengths of time, see [NoWait].

// checks are the functions that the tag check names.
var checks = map[string]func(string) error{
	"path": oci.CheckPathPattern, "mediaType": CheckMediaType, "platform": CheckPlatform, "reporter": hold.CheckReporter, "day": checkDay,
}

// readMembers reads those of the members into the struct at p that are in `fields`. Null has no effect,
// unless the member is in notNull.
func readMembers(p any, members []Member, fields map[string]json.RawMessage, notNull ...string) error {
	v := reflect.ValueOf(p).Elem()
	for i := range members {
		m := &members[i]
		raw := fields[m.Name]
		if raw == nil || string(raw) == "null" && !slices.Contains(notNull, m.Name) {
			continue
		}
		if err := readMember(v.FieldByIndex(m.f.Index).Addr().Interface(), m.Name, m.f.Tag, raw); err != nil {
			return err
		}
	}
	return nil
}

// readMember reads a member into the field at p.
func readMember(p any, name string, tag reflect.StructTag, raw json.RawMessage) (err error) {
	switch p := p.(type) {
	case *int:
		*p, err = readWhole(name, raw, tag.Get("maximum"))
	case *bool:
		*p, err = readFlag(name, raw)
	case **bool:
		var flag bool
		flag, err = readFlag(name, raw)
		*p = &flag
	case *[]string:
		*p, err = readList(name, raw, checks[tag.Get("check")])
	case *map[string]string:
		*p, err = readMap(name, raw)
	case *[]Window:
		*p, err = readWindows(raw)
	case *[]KeepRule:
		*p, err = readKeeps(raw)
	default:
		var text string
		if text, err = readText(name, raw); err == nil {
			err = readTextMember(p, name, tag, text)
		}
	}
	return err
}

// readTextMember reads a member whose value is a text into the field at p.
func readTextMember(p any, name string, tag reflect.StructTag, text string) (err error) {
	switch p := p.(type) {
	case *Age:
		if *p = NoWait; text != tag.Get("none") || text == "" {
			*p, err = ParseAge(text)
		}
	case *Size:
		*p, err = ParseSize(text)
	case *oci.TagPattern:
		*p, err = oci.ParseTagPattern(text)
	default:
		if allowed := strings.Split(tag.Get("enum"), ","); len(allowed) > 1 && !slices.Contains(allowed, text) {
			err = fmt.Errorf("%.40q is unknown; it is one of %s", text, enumerated(allowed))
		}
		reflect.ValueOf(p).Elem().SetString(text)
	}
	if err != nil {
		return fieldErrorf(name, "%v", err)
	}
	return nil
}

// readWhole reads a whole number from 1 to `maximum`, or to MaxNumTags.
func readWhole(name string, raw json.RawMessage, maximum string) (int, error) {
	limit := MaxNumTags
	if most, err := strconv.Atoi(maximum); err == nil {
		limit = most
	}
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

func readFlag(name string, raw json.RawMessage) (bool, error) {
	switch string(raw) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, fieldErrorf(name, "it must be true or false, not %s", typeName(raw))
}

func readText(name string, raw json.RawMessage) (string, error) {
	if raw[0] != '"' {
		return "", fieldErrorf(name, "it must be a string, not %s", typeName(raw))
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return "", fieldErrorf(name, "it must be a string: %v", err)
	}
	return text, nil
}

// readList reads an array of texts.
func readList(name string, raw json.RawMessage, check func(string) error) ([]string, error) {
	if raw[0] != '[' {
		return nil, fieldErrorf(name, "it must be an array of strings, not %s", typeName(raw))
	}
	var elements []json.RawMessage
	if err := json.Unmarshal(raw, &elements); err != nil {
		return nil, malformed(err)
	}
	switch {
	case len(elements) == 0:
		return nil, fieldErrorf(name, "it is empty, which selects nothing; leave it out to select everything")
	case len(elements) > maxSelectors:
		return nil, fieldErrorf(name, "it has %d elements and at most %d are allowed", len(elements), maxSelectors)
	}
	list := make([]string, len(elements))
	for i, element := range elements {
		place := fmt.Sprintf("%s[%d]", name, i)
		text, err := readText(place, element)
		if err != nil {
			return nil, err
		}
		if err := check(text); err != nil {
			return nil, fieldErrorf(place, "%v", err)
		}
		list[i] = text
	}
	return list, nil
}

// readMap reads an object of texts.
func readMap(name string, raw json.RawMessage) (map[string]string, error) {
	if raw[0] != '{' {
		return nil, fieldErrorf(name, "it must be an object of strings, not %s", typeName(raw))
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	if _, err := decoder.Token(); err != nil { // the opening brace
		return nil, malformed(err)
	}
	m := make(map[string]string)
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return nil, malformed(err)
		}
		key, _ := token.(string)
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return nil, malformed(err)
		}
		if _, twice := m[key]; twice {
			return nil, fieldErrorf(name, "%.40q is given twice", key)
		}
		if value[0] != '"' {
			return nil, fieldErrorf(name, "the value of %.40q must be a string, not %s", key, typeName(value))
		}
		if m[key], err = readText(name, value); err != nil {
			return nil, err
		}
		if err := checkAttribute(key, m[key]); err != nil {
			return nil, fieldErrorf(name, "%v", err)
		}
	}
	switch {
	case len(m) == 0:
		return nil, fieldErrorf(name, "it is empty; leave it out to select everything")
	case len(m) > maxSelectors:
		return nil, fieldErrorf(name, "it has %d members and at most %d are allowed", len(m), maxSelectors)
	}
	return m, nil
}
