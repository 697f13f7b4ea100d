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

// CheckText returns an error with status 400 if PostgreSQL can't store one of the texts,
// because the text contains the character NUL or is invalid UTF-8. Without this check, the
// query that stores the text would fail, and the client would get a server error. `what` is the
// name of the text in the error.
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

// CheckRawQuery checks the names and values in a raw query as CheckText does. It also returns
// an error with status 400 if the query can't be parsed, because net/url would silently drop
// the malformed parameters.
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

// checkQuery checks the names and values of query parameters as CheckText does, and returns the
// first error.
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

// CheckTag returns an error for the client (MANIFEST_INVALID) if `tag` isn't a valid tag.
func CheckTag(tag string) error {
	if err := oci.ValidateTag(tag); err != nil {
		return oci.Errorf(oci.ManifestInvalid, "%v", err).WithDetail(map[string]string{"tag": tag})
	}
	return nil
}
