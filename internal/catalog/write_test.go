package catalog

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// TestWrite checks after which failures a write runs again.
func TestWrite(t *testing.T) {
	t.Parallel()
	c := New(Options{DB: dbtest.New(t), Replica: uuid.New()})
	ctx := t.Context()
	if err := c.CreateRepository(ctx, "known"); err != nil {
		t.Fatal(err)
	}
	failure, refused := errors.New("broken"), oci.Errorf(oci.Denied, "no")
	deadlock := &pgconn.PgError{Code: db.CodeDeadlockDetected}
	tests := map[string]struct {
		path    string
		create  bool
		check   error
		results []error // results of the attempts, in order; the last one is repeated
		answer  map[refusal]error
		want    error
		runs    int
	}{
		"success":                       {path: "known", results: []error{nil}, runs: 1},
		"a failure":                     {path: "known", results: []error{failure}, want: failure, runs: 1},
		"a client's error":              {path: "known", results: []error{refused}, want: refused, runs: 1},
		"lost races":                    {path: "known", results: []error{deadlock, blobGone, tagsChanged, nil}, runs: 4},
		"races lost without end":        {path: "known", results: []error{deadlock}, want: deadlock, runs: writeAttempts},
		"rules changed":                 {path: "known", results: []error{rulesChanged, nil}, runs: 2},
		"rules that change without end": {path: "known", results: []error{rulesChanged}, want: rulesChanged, runs: writeAttempts},
		"deleted meanwhile":             {path: "known", results: []error{repositoryGone, nil}, runs: 2},
		"a refusal":                     {path: "known", results: []error{manifestGone}, want: manifestGone, runs: 1},
		"a refusal with an answer":      {path: "known", results: []error{manifestGone}, answer: map[refusal]error{manifestGone: refused}, want: refused, runs: 1},
		"a refusal whose reason passes": {path: "known", results: []error{blobsMissing, childMissing, nil}, answer: map[refusal]error{}, runs: 3},
		"no repository":                 {path: "none", results: []error{nil}, want: &oci.Error{Code: oci.NameUnknown}, runs: 0},
		"a repository to be made":       {path: "made", create: true, results: []error{nil}, runs: 1},
		"one that mustn't be made":      {path: "unmade", create: true, check: refused, want: refused, runs: 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			runs := 0
			w := write{path: test.path, doing: "testing", create: test.create, drop: c.cache.dropAll,
				checkBeforeCreate: func(context.Context) error { return test.check },
				run: func(context.Context, repository) error {
					runs++
					return test.results[min(runs, len(test.results))-1]
				},
			}
			if test.answer != nil {
				w.answer = func(_ context.Context, _ repository, why refusal) error { return test.answer[why] }
			}
			err := c.write(ctx, w)
			if runs != test.runs {
				t.Errorf("%d attempts, want %d", runs, test.runs)
			}
			if code := oci.CodeOf(test.want); !errors.Is(err, test.want) && (code == "" || oci.CodeOf(err) != code) {
				t.Errorf("error %v, want %v", err, test.want)
			}
		})
	}
	if known, err := c.HasRepository(ctx, "unmade"); err != nil || known {
		t.Errorf("a put that is refused has made a repository: %v", err)
	}
}
