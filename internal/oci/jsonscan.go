package oci

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// encoding/json ignores the case of keys, and if a key occurs twice, it uses the last one.
// Other parsers behave differently, so a manifest could mean one thing to the registry and
// another to a client. Therefore the functions of this file parse JSON objects, and refuse a
// key that occurs twice or in another case. They expect text that json.Valid has accepted.

// field is a member of a JSON object; value is its unparsed text.
type field struct {
	key   string
	value []byte
}

// present returns whether the member exists and isn't null: Go's encoders write null for an
// empty list, so null counts as missing.
func (f field) present() bool {
	return f.value != nil && string(f.value) != "null"
}

// readObject returns those members of the JSON object `raw` whose keys are in `known`, and
// skips the others. A key must match exactly: it is an error if a key of `known` occurs twice,
// or in another case.
func readObject(raw []byte, known []string) (map[string]field, error) {
	if len(raw) == 0 || raw[0] != '{' {
		return nil, fmt.Errorf("it must be a JSON object, not %s", typeName(raw))
	}
	fields := make(map[string]field, len(known))
	i := skipSpace(raw, 1)
	for raw[i] != '}' {
		end := skipString(raw, i)
		key, err := readString(raw[i:end])
		if err != nil {
			return nil, err
		}
		start := skipSpace(raw, skipSpace(raw, end)+1) // past the colon
		end = skipValue(raw, start)
		if name := matchKey(key, known); name != "" {
			if name != key {
				return nil, fmt.Errorf("the key %q must be written %q", key, name)
			}
			if _, twice := fields[key]; twice {
				return nil, fmt.Errorf("the key %q comes twice", key)
			}
			fields[key] = field{key: key, value: raw[start:end]}
		}
		i = nextMember(raw, end)
	}
	return fields, nil
}

// matchKey returns the element of `known` that equals `key` if case is ignored, or "".
func matchKey(key string, known []string) string {
	for _, name := range known {
		if strings.EqualFold(key, name) {
			return name
		}
	}
	return ""
}

// readArray returns the elements of the JSON array `raw`, still unparsed. It returns an error
// if the array has more than `limit` elements.
func readArray(raw []byte, limit int) ([][]byte, error) {
	if len(raw) == 0 || raw[0] != '[' {
		return nil, fmt.Errorf("it must be a JSON array, not %s", typeName(raw))
	}
	var elements [][]byte
	for i := skipSpace(raw, 1); raw[i] != ']'; {
		if len(elements) == limit {
			return nil, fmt.Errorf("more than %d entries", limit)
		}
		end := skipValue(raw, i)
		elements = append(elements, raw[i:end])
		i = nextMember(raw, end)
	}
	return elements, nil
}

// nextMember returns the index in `raw` of the next member of an object or array, behind the
// comma at or after index i, or the index of the closing bracket if no member follows.
func nextMember(raw []byte, i int) int {
	i = skipSpace(raw, i)
	if raw[i] == ',' {
		i = skipSpace(raw, i+1)
	}
	return i
}

func skipSpace(raw []byte, i int) int {
	for i < len(raw) && (raw[i] == ' ' || raw[i] == '\t' || raw[i] == '\n' || raw[i] == '\r') {
		i++
	}
	return i
}

// skipString returns the index after the JSON string that starts at i.
func skipString(raw []byte, i int) int {
	for i++; raw[i] != '"'; i++ {
		if raw[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// skipValue returns the index after the JSON value that starts at i. It counts brackets and
// doesn't recurse, so deep nesting uses no stack.
func skipValue(raw []byte, i int) int {
	depth := 0
	for {
		switch raw[i] {
		case '"':
			i = skipString(raw, i)
		case '{', '[':
			depth++
			i++
		case '}', ']':
			depth--
			i++
		case ',', ':', ' ', '\t', '\n', '\r':
			i++
			continue
		default:
			i = skipLiteral(raw, i)
		}
		if depth == 0 {
			return i
		}
	}
}

// skipLiteral returns the index after the number, true, false or null that starts at i.
func skipLiteral(raw []byte, i int) int {
	for i < len(raw) && !strings.ContainsRune(",:]} \t\n\r", rune(raw[i])) {
		i++
	}
	return i
}

// typeName returns the name of raw's JSON type for error messages.
func typeName(raw []byte) string {
	if len(raw) == 0 {
		return "nothing"
	}
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

// readString parses a JSON string. It decodes only strings with escapes, which are rare, and
// copies others.
func readString(raw []byte) (string, error) {
	if raw[0] != '"' {
		return "", fmt.Errorf("it must be a string, not %s", typeName(raw))
	}
	if !bytes.ContainsRune(raw, '\\') {
		return string(raw[1 : len(raw)-1]), nil
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", fmt.Errorf("it must be a string: %w", err)
	}
	return s, nil
}
