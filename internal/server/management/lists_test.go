package management_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// boundedLists names what bounds the lists of answers that don't come in pages. A key is an
// operation's id, or a schema and its member for a list within an item of another list.
var boundedLists = map[string]string{}

// schemas reads the schemas of the OpenAPI document.
type schemas struct {
	all  map[string]any
	used map[string]bool // keys of boundedLists
}

// resolve returns a schema with the name that it has in the document, "" for one without a name.
func (s *schemas) resolve(schema map[string]any) (string, map[string]any) {
	ref, _ := schema["$ref"].(string)
	if ref == "" {
		return "", schema
	}
	name := ref[strings.LastIndex(ref, "/")+1:]
	named, _ := s.all[name].(map[string]any)
	return name, named
}

// lists returns where a schema has lists: arrays, and objects with any number of members. `key`
// says where the schema itself is. The lists of `in`, the schemas on the way, aren't followed again.
func (s *schemas) lists(schema map[string]any, key string, in []string) (found []string) {
	name, schema := s.resolve(schema)
	if name != "" {
		if slices.Contains(in, name) {
			return nil
		}
		key, in = name, append(slices.Clone(in), name)
	}
	add := func(below map[string]any, key string) { found = append(found, s.lists(below, key, in)...) }
	if items, ok := schema["items"].(map[string]any); ok {
		if schema["maxItems"] == nil {
			found = append(found, key)
		}
		add(items, key)
	}
	if more, ok := schema["additionalProperties"].(map[string]any); ok {
		found = append(found, key)
		add(more, key)
	}
	for _, kind := range []string{"oneOf", "anyOf", "allOf"} {
		choices, _ := schema[kind].([]any)
		for _, choice := range choices {
			add(choice.(map[string]any), key)
		}
	}
	members, _ := schema["properties"].(map[string]any)
	for _, member := range slices.Sorted(maps.Keys(members)) {
		add(members[member].(map[string]any), key+"."+member)
	}
	return found
}

// operationOf is an operation of the document.
type operationOf struct {
	id, method, path string
	parameters       []string
	answer           map[string]any // the schema of the answer, nil: it isn't JSON, or there is none
}

func operationsOf(t *testing.T, r *registry) (list []operationOf, s *schemas) {
	t.Helper()
	var document struct {
		Components struct{ Schemas map[string]any }
		Paths      map[string]map[string]struct {
			OperationID string
			Parameters  []struct{ Name, In string }
			Responses   map[string]struct {
				Content map[string]struct{ Schema map[string]any }
			}
		}
	}
	r.Manage(t, "GET", "/openapi.json", "").Into(t, 200, &document)
	for path, methods := range document.Paths {
		for method, op := range methods {
			o := operationOf{id: op.OperationID, method: strings.ToUpper(method), path: path}
			for _, p := range op.Parameters {
				if p.In == "query" {
					o.parameters = append(o.parameters, p.Name)
				}
			}
			for status, response := range op.Responses {
				if strings.HasPrefix(status, "2") && response.Content["application/json"].Schema != nil {
					o.answer = response.Content["application/json"].Schema
				}
			}
			list = append(list, o)
		}
	}
	slices.SortFunc(list, func(a, b operationOf) int { return strings.Compare(a.id, b.id) })
	return list, &schemas{document.Components.Schemas, map[string]bool{}}
}

// isPaged says whether an operation's answers are pages: there are parameters for the size of a
// page and for where it begins, and the answer says where the next one does.
func (s *schemas) isPaged(o operationOf) bool {
	_, answer := s.resolve(o.answer)
	members, _ := answer["properties"].(map[string]any)
	for parameter, member := range map[string]string{"next_page": "next_page", "cursor": "next"} {
		if slices.Contains(o.parameters, "limit") && slices.Contains(o.parameters, parameter) && members[member] != nil {
			return true
		}
	}
	return false
}

// TestListsAreBounded: every list in an answer comes in pages, or is bounded by something that
// boundedLists names.
func TestListsAreBounded(t *testing.T) {
	t.Parallel()
	r := setup(t)
	operations, s := operationsOf(t, r)
	paged := 0
	for _, o := range operations {
		if o.answer == nil {
			continue
		}
		name, answer := s.resolve(o.answer)
		isPaged := s.isPaged(o)
		for _, key := range s.lists(o.answer, o.id, nil) {
			member, own := strings.CutPrefix(key, name+".")
			if own && !strings.Contains(member, ".") {
				if isPaged {
					paged++
					continue
				}
				if _, ok := boundedLists[o.id+"."+member]; ok {
					key = o.id + "." + member
				}
			}
			if s.used[key] = true; boundedLists[key] == "" {
				t.Errorf("%s %s (%s) has a list without pages or a bound: %s", o.method, o.path, o.id, key)
			}
		}
		_ = answer
	}
	for key := range boundedLists {
		if !s.used[key] {
			t.Errorf("there is no list %s", key)
		}
	}
	if paged < 20 || http.MethodGet == "" {
		t.Errorf("only %d lists come in pages", paged)
	}
	_ = json.Valid
}
