package api

import (
	"net/http"
	"time"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/check"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/loosefk"
)

// RunState is the state of a run that an operator has started.
type RunState string

// States of a run.
const (
	RunRunning   RunState = "running"
	RunSucceeded RunState = "succeeded"
	RunFailed    RunState = "failed"
	RunCancelled RunState = "cancelled"
)

// RunStatus has the members that answers about runs of all kinds share.
type RunStatus struct {
	ID        string     `json:"id" doc:"Identifier of the run"`
	State     RunState   `json:"state" enum:"running,succeeded,failed,cancelled"`
	StartedAt time.Time  `json:"started_at"`
	EndedAt   *time.Time `json:"ended_at" doc:"Null while it runs"`
	Error     string     `json:"error,omitempty" doc:"Why it failed"`
}

// Running says that the run isn't over.
func (s RunStatus) Running() bool { return s.State == RunRunning }

// RunList is the last runs of one kind.
type RunList struct {
	Runs []RunStatus `json:"runs" nullable:"false" doc:"Newest first"`
}

// GCRequest is the body of a request to start garbage collection.
type GCRequest struct {
	DryRun bool `json:"dry_run,omitempty" doc:"Find what would be deleted, and delete nothing"`
}

// GCRun is the answer about a run of garbage collection.
type GCRun struct {
	RunStatus
	DryRun        bool                `json:"dry_run" doc:"True: nothing is deleted"`
	Progress      gc.Progress         `json:"progress" doc:"What was done so far; in a dry run, what would have been"`
	FindingsTotal int64               `json:"findings_total" doc:"How much a dry run would delete"`
	Findings      []gc.DryRunDeletion `json:"findings,omitempty" nullable:"false" doc:"The first 1000 things that a dry run would delete"`
}

// CheckRequest is the body of a request to start a check.
type CheckRequest struct {
	Deep   bool `json:"deep,omitempty" doc:"Read and hash every blob"`
	Repair bool `json:"repair,omitempty" doc:"Repair: mark blobs as lost, delete objects that nothing owns"`
	Force  bool `json:"force,omitempty" doc:"Repair even if more than half of what was compared is wrong"`
}

// CheckProgress says how far a check has come.
type CheckProgress struct {
	Share       float64 `json:"share" doc:"Share of the comparison that is done, from 0 to 1"`
	Objects     int64   `json:"objects"`
	Blobs       int64   `json:"blobs"`
	Manifests   int64   `json:"manifests" doc:"Manifests whose declared sizes were compared; this begins when the share is 1"`
	HashedBytes int64   `json:"hashed_bytes"`
}

// CheckRun is the answer about a check.
type CheckRun struct {
	RunStatus
	Deep          bool               `json:"deep"`
	Repair        bool               `json:"repair"`
	Progress      CheckProgress      `json:"progress"`
	FindingsTotal int64              `json:"findings_total"`
	Findings      []check.Finding    `json:"findings,omitempty" nullable:"false" doc:"The first 1000"`
	Summary       *check.CheckReport `json:"summary,omitempty" doc:"Missing while it runs"`
}

// LooseRequest is the body of a request that starts a run of the worker that deletes rows whose
// parent row was deleted (loose foreign keys). It has no members.
type LooseRequest struct{}

// LooseRun is the answer about such a run.
type LooseRun struct {
	RunStatus
	Result *loosefk.Result `json:"result,omitempty" doc:"What the run did, when it has ended"`
}

// Inputs of the operations on runs.
type (
	RunStart[B any] struct{ Body *B }
	RunItem         struct {
		ID string `path:"id" doc:"Identifier of the run"`
	}
)

// RunOperations are the operations that start, show and cancel runs of one kind. B is the body,
// which may be missing, of the request that starts a run, and V is the answer about one.
type RunOperations[B, V any] struct {
	Start  Operation[RunStart[B], V]
	List   Operation[struct{}, RunList]
	Get    Operation[RunItem, V]
	Cancel Operation[RunItem, V]
}

// runTexts has the names and descriptions of the operations on one kind of run.
type runTexts struct {
	name, path, tag               string
	start, startMore, ask, cancel string
	what                          string // for the list
}

func runOperations[B, V any](text runTexts) RunOperations[B, V] {
	return RunOperations[B, V]{
		Start: Operation[RunStart[B], V]{
			ID: "start" + text.name, Method: http.MethodPost, Path: text.path, Tag: text.tag, Access: auth.Operate,
			Summary: text.start, Description: text.startMore + " It runs in the replica that answers, one at a time: " +
				"409 names the run that is under way there.",
			Status: http.StatusAccepted, Errors: []int{http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
		},
		List: Operation[struct{}, RunList]{
			ID: "list" + text.name + "s", Method: http.MethodGet, Path: text.path, Tag: text.tag, Access: auth.Operate,
			Summary: "List the runs of " + text.what, Description: "The last 10 that were started in the replica that answers.",
		},
		Get: Operation[RunItem, V]{
			ID: "get" + text.name, Method: http.MethodGet, Path: text.path + "/{id}", Tag: text.tag, Access: auth.Operate,
			Summary: text.ask, Description: "A replica knows the last 10 runs that were started in it.", Errors: []int{http.StatusNotFound},
		},
		Cancel: Operation[RunItem, V]{
			ID: "cancel" + text.name, Method: http.MethodDelete, Path: text.path + "/{id}", Tag: text.tag, Access: auth.Operate,
			Summary: text.cancel, Description: "The run ends soon, and what it has done stays done. A run that has ended stays as it is.",
			Status: http.StatusAccepted, Errors: []int{http.StatusNotFound},
		},
	}
}

// The operations on runs of garbage collection, on checks of the store, and on runs of loose
// foreign keys.
var (
	GCRuns = runOperations[GCRequest, GCRun](runTexts{
		name: "GCRun", path: "/gc/run", tag: "gc",
		start: "Collect garbage now",
		startMore: "Reviews what is due and deletes what nothing refers to, until nothing is due, beside the workers that " +
			"do so all the time.",
		what: "garbage collection",
		ask:  "Ask for a run of garbage collection", cancel: "Cancel a run of garbage collection",
	})
	CheckRuns = runOperations[CheckRequest, CheckRun](runTexts{
		name: "Check", path: "/check", tag: "check",
		start:     "Compare the database with the blob store",
		startMore: "Finds blobs without their objects, and objects that nothing owns, while the registry is used.",
		what:      "checks",
		ask:       "Ask for a check", cancel: "Cancel a check",
	})
	LooseRuns = runOperations[LooseRequest, LooseRun](runTexts{
		name: "LooseKeysRun", path: "/loosefk/run", tag: "loosefk",
		start:     "Clean up after deleted repositories and namespaces now",
		startMore: "Processes what is due until nothing is, or a limit is reached, beside the worker that does so all the time.",
		what:      "loose foreign keys",
		ask:       "Ask for a run of loose foreign keys", cancel: "Cancel a run of loose foreign keys",
	})
)
