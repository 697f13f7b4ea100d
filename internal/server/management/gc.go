package management

import (
	"context"
	"net/http"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/server/runs"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/gc/explain"
	"github.com/purser-registry/purser/internal/oci"
)

func (a *API) addGC() {
	a.addGCState()
	a.addGCRuns()
}

// gcReport is the report of a garbage collection run.
type gcReport struct {
	dryRun   bool
	progress gc.Progress
	findings []gc.DryRunDeletion // the first maxFindings
	found    int64
}

// gcRun is the answer about a garbage collection run.
type gcRun struct {
	runs.RunStatus
	DryRun        bool                `json:"dry_run" doc:"True: nothing is deleted"`
	Progress      gc.Progress         `json:"progress" doc:"What was done so far; in a dry run, what would have been"`
	FindingsTotal int64               `json:"findings_total" doc:"How much a dry run would delete"`
	Findings      []gc.DryRunDeletion `json:"findings,omitempty" nullable:"false" doc:"The first 1000 things that a dry run would delete"`
}

// gcRequest is the body of a request to start garbage collection.
type gcRequest struct {
	DryRun bool `json:"dry_run,omitempty" doc:"Find what would be deleted, and delete nothing"`
}

func (a *API) addGCRuns() {
	addRuns(a, a.gc, runTexts{
		name: "GCRun", path: "/gc/run", tag: "gc",
		start: "Collect garbage now",
		startMore: "Reviews what is due and deletes what nothing refers to, until nothing is due, beside the workers that " +
			"do so all the time.",
		what: "garbage collection",
		ask:  "Ask for a run of garbage collection", cancel: "Cancel a run of garbage collection",
	}, a.startGC, func(status runs.RunStatus, report gcReport) gcRun {
		return gcRun{
			RunStatus: status, DryRun: report.dryRun, Progress: report.progress,
			FindingsTotal: report.found, Findings: report.findings,
		}
	})
}

func (a *API) startGC(ctx context.Context, req gcRequest) (*runs.Run[gcReport], error) {
	detail := map[string]any{"dry_run": req.DryRun}
	return a.gc.Start(gcReport{dryRun: req.DryRun}, logRun(ctx, a, audit.RunGC, detail, func(ctx context.Context, r *runs.Run[gcReport]) error {
		o := a.opt.GC
		o.DryRun = req.DryRun
		o.Progress = func(p gc.Progress) { r.Update(func(report *gcReport) { report.progress = p }) }
		o.WouldDelete = func(f gc.DryRunDeletion) {
			r.Update(func(report *gcReport) {
				if report.found++; report.found <= maxFindings {
					report.findings = append(report.findings, f)
				}
			})
		}
		p, err := gc.Collect(ctx, o)
		o.Progress(p)
		return err
	}))
}

// explainedBlob explains why a blob is kept, or when it will be deleted. It does so twice: in
// members for programs, and in sentences for people.
type explainedBlob struct {
	explain.BlobExplanation
	Explanation []string `json:"explanation" nullable:"false" doc:"The explanation in sentences"`
}

// TransformSchema marks the member "review" as one that may be null.
func (explainedBlob) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return nullable(s, "review")
}

// explainedManifest explains why a manifest is kept, or when it will be deleted. It does so
// twice: in members for programs, and in sentences for people.
type explainedManifest struct {
	explain.ManifestExplanation
	Explanation []string `json:"explanation" nullable:"false" doc:"The explanation in sentences"`
}

// TransformSchema marks members that may be null.
func (explainedManifest) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return nullable(s, "review", "subject")
}

