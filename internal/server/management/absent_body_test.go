package management_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

// bodySchema is as much of a JSON schema as says which members an object needs.
type bodySchema struct {
	Ref      string `json:"$ref"`
	Type     any
	Required []string
	OneOf    []any
	AnyOf    []any
}

// TestBodiesMayBeLeftOut: docs/api.md says that a client may leave out a body whose members all have
// defaults. So says the OpenAPI document of each such operation, and each answers a request
// without a body like one with the body {}, whether or not it has a Content-Type. Every other body is
// required, but for those whose absence means something else.
func TestBodiesMayBeLeftOut(t *testing.T) {
	t.Parallel()
	r := setup(t)
	var d struct {
		Paths map[string]map[string]struct {
			RequestBody *struct {
				Required bool
				Content  map[string]struct{ Schema bodySchema }
			}
		}
		Components struct{ Schemas map[string]bodySchema }
	}
	r.Manage(t, "GET", "/openapi.json", "").Into(t, 200, &d)
	left := 0
	for path, operations := range d.Paths {
		for method, o := range operations {
			if o.RequestBody == nil || len(o.RequestBody.Content) > 1 { // reports of holds, which are streams
				continue
			}
			method = strings.ToUpper(method)
			s := o.RequestBody.Content["application/json"].Schema
			if s.Ref != "" {
				s = d.Components.Schemas[s.Ref[strings.LastIndexByte(s.Ref, '/')+1:]]
			}
			optional := s.Type == "object" && len(s.Required) == 0 && len(s.OneOf) == 0 && len(s.AnyOf) == 0
			meansElse := strings.HasSuffix(path, "/preview") || strings.HasSuffix(path, "/forecast")
			if o.RequestBody.Required == (optional || meansElse) {
				t.Errorf("%s %s: the document says required: %v; optional %v", method, path, o.RequestBody.Required, optional)
			}
			if !optional || meansElse {
				continue
			}
			left++
			at := "/api/v1" + strings.NewReplacer("{repository}", "acme/app", "{", "", "}", "").Replace(strings.TrimPrefix(path, "/api/v1"))
			with, err := r.Try(t.Context(), method, at, strings.NewReader("{}"), "Content-Type", "application/json")
			if err != nil {
				t.Fatal(err)
			}
			for _, headers := range [][]string{nil, {"Content-Type", "application/json"}} {
				without, err := r.Try(t.Context(), method, at, http.NoBody, headers...)
				if err != nil {
					t.Fatal(err)
				}
				if strings.Contains(string(without.Content), "body is required") || !slices.Contains([]int{with.StatusCode, http.StatusConflict, http.StatusNotFound}, without.StatusCode) {
					t.Errorf("%s %s: without a body (%q) %d %s, with {} %d %s", method, at, headers, without.StatusCode, without.Content, with.StatusCode, with.Content)
				}
			}
		}
	}
	if left < 16 {
		t.Errorf("only %d operations have bodies that may be left out", left)
	}
}
