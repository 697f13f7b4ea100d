package management

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/check"
	"github.com/purser-registry/purser/internal/clock"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/diskspace"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/runs"
	"github.com/purser-registry/purser/loosefk"
)

// System has the data about this process, and about the services that it depends on, which the
// API shows to operators.
type System struct {
	Version string
	Replica string // identifies this process among those that use its database
	Storage string // kind of blob store: filesystem or s3
	// Database is the database that the registry uses. When a client requests the system's
	// state, the API sends a ping to Database, and the answer says whether that succeeded.
	// Nil: the API sends no ping, and the answer says ok=false for the database.
	Database *db.DB
	// Migrations lists all migrations. Nil: they aren't reported.
	Migrations func(ctx context.Context) ([]db.MigrationStatus, error)
	// Disks returns what the registry's own disks have free. Nil: they aren't reported.
	Disks func(ctx context.Context) ([]diskspace.Disk, error)
	// Configuration has the settings in force, with secrets hidden.
	Configuration []api.Setting
}

// LooseKeys gives access to the registry's loose foreign keys.
type LooseKeys struct {
	Database *loosefk.Database // has the parent tables
	Worker   *loosefk.Worker   // needn't be running
}

// systemPatience limits how long each service may take to answer.
const systemPatience = 5 * time.Second

// addSystem binds the operations on the system.
func (a *API) addSystem() {
	serve(a, api.GetSystem, func(ctx context.Context, _ *struct{}) (*api.SystemState, error) { return a.system(ctx), nil })
	a.addClock()
	a.addLooseKeys()
}

func (a *API) system(ctx context.Context) *api.SystemState {
	o := a.opt.System
	state := &api.SystemState{
		Version: o.Version, GoVersion: runtime.Version(), Replica: o.Replica, StartedAt: a.started.UTC(),
		Uptime:   int64(time.Since(a.started).Seconds()),
		Database: api.PartState{Kind: "postgresql"}, Storage: api.PartState{Kind: o.Storage},
		Disks: []diskspace.Disk{}, Replicas: []catalog.Replica{}, Settings: append([]api.Setting{}, o.Configuration...),
	}
	a.setPart(&state.Storage, "storage", within(ctx, a.store.Check))
	if o.Database != nil {
		a.setPart(&state.Database, "database", within(ctx, func(ctx context.Context) error {
			conn, err := o.Database.Pool.Acquire(ctx)
			if err != nil {
				return err
			}
			defer conn.Release()
			state.Database.Version = conn.Conn().PgConn().ParameterStatus("server_version")
			return conn.Ping(ctx)
		}))
	}
	if state.Database.OK {
		err := within(ctx, func(ctx context.Context) error {
			list, err := a.catalog.Replicas(ctx)
			state.Replicas = append(state.Replicas, list...)
			return err
		})
		if err != nil {
			a.server.Warn(ctx, "listing replicas failed", err)
		}
	}
	if o.Disks != nil && state.Database.OK {
		err := within(ctx, func(ctx context.Context) error {
			list, err := o.Disks(ctx)
			state.Disks = append(state.Disks, list...)
			return err
		})
		if err != nil {
			a.server.Warn(ctx, "predicting the space of disks failed", err)
		}
	}
	if o.Migrations != nil && state.Database.OK {
		err := within(ctx, func(ctx context.Context) error {
			list, err := o.Migrations(ctx)
			var last time.Time
			for _, m := range list {
				if m.Applied.IsZero() {
					state.Schema.Pending++
					continue
				}
				if state.Schema.Applied++; m.Applied.After(last) {
					last, state.Schema.Last = m.Applied, m.Name
				}
			}
			return err
		})
		if err != nil {
			a.server.Warn(ctx, "reading the status of migrations failed", err)
		}
	}
	return state
}

func within(ctx context.Context, fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, systemPatience)
	defer cancel()
	return fn(ctx)
}

// setPart records in `p` whether a service answered. `err` is nil if it did, else the reason why it
// didn't. setPart writes the reason only to the log; `p`, which is sent to clients, gets a general
// text.
func (a *API) setPart(p *api.PartState, what string, err error) {
	if p.OK = err == nil; err != nil {
		a.log.Warn("a service that the registry depends on doesn't answer", "part", what, "error", err)
		p.Error = "it doesn't answer, or answers with an error"
	}
}

var errNoLooseKeys = oci.Errorf(oci.Unavailable, "this process runs no loose foreign keys")

// addLooseKeys binds the operations on loose foreign keys.
func (a *API) addLooseKeys() {
	serve(a, api.GetLooseStatus, func(ctx context.Context, _ *struct{}) (*api.LooseStatus, error) {
		keys := a.opt.LooseKeys
		if keys == nil {
			return nil, errNoLooseKeys
		}
		list, err := keys.Database.Pending(ctx)
		out := &api.LooseStatus{Pending: make([]api.PendingRecords, 0, len(list))}
		for _, p := range list {
			out.Pending = append(out.Pending, api.PendingRecords{Pending: p, OldestSeconds: p.OldestAge.Seconds()})
		}
		return out, err
	})
	serveRuns(a, api.LooseRuns, a.loose, a.startLooseKeys, func(s api.RunStatus, result *loosefk.Result) api.LooseRun {
		return api.LooseRun{RunStatus: s, Result: result}
	})
}

func (a *API) startLooseKeys(ctx context.Context, _ api.LooseRequest) (*runs.Run[*loosefk.Result], error) {
	keys := a.opt.LooseKeys
	if keys == nil {
		return nil, errNoLooseKeys
	}
	return a.loose.Start(nil, logRun(ctx, a, audit.RunLooseKeys, map[string]any{}, func(ctx context.Context, r *runs.Run[*loosefk.Result]) error {
		result, err := keys.Worker.RunOnce(ctx, keys.Database.Name)
		r.Update(func(report **loosefk.Result) { *report = &result })
		return err
	}))
}

// addClock binds the operations that show whether the clocks are fit to delete by, and confirm the
// database's clock.
func (a *API) addClock() {
	serve(a, api.GetClock, func(ctx context.Context, _ *struct{}) (*api.Clock, error) {
		state, err := a.clock(ctx)
		return &state, err
	})
	serve(a, api.ConfirmClock, func(ctx context.Context, _ *struct{}) (*api.ClockConfirmed, error) {
		if a.opt.Clocks == nil {
			state, err := a.clock(ctx)
			return &api.ClockConfirmed{Clock: state}, err
		}
		if err := a.logAct(ctx, audit.ChangeMaintenance, map[string]any{"confirm": "the database's clock"}); err != nil {
			return nil, err
		}
		doubt, err := a.opt.Clocks.Confirm(ctx)
		if err != nil {
			return nil, err
		}
		if _, err := a.opt.Catalog.MendPushTimes(ctx); err != nil {
			return nil, err
		}
		state, err := a.clock(ctx)
		return &api.ClockConfirmed{Confirmed: doubt, Clock: state}, err
	})
}

func (a *API) clock(ctx context.Context) (state api.Clock, err error) {
	if a.opt.Clocks == nil {
		return api.Clock{Deletes: true}, nil
	}
	offset, err := a.opt.Clocks.Offset(ctx)
	state.Offset = offset.Seconds()
	if d, ok := errors.AsType[*clock.Disagreement](err); ok {
		state.Problem, state.Doubt = d.Text, d.Doubt
		return state, nil
	}
	state.Deletes = err == nil
	return state, err
}

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
