package management

import (
	"context"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/server/runs"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/gc/explain"
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

// addGCRuns binds the operations on runs of garbage collection.
func (a *API) addGCRuns() {
	serveRuns(a, api.GCRuns, a.gc, a.startGC, func(status api.RunStatus, report gcReport) api.GCRun {
		return api.GCRun{
			RunStatus: status, DryRun: report.dryRun, Progress: report.progress,
			FindingsTotal: report.found, Findings: report.findings,
		}
	})
}

func (a *API) startGC(ctx context.Context, req api.GCRequest) (*runs.Run[gcReport], error) {
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

// addGCState binds the operations that show the state of garbage collection, explain why a blob
// or manifest is kept, and retry failed reviews.
func (a *API) addGCState() {
	collector := a.opt.GC.Collector
	serve(a, api.GetGCStatus, func(ctx context.Context, _ *struct{}) (*gc.GCStatus, error) {
		s, err := collector.GCStatus(ctx)
		return &s, err
	})
	serve(a, api.ExplainBlob, func(ctx context.Context, in *api.BlobItem) (*api.ExplainedBlob, error) {
		e, err := explain.Blob(ctx, collector, in.Digest)
		if err != nil {
			return nil, err
		}
		return &api.ExplainedBlob{BlobExplanation: e, Explanation: e.Sentences()}, nil
	})
	serve(a, api.ExplainManifest, func(ctx context.Context, in *api.ManifestItem) (*api.ExplainedManifest, error) {
		e, err := explain.Manifest(ctx, collector, in.Repository, in.Digest)
		if err != nil {
			return nil, err
		}
		return &api.ExplainedManifest{ManifestExplanation: e, Explanation: e.Sentences()}, nil
	})
	serve(a, api.GetGCActivity, func(ctx context.Context, in *api.ActivityQuery) (*api.Activity, error) {
		days, err := collector.ReclaimedByDay(ctx, in.Days)
		return &api.Activity{Days: days}, err
	})
	serve(a, api.RetryGC, func(ctx context.Context, in *api.RetryInput) (*api.Retried, error) {
		out, kind := new(api.Retried), gc.ReviewKind("")
		if in.Body != nil {
			kind = in.Body.Kind
		}
		var err error
		if kind != gc.ReviewOfBlobs {
			out.Manifests, err = collector.RetryFailed(ctx, gc.ReviewOfManifests)
		}
		if err == nil && kind != gc.ReviewOfManifests {
			out.Blobs, err = collector.RetryFailed(ctx, gc.ReviewOfBlobs)
		}
		return out, err
	})
}
