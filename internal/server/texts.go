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

// checkText refuses text that PostgreSQL can't store: the character NUL and invalid
// UTF-8. Otherwise a query would fail, and the client would see a server error.
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

// checkRawQuery checks the text in a raw query like checkText. It refuses a query that
// can't be parsed, since net/url would silently drop the bad parameters.
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

// checkQuery checks the names and values of a query like checkText.
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

// checkBody checks the strings in a JSON body like checkText; NUL appears there as
// \u0000. It accepts a body that isn't JSON, which the later parser refuses, and
// invalid UTF-8, which encoding/json replaces.
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
