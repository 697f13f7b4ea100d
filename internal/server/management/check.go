package management

import (
	"context"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/check"
	"github.com/purser-registry/purser/internal/server/runs"
)

// checkReport is the state of a run that compares the database with the blob store.
type checkReport struct {
	request  api.CheckRequest
	progress check.Progress
	findings []check.Finding // the first maxFindings
	found    int64
	summary  *check.CheckReport // nil while it runs
}

// addChecks binds the operations on checks of the store.
func (a *API) addChecks() {
	serveRuns(a, api.CheckRuns, a.checks, a.startCheck, func(status api.RunStatus, report checkReport) api.CheckRun {
		p := report.progress
		return api.CheckRun{
			RunStatus: status, Deep: report.request.Deep, Repair: report.request.Repair,
			Progress:      api.CheckProgress{Share: p.Share, Objects: p.Objects, Blobs: p.Blobs, Manifests: p.Manifests, HashedBytes: p.HashedBytes},
			FindingsTotal: report.found, Findings: report.findings, Summary: report.summary,
		}
	})
}

func (a *API) startCheck(ctx context.Context, req api.CheckRequest) (*runs.Run[checkReport], error) {
	detail := map[string]any{"deep": req.Deep, "repair": req.Repair, "force": req.Force}
	return a.checks.Start(checkReport{request: req}, logRun(ctx, a, audit.RunCheck, detail, func(ctx context.Context, r *runs.Run[checkReport]) error {
		summary, err := check.Run(ctx, check.Options{
			Catalog: a.catalog, Lists: a.opt.Checks, Store: a.store, Deep: req.Deep, Repair: req.Repair, Force: req.Force,
			KeepDoomed: a.opt.GC.Collector.KeepDoomed(),
			Progress:   func(p check.Progress) { r.Update(func(report *checkReport) { report.progress = p }) },
			Found: func(f check.Finding) {
				r.Update(func(report *checkReport) {
					if report.found++; report.found <= maxFindings {
						report.findings = append(report.findings, f)
					}
				})
			},
		})
		r.Update(func(report *checkReport) { report.summary = &summary })
		return err
	}))
}