// addGCState adds the operations that show the state of garbage collection, explain why a blob
// or manifest is kept, and retry failed reviews.
func (a *API) addGCState() {
	type status struct{ Body gc.GCStatus }
	add(a, auth.Operate, huma.Operation{
		OperationID: "getGCStatus", Method: http.MethodGet, Path: "/gc/status", Tags: []string{"gc"},
		Summary: "Get the status of garbage collection",
	}, func(ctx context.Context, _ *struct{}) (*status, error) {
		s, err := a.opt.GC.Collector.GCStatus(ctx)
		return &status{s}, err
	})

	type blobInput struct {
		Digest oci.Digest `path:"digest" doc:"Digest of the blob"`
	}
	type blobOutput struct{ Body explainedBlob }
	add(a, auth.Operate, huma.Operation{
		OperationID: "explainBlob", Method: http.MethodGet, Path: "/gc/explain/{digest}", Tags: []string{"gc"},
		Summary: "Explain why a blob is kept, or when it will be deleted", Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, in *blobInput) (*blobOutput, error) {
		e, err := explain.Blob(ctx, a.opt.GC.Collector, in.Digest)
		if err != nil {
			return nil, err
		}
		return &blobOutput{explainedBlob{e, e.Sentences()}}, nil
	})

	type activityInput struct {
		Days int `query:"days" minimum:"1" maximum:"31" default:"30" doc:"How many days, of which today is the last"`
	}
	type activity struct {
		Days []gc.DayReclaimed `json:"days" nullable:"false" doc:"The oldest first. Days on which nothing was deleted are left out"`
	}
	type activityOutput struct{ Body activity }
	add(a, auth.Operate, huma.Operation{
		OperationID: "getGCActivity", Method: http.MethodGet, Path: "/gc/activity", Tags: []string{"gc"},
		Summary: "Get what garbage collection has deleted, by day", Description: "Days are UTC. The registry remembers 31 of them.",
	}, func(ctx context.Context, in *activityInput) (*activityOutput, error) {
		days, err := a.opt.GC.Collector.ReclaimedByDay(ctx, in.Days)
		return &activityOutput{activity{days}}, err
	})

	type manifestInput struct {
		Repository string     `path:"repository" doc:"Name of the repository" example:"library/alpine"`
		Digest     oci.Digest `path:"digest" doc:"Digest of the manifest"`
	}
	type manifestOutput struct{ Body explainedManifest }
	// The explanation contains the error text of a failed review, which may disclose internals
	// of the database. Therefore the operation needs auth.Administer.
	add(a, auth.Administer, huma.Operation{
		OperationID: "explainManifest", Method: http.MethodGet, Path: "/repository/{repository}/manifest/{digest}/explain",
		Tags: []string{"gc", "manifest"}, Summary: "Explain why a manifest is kept, or when it will be deleted",
		Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, in *manifestInput) (*manifestOutput, error) {
		e, err := explain.Manifest(ctx, a.opt.GC.Collector, in.Repository, in.Digest)
		if err != nil {
			return nil, err
		}
		return &manifestOutput{explainedManifest{e, e.Sentences()}}, nil
	})

	type retryInput struct{ Body *api.RetryRequest }
	type retryOutput struct{ Body api.Retried }
	add(a, auth.Operate, huma.Operation{
		OperationID: "retryGC", Method: http.MethodPost, Path: "/gc/retry", Tags: []string{"gc"},
		Summary:     "Try reviews again that failed too often",
		Description: "A review that failed too often is not tried again. This makes all such reviews due again.",
		Errors:      []int{http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
	}, func(ctx context.Context, in *retryInput) (*retryOutput, error) {
		out, kind := new(retryOutput), gc.ReviewKind("")
		if in.Body != nil {
			kind = in.Body.Kind
		}
		var err error
		if kind != gc.ReviewOfBlobs {
			out.Body.Manifests, err = a.opt.GC.Collector.RetryFailed(ctx, gc.ReviewOfManifests)
		}
		if err == nil && kind != gc.ReviewOfManifests {
			out.Body.Blobs, err = a.opt.GC.Collector.RetryFailed(ctx, gc.ReviewOfBlobs)
		}
		return out, err
	})
}
