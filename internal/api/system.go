package api

import (
	"net/http"
	"time"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/diskspace"
	"github.com/purser-registry/purser/loosefk"
)

// SystemState is the answer about the system.
type SystemState struct {
	Version   string            `json:"version"`
	GoVersion string            `json:"go_version"`
	Replica   string            `json:"replica" doc:"The process that answered"`
	StartedAt time.Time         `json:"started_at"`
	Uptime    int64             `json:"uptime_seconds"`
	Database  PartState         `json:"database"`
	Storage   PartState         `json:"storage"`
	Schema    MigrationState    `json:"migrations"`
	Disks     []diskspace.Disk  `json:"disks" nullable:"false" doc:"The disks on which this replica keeps data; none if that is in S3 and another PostgreSQL"`
	Replicas  []catalog.Replica `json:"replicas" nullable:"false" doc:"Processes that use the database, at most 100"`
	Settings  []Setting         `json:"configuration" nullable:"false" doc:"The settings in force in this replica"`
}

// PartState is the state of one service that the registry depends on.
type PartState struct {
	Kind    string `json:"kind" example:"postgresql"`
	OK      bool   `json:"ok" doc:"Whether the service answers now"`
	Version string `json:"version,omitempty"`
	Error   string `json:"error,omitempty" doc:"The service's error; the log has more"`
}

// MigrationState is the state of the database schema.
type MigrationState struct {
	Applied int    `json:"applied"`
	Pending int    `json:"pending"`
	Last    string `json:"last,omitempty" doc:"The last migration that was applied"`
}

// Setting is a setting in force.
type Setting struct {
	Name   string `json:"name" example:"gc.review_delay"`
	Value  string `json:"value" doc:"Secrets are hidden" example:"24h"`
	Source string `json:"source" doc:"Where the value comes from: a place in a file, an environment variable, or default" example:"default"`
}

// PendingRecords counts, for one parent table, the deleted records whose children in other
// tables still have to be deleted.
type PendingRecords struct {
	loosefk.Pending
	OldestSeconds float64 `json:"oldest_seconds"`
}

// LooseStatus is what loose foreign keys have still to do.
type LooseStatus struct {
	Pending []PendingRecords `json:"pending" nullable:"false" doc:"One entry for each partition and parent table"`
}

// The operations on the system.
var (
	GetSystem = Operation[struct{}, SystemState]{
		ID: "getSystem", Method: http.MethodGet, Path: "/system", Tag: "system", Access: auth.Operate,
		Summary:     "Get the health of the registry",
		Description: "The status is 200 even when something is wrong: ok says so. The answer is about the replica that answers the request.",
	}
	GetLooseStatus = Operation[struct{}, LooseStatus]{
		ID: "getLooseKeysStatus", Method: http.MethodGet, Path: "/loosefk/status", Tag: "loosefk", Access: auth.Operate,
		Summary: "Get what is still to be cleaned up after deleted repositories and namespaces",
	}
)

// Clock says whether the clocks are fit to delete by.
type Clock struct {
	Deletes bool    `json:"deletes" doc:"Whether what is old may be deleted now"`
	Problem string  `json:"problem,omitempty" doc:"Why nothing is deleted for its age" example:"the database's clock is 60d ahead of the clock of this process"`
	Doubt   bool    `json:"doubt" doc:"Whether the problem lasts until somebody confirms that the database's clock is right"`
	Offset  float64 `json:"offset_seconds" doc:"How far the database's clock is ahead of this process's clock"`
}

// ClockConfirmed is the answer to a confirmation of the database's clock.
type ClockConfirmed struct {
	Confirmed string `json:"confirmed" doc:"What was in doubt; empty: nothing was"`
	Clock
}

// The operations on the clocks.
var (
	GetClock = Operation[struct{}, Clock]{
		ID: "getClock", Method: http.MethodGet, Path: "/clock", Tag: "system", Access: auth.Operate,
		Summary:     "Get whether the clocks are fit to delete by",
		Description: "While clocks disagree, or the database's clock is in doubt, nothing is deleted for its age. The answer is about the replica that answers the request.",
	}
	ConfirmClock = Operation[struct{}, ClockConfirmed]{
		ID: "confirmClock", Method: http.MethodPost, Path: "/clock/confirm", Tag: "system", Access: auth.Operate,
		Summary:     "Say that the database's clock is right",
		Description: "Ends the doubt about the database's clock, so that what is old by it is deleted again. It doesn't help where two clocks differ: one of them must be set.",
	}
)
