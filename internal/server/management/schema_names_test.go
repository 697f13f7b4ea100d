package management_test

import (
	"encoding/json"
	"testing"
)

// TestPublishedSchemaNames: some schemas have other names in the OpenAPI document than their Go
// types. The document must use its own names, since clients are generated from it.
func TestPublishedSchemaNames(t *testing.T) {
	t.Parallel()
	r := setup(t)
	var d struct {
		Components struct {
			Schemas map[string]json.RawMessage `json:"schemas"`
		} `json:"components"`
	}
	r.Manage(t, "GET", "/openapi.json", "").Into(t, 200, &d)
	for name, want := range map[string]bool{
		"Reviewed": true, "SetAsideReview": true, "DoomedStatus": true,
		"DryRunDeletion": false, "FailedReview": false, "PendingStatus": false,
	} {
		if _, got := d.Components.Schemas[name]; got != want {
			t.Errorf("the document has schema %s: %v, want %v", name, got, want)
		}
	}
}
