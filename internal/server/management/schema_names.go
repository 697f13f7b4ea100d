package management

import (
	"reflect"

	"github.com/danielgtaylor/huma/v2"
)

// publishedNames maps the present name of a schema to the name under which the OpenAPI
// document publishes it. The Go types of these schemas were renamed, but clients that were
// generated from the document know the schemas by their old names.
var publishedNames = map[string]string{
	"DryRunDeletion": "Reviewed",
	"FailedReview":   "SetAsideReview",
	"PendingStatus":  "DoomedStatus",
}

// schemaName returns the name of a type's schema in the OpenAPI document: the published
// name, or huma's default.
func schemaName(t reflect.Type, hint string) string {
	name := huma.DefaultSchemaNamer(t, hint)
	if published, ok := publishedNames[name]; ok {
		return published
	}
	return name
}
