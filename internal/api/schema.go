package api

import "github.com/danielgtaylor/huma/v2"

// ReadOnly adds members of an answer to the schema of a request body. A client can then read a
// resource, change it and send it back with these members, which the registry ignores.
func ReadOnly(s *huma.Schema, members ...string) *huma.Schema {
	for _, name := range members {
		if s.Properties[name] == nil {
			s.Properties[name] = &huma.Schema{ReadOnly: true, Description: "Read-only: it is ignored in requests"}
		}
	}
	return s
}

// Nullable marks the given properties of a schema as ones that may be null. It is for properties
// that refer to another schema; huma has no struct tag for these.
func Nullable(s *huma.Schema, properties ...string) *huma.Schema {
	for _, name := range properties {
		s.Properties[name] = &huma.Schema{OneOf: []*huma.Schema{s.Properties[name], {Type: "null"}}}
	}
	return s
}
