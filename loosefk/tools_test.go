package loosefk

import (
	"context"
	"testing"
)

// Tools has what the tests of this package use of the packages doctor and generate, which
// import it. tools_external_test.go sets the fields.
var Tools struct {
	// Examine returns the texts of the doctor's findings.
	Examine func(ctx context.Context, w *Worker) ([]string, error)
	// Repair audits with repair. It returns "child pending/pending parents orphans/orphan
	// parents examples repaired" for each definition.
	Repair func(ctx context.Context, w *Worker) ([]string, error)
	// ForeignKeys lists the foreign keys.
	ForeignKeys func(ctx context.Context, dbs Databases, defs Definitions) error
	// ConvertAndRevert converts the foreign keys of the table "others", runs the
	// migrations, and reverts the keys.
	ConvertAndRevert func(t *testing.T, dbs Databases) error
}
