package management_test

import (
	"encoding/json"
	"testing"
)

// TestPublishedSchemaNames: the Go types of some schemas were renamed. The OpenAPI document
// must keep the schemas' old names, since clients were generated from it.
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
