package management

import (
	"reflect"

	"github.com/danielgtaylor/huma/v2"
)

// publishedNames has the names of schemas whose Go types were renamed later. Clients that
// were generated from the OpenAPI document know the schemas by these names.
var publishedNames = map[string]string{
	"DryRunDeletion": "Reviewed",
	"FailedReview":   "SetAsideReview",
	"PendingStatus":  "DoomedStatus",
}

// schemaName returns the name of a type's schema in the OpenAPI document.
func schemaName(t reflect.Type, hint string) string {
	name := huma.DefaultSchemaNamer(t, hint)
	if published, ok := publishedNames[name]; ok {
		return published
	}
	return name
}
