package oci

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// encoding/json ignores the case of keys, and if a key occurs twice, the last one wins.
// Other parsers behave differently. A manifest that two parsers read differently could
// pass the registry as one thing and reach a client as another, so this file parses
// objects itself. All functions expect text that json.Valid has accepted.

// field is a member of an object, as raw text.
type field struct {
	key   string
	value []byte
}

// present says whether the member exists and isn't null. Go's encoders write null for an
// empty list.
func (f field) present() bool {
	return f.value != nil && string(f.value) != "null"
}

// readObject returns those members of the object raw whose keys are in known, which
// must match exactly. Other members are skipped. A known key that occurs twice, or with
// different case, is an error.
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

// matchKey returns the known key that equals key when case is ignored, "" if there is
// none.
func matchKey(key string, known []string) string {
	for _, name := range known {
		if strings.EqualFold(key, name) {
			return name
		}
	}
	return ""
}

// readArray returns the elements of the array raw, at most limit of them.
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

// nextMember skips the comma after a member. At the closing bracket it stops.
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

// skipString returns the index after the string that starts at i.
func skipString(raw []byte, i int) int {
	for i++; raw[i] != '"'; i++ {
		if raw[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// skipValue returns the index after the value that starts at i. It counts brackets
// instead of recursing, so deep nesting uses no stack.
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

// skipLiteral returns the index after a number, true, false or null.
func skipLiteral(raw []byte, i int) int {
	for i < len(raw) && !strings.ContainsRune(",:]} \t\n\r", rune(raw[i])) {
		i++
	}
	return i
}

// typeName names the JSON type of raw for messages.
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

// readString parses a string. It decodes only strings with escapes, which are rare.
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
