package management

import (
	"reflect"

	"github.com/danielgtaylor/huma/v2"
)

// publishedNames maps a schema's name in this version to its name in the OpenAPI document. The
// Go types of these schemas were renamed; the document keeps their old names, because clients
// that were generated from the document use them.
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
