package server

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/purser-registry/purser/internal/oci"
)

// CheckText refuses text that PostgreSQL can't store: the character NUL and invalid
// UTF-8. Otherwise a query would fail, and the client would see a server error.
func CheckText(what string, texts ...string) error {
	for _, text := range texts {
		if strings.ContainsRune(text, 0) {
			return Refusal(http.StatusBadRequest, "%s: the value is not text: it holds the character NUL", what)
		}
		if !utf8.ValidString(text) {
			return Refusal(http.StatusBadRequest, "%s: the value is not text: it is not valid UTF-8", what)
		}
	}
	return nil
}

// CheckRawQuery checks the text in a raw query like CheckText. It refuses a query that
// can't be parsed, since net/url would silently drop the bad parameters.
func CheckRawQuery(query string) error {
	if query == "" {
		return nil
	}
	q, err := url.ParseQuery(query)
	if err != nil {
		return Refusal(http.StatusBadRequest, "the query can't be read: %v", err)
	}
	return checkQuery(q)
}

// checkQuery checks the names and values of a query like CheckText.
func checkQuery(q url.Values) error {
	for _, name := range slices.Sorted(maps.Keys(q)) {
		if err := CheckText("the name of a query parameter", name); err != nil {
			return err
		}
		if err := CheckText(name, q[name]...); err != nil {
			return err
		}
	}
	return nil
}

// CheckTag returns the error for a client that names a tag that is not valid, nil for a
// valid one.
func CheckTag(tag string) error {
	if err := oci.ValidateTag(tag); err != nil {
		return oci.Errorf(oci.ManifestInvalid, "%v", err).WithDetail(map[string]string{"tag": tag})
	}
	return nil
}
