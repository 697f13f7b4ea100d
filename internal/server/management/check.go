package management

import (
	"context"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/check"
	"github.com/purser-registry/purser/internal/server/runs"
)

// checkReport is the state of a run that compares the database with the blob store.
type checkReport struct {
	request  checkRequest
	progress check.Progress
	findings []check.Finding // the first maxFindings
	found    int64
	summary  *check.CheckReport // nil while it runs
}

// checkRequest is the body of a request to start a check.
type checkRequest struct {
	Deep   bool `json:"deep,omitempty" doc:"Read and hash every blob"`
	Repair bool `json:"repair,omitempty" doc:"Repair: mark blobs as lost, delete objects that nothing owns"`
	Force  bool `json:"force,omitempty" doc:"Repair even if more than half of what was compared is wrong"`
}

// checkProgress says how far a check has come.
type checkProgress struct {
	Share       float64 `json:"share" doc:"Share of the comparison that is done, from 0 to 1"`
	Objects     int64   `json:"objects"`
	Blobs       int64   `json:"blobs"`
	Manifests   int64   `json:"manifests" doc:"Manifests whose declared sizes were compared; this begins when the share is 1"`
	HashedBytes int64   `json:"hashed_bytes"`
}

// checkRun is the answer about a check.
type checkRun struct {
	runs.RunStatus
	Deep          bool               `json:"deep"`
	Repair        bool               `json:"repair"`
	Progress      checkProgress      `json:"progress"`
	FindingsTotal int64              `json:"findings_total"`
	Findings      []check.Finding    `json:"findings,omitempty" nullable:"false" doc:"The first 1000"`
	Summary       *check.CheckReport `json:"summary,omitempty" doc:"Missing while it runs"`
}

func (a *API) addChecks() {
	addRuns(a, a.checks, runTexts{
		name: "Check", path: "/check", tag: "check",
		start:     "Compare the database with the blob store",
		startMore: "Finds blobs without their objects, and objects that nothing owns, while the registry is used.",
		what:      "checks",
		ask:       "Ask for a check", cancel: "Cancel a check",
	}, a.startCheck, func(status runs.RunStatus, report checkReport) checkRun {
		p := report.progress
		return checkRun{
			RunStatus: status, Deep: report.request.Deep, Repair: report.request.Repair,
			Progress:      checkProgress{Share: p.Share, Objects: p.Objects, Blobs: p.Blobs, Manifests: p.Manifests, HashedBytes: p.HashedBytes},
			FindingsTotal: report.found, Findings: report.findings, Summary: report.summary,
		}
	})
}

func (a *API) startCheck(ctx context.Context, req checkRequest) (*runs.Run[checkReport], error) {
	detail := map[string]any{"deep": req.Deep, "repair": req.Repair, "force": req.Force}
	return a.checks.Start(checkReport{request: req}, logRun(ctx, a, audit.RunCheck, detail, func(ctx context.Context, r *runs.Run[checkReport]) error {
		summary, err := check.Run(ctx, check.Options{
			Catalog: a.catalog, Store: a.store, Deep: req.Deep, Repair: req.Repair, Force: req.Force,
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
