package management

import (
	"context"
	"net/http"
	"runtime"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/catalog"
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
	Configuration []Setting
}

// Setting is a setting in force. It is exported because huma makes JSON schemas only of exported
// types.
type Setting struct {
	Name   string `json:"name" example:"gc.review_delay"`
	Value  string `json:"value" doc:"Secrets are hidden" example:"24h"`
	Source string `json:"source" doc:"Where the value comes from: a place in a file, an environment variable, or default" example:"default"`
}

// LooseKeys gives access to the registry's loose foreign keys.
type LooseKeys struct {
	Database *loosefk.Database // has the parent tables
	Worker   *loosefk.Worker   // needn't be running
}

// systemState is the answer about the system.
type systemState struct {
	Version   string            `json:"version"`
	GoVersion string            `json:"go_version"`
	Replica   string            `json:"replica" doc:"The process that answered"`
	StartedAt time.Time         `json:"started_at"`
	Uptime    int64             `json:"uptime_seconds"`
	Database  partState         `json:"database"`
	Storage   partState         `json:"storage"`
	Schema    migrationState    `json:"migrations"`
	Disks     []diskspace.Disk  `json:"disks" nullable:"false" doc:"The disks on which this replica keeps data; none if that is in S3 and another PostgreSQL"`
	Replicas  []catalog.Replica `json:"replicas" nullable:"false" doc:"Processes that use the database, at most 100"`
	Settings  []Setting         `json:"configuration" nullable:"false" doc:"The settings in force in this replica"`
}

// partState is the state of one service that the registry depends on.
type partState struct {
	Kind  string `json:"kind" example:"postgresql"`
	OK    bool   `json:"ok" doc:"Whether the service answers now"`
	More  string `json:"version,omitempty"`
	Error string `json:"error,omitempty" doc:"The service's error; the log has more"`
}

// migrationState is the state of the database schema.
type migrationState struct {
	Applied int    `json:"applied"`
	Pending int    `json:"pending"`
	Last    string `json:"last,omitempty" doc:"The last migration that was applied"`
}

// systemPatience limits how long each service may take to answer.
const systemPatience = 5 * time.Second

func (a *API) addSystem() {
	type output struct{ Body systemState }
	add(a, auth.Operate, huma.Operation{
		OperationID: "getSystem", Method: http.MethodGet, Path: "/system", Tags: []string{"system"},
		Summary:     "Get the health of the registry",
		Description: "The status is 200 even when something is wrong: ok says so. The answer is about the replica that answers the request.",
	}, func(ctx context.Context, _ *struct{}) (*output, error) {
		return &output{a.system(ctx)}, nil
	})
	a.addClock()
	a.addLooseKeys()
}

func (a *API) system(ctx context.Context) systemState {
	o := a.opt.System
	state := systemState{
		Version: o.Version, GoVersion: runtime.Version(), Replica: o.Replica, StartedAt: a.started.UTC(),
		Uptime:   int64(time.Since(a.started).Seconds()),
		Database: partState{Kind: "postgresql"}, Storage: partState{Kind: o.Storage},
		Disks: []diskspace.Disk{}, Replicas: []catalog.Replica{}, Settings: append([]Setting{}, o.Configuration...),
	}
	state.Storage.set(a, "storage", within(ctx, a.store.Check))
	if o.Database != nil {
		state.Database.set(a, "database", within(ctx, func(ctx context.Context) error {
			conn, err := o.Database.Pool.Acquire(ctx)
			if err != nil {
				return err
			}
			defer conn.Release()
			state.Database.More = conn.Conn().PgConn().ParameterStatus("server_version")
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

// set records in `p` whether a service answered. `err` is nil if it did, else the reason why it
// didn't. set writes the reason only to the log; `p`, which is sent to clients, gets a general
// text.
func (p *partState) set(a *API, what string, err error) {
	if p.OK = err == nil; err != nil {
		a.log.Warn("a service that the registry depends on doesn't answer", "part", what, "error", err)
		p.Error = "it doesn't answer, or answers with an error"
	}
}

// pendingRecords counts, for one parent table, the deleted records whose children in other
// tables still have to be deleted.
type pendingRecords struct {
	loosefk.Pending
	OldestSeconds float64 `json:"oldest_seconds"`
}

// looseRun is the answer about a run of the worker that deletes rows whose parent row was
// deleted (loose foreign keys).
type looseRun struct {
	runs.RunStatus
	Result *loosefk.Result `json:"result,omitempty" doc:"What the run did, when it has ended"`
}

// looseRequest is the body of a request that starts a run of the worker that deletes rows whose
// parent row was deleted (loose foreign keys). It has no members.
type looseRequest struct{}

var errNoLooseKeys = oci.Errorf(oci.Unavailable, "this process runs no loose foreign keys")

func (a *API) addLooseKeys() {
	type looseStatus struct {
		Pending []pendingRecords `json:"pending" nullable:"false" doc:"One entry for each partition and parent table"`
	}
	type statusOutput struct{ Body looseStatus }
	add(a, auth.Operate, huma.Operation{
		OperationID: "getLooseKeysStatus", Method: http.MethodGet, Path: "/loosefk/status", Tags: []string{"loosefk"},
		Summary: "Get what is still to be cleaned up after deleted repositories and namespaces",
	}, func(ctx context.Context, _ *struct{}) (*statusOutput, error) {
		keys := a.opt.LooseKeys
		if keys == nil {
			return nil, errNoLooseKeys
		}
		list, err := keys.Database.Pending(ctx)
		out := looseStatus{Pending: make([]pendingRecords, 0, len(list))}
		for _, p := range list {
			out.Pending = append(out.Pending, pendingRecords{p, p.OldestAge.Seconds()})
		}
		return &statusOutput{out}, err
	})
	addRuns(a, a.loose, runTexts{
		name: "LooseKeysRun", path: "/loosefk/run", tag: "loosefk",
		start:     "Clean up after deleted repositories and namespaces now",
		startMore: "Processes what is due until nothing is, or a limit is reached, beside the worker that does so all the time.",
		what:      "loose foreign keys",
		ask:       "Ask for a run of loose foreign keys", cancel: "Cancel a run of loose foreign keys",
	}, a.startLooseKeys, func(s runs.RunStatus, result *loosefk.Result) looseRun { return looseRun{s, result} })
}

func (a *API) startLooseKeys(ctx context.Context, _ looseRequest) (*runs.Run[*loosefk.Result], error) {
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
