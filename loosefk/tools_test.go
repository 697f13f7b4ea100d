package loosefk

import (
	"context"
	"testing"
)

// Tools contains functions of the packages doctor and generate for the tests of this
// package, which can't import them, because they import this package.
// tools_external_test.go sets the fields.
var Tools struct {
	// Examine returns the texts of the doctor's findings.
	Examine func(ctx context.Context, w *Worker) ([]string, error)
	// Repair runs an audit with the option Repair. For each definition it returns the
	// fields of doctor.Orphans as a text: "Child Pending/PendingParents Rows/Parents
	// Examples Repaired".
	Repair func(ctx context.Context, w *Worker) ([]string, error)
	// ForeignKeys lists the foreign keys.
	ForeignKeys func(ctx context.Context, dbs Databases, defs Definitions) error
	// ConvertAndRevert converts the foreign keys of the table "others", runs the
	// migrations, and reverts the keys.
	ConvertAndRevert func(t *testing.T, dbs Databases) error
}
