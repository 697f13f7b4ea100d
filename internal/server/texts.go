package server

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"
)

// checkText refuses what no text in PostgreSQL can hold: the character NUL and
// bytes that aren't UTF-8. Without it a query fails, which looks like the
// registry's own failure.
func checkText(what string, texts ...string) error {
	for _, text := range texts {
		if strings.ContainsRune(text, 0) {
			return refusal(http.StatusBadRequest, "%s: the value is not text: it holds the character NUL", what)
		}
		if !utf8.ValidString(text) {
			return refusal(http.StatusBadRequest, "%s: the value is not text: it is not valid UTF-8", what)
		}
	}
	return nil
}

// checkRawQuery does so for a query as it was sent. One that can't be read is refused
// whole: of what net/url leaves out nobody would hear.
func checkRawQuery(query string) error {
	if query == "" {
		return nil
	}
	q, err := url.ParseQuery(query)
	if err != nil {
		return refusal(http.StatusBadRequest, "the query can't be read: %v", err)
	}
	return checkQuery(q)
}

// checkQuery does so for the names and values of a query.
func checkQuery(q url.Values) error {
	for _, name := range slices.Sorted(maps.Keys(q)) {
		if err := checkText("the name of a query parameter", name); err != nil {
			return err
		}
		if err := checkText(name, q[name]...); err != nil {
			return err
		}
	}
	return nil
}

// checkBody does so for a body of JSON, where NUL is written as \u0000. What is no
// JSON is for its reader to refuse; bytes that aren't UTF-8 it replaces.
func checkBody(body []byte) error {
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		return nil
	}
	return checkMembers("the body", v)
}

func checkMembers(what string, v any) error {
	switch v := v.(type) {
	case string:
		return checkText(what, v)
	case []any:
		for _, element := range v {
			if err := checkMembers(what, element); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if err := checkText("the name of a member of "+what, name); err != nil {
				return err
			}
			if err := checkMembers(strings.TrimPrefix(what+"."+name, "the body."), v[name]); err != nil {
				return err
			}
		}
	}
	return nil
}
