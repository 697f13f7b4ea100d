package management

import (
	"reflect"

	"github.com/danielgtaylor/huma/v2"
)

// publishedNames maps the name of a Go type to its schema's name in the OpenAPI document, where
// the two differ. Clients that are generated from the document use its names, so a type that is
// renamed keeps the name of its schema.
var publishedNames = map[string]string{
	"DryRunDeletion": "Reviewed",
	"FailedReview":   "SetAsideReview",
	"PendingStatus":  "DoomedStatus",
}

// schemaName returns the name of the type `t` in the OpenAPI document: its name in
// publishedNames if it has one, else huma's default name.
func schemaName(t reflect.Type, hint string) string {
	name := huma.DefaultSchemaNamer(t, hint)
	if published, ok := publishedNames[name]; ok {
		return published
	}
	return name
}
