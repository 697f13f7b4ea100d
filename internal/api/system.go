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
