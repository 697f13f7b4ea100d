package api

import (
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/policy"
)

// PruneState is the state of auto-pruning in a namespace.
type PruneState struct {
	UsesDefaults bool                  `json:"uses_defaults" doc:"Whether the registry's default policies apply while the namespace has none of its own"`
	Reported     bool                  `json:"reported" doc:"Whether a reporter of what is deployed is live in the namespace. If none is, last_pulled policies don't know what runs"`
	Task         *autoprune.TaskStatus `json:"task" doc:"Null: no policy applies, or no worker has looked at the namespace yet"`
}

// TransformSchema marks members that may be null.
func (PruneState) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return Nullable(s, "task")
}

// PruneSetting is the body of a request that says whether the registry's default policies apply to a
// namespace.
type PruneSetting struct {
	UsesDefaults bool `json:"uses_defaults" doc:"False: the registry's default policies don't apply to the namespace"`
}

// TransformSchema adds the read-only members of a state.
func (PruneSetting) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return ReadOnly(s, "task", "reported")
}

// AskList is a page of the policies that ask in a namespace.
type AskList struct {
	Asks     []autoprune.Ask `json:"asks" nullable:"false"`
	NextPage string          `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
}

// Entries implements Page.
func (l AskList) Entries() ([]autoprune.Ask, string) { return l.Asks, l.NextPage }

// WaitingAsks is a page of the namespaces in which policies ask.
type WaitingAsks struct {
	Namespaces []autoprune.NamespaceAsks `json:"namespaces" nullable:"false"`
	NextPage   string                    `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
}

// PruneApproval is the body of a request that approves what a policy asks for.
type PruneApproval struct {
	Version int64 `json:"version" minimum:"1" doc:"Version of the policy"`
	Tags    int64 `json:"tags" minimum:"1" doc:"How many tags the policy may delete: at least the tags_would_delete for which it asks"`
}

// RestConfirmation is the body of a request that confirms the warnings of a policy that rests.
type RestConfirmation struct {
	Version int64                `json:"version" minimum:"1" doc:"Version of the policy"`
	Codes   []policy.WarningCode `json:"codes" nullable:"false" maxItems:"32" doc:"Codes of the warnings: all for which the policy rests"`
}

// PruneRunList is a page of runs.
type PruneRunList struct {
	Runs []autoprune.RunSummary `json:"runs" nullable:"false"`
	Next string                 `json:"next,omitempty" doc:"Where to go on. Absent on the last page"`
}

// Entries implements Page.
func (l PruneRunList) Entries() ([]autoprune.RunSummary, string) { return l.Runs, l.Next }

// ExemptionList is a page of the exemptions in a repository.
type ExemptionList struct {
	Exemptions []policies.Exemption `json:"exemptions" nullable:"false"`
	NextPage   string               `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
}

// Entries implements Page.
func (l ExemptionList) Entries() ([]policies.Exemption, string) { return l.Exemptions, l.NextPage }

// EndedExemptions counts the exemptions that were ended.
type EndedExemptions struct {
	Ended int64 `json:"ended" doc:"How many exemptions there were"`
}

// ExceptionList is a page of a list of exceptions.
type ExceptionList struct {
	Exceptions []policies.Exception `json:"exceptions" nullable:"false"`
	NextPage   string               `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
}

// Entries implements Page.
func (l ExceptionList) Entries() ([]policies.Exception, string) { return l.Exceptions, l.NextPage }

// NewException is the body of a request to make a repository an exception.
type NewException struct {
	Until *time.Time `json:"until,omitempty" doc:"When it ends. Absent: when somebody ends it" example:"2030-01-02T15:04:05Z"`
}

// EndedException says whether there was an exception to end.
type EndedException struct {
	Ended bool `json:"ended" doc:"Whether it was an exception"`
}

// FreeBody is the body of a request to plan to free bytes, or to carry out such a plan.
type FreeBody struct {
	Bytes     int64  `json:"bytes,omitempty" minimum:"0" doc:"How many bytes to free. Absent with plan" example:"500000000000"`
	UnusedFor string `json:"unused_for,omitempty" maxLength:"64" doc:"Only tags that weren't used or pushed for so long. Absent: 30d" example:"90d"`
	Plan      string `json:"plan,omitempty" doc:"The plan of an answer: carry it out"`
}

// FreeAnswer is a plan, or what was started.
type FreeAnswer struct {
	Plan    *autoprune.FreePlan `json:"plan,omitempty" doc:"What would be deleted"`
	Started *autoprune.Freeing  `json:"started,omitempty" doc:"What was started, for a request with a plan"`
}

// PruneNamespace is the input of operations on auto-pruning in a namespace.
type PruneNamespace struct {
	Namespace string `path:"orgname" doc:"Name of the namespace: the first part of its repositories' names" example:"library"`
}

// Resource returns the namespace.
func (i PruneNamespace) Resource() auth.Resource { return auth.OfNamespace(i.Namespace) }

// DefaultsConfirmation is the part of an input by which a client says that somebody has seen what
// policies would delete after the change.
type DefaultsConfirmation struct {
	Confirm string `query:"confirm" doc:"all: do it also if policies would delete tags then that they leave now. Codes of warnings with commas between them: do it if there are no others. Absent or none: refuse with 409 what has warnings, which are in details" example:"none"`
}

// PrunePolicy is the part of an input that names a policy that applies in a namespace.
type PrunePolicy struct {
	PruneNamespace
	Policy string `path:"policy_uuid" doc:"Identifier of the policy" example:"f6d1a7b0-9a8c-4a7e-9b0e-3a4f6f1c2d3e"`
}

// Inputs of the operations on auto-pruning.
type (
	PruneStateChange struct {
		PruneNamespace
		DefaultsConfirmation
		Body PruneSetting
	}
	AskQuery struct {
		PruneNamespace
		Paging
	}
	WaitingQuery struct {
		Limit    int    `query:"limit" minimum:"1" default:"50" doc:"Most namespaces. More than 500 counts as 500"`
		NextPage string `query:"next_page" doc:"The next_page of the page before"`
	}
	AskApproval struct {
		PrunePolicy
		Body PruneApproval
	}
	RestApproval struct {
		PrunePolicy
		Body RestConfirmation
	}
	PruneRunQuery struct {
		Namespace string `query:"namespace" doc:"Only runs of this namespace, which may have been deleted"`
		Cursor    string `query:"cursor" doc:"Where to go on: next of the page before"`
		Limit     int    `query:"limit" minimum:"1" default:"50" doc:"Runs per page. More than 500 counts as 500"`
	}
	PruneRunItem struct {
		Run string `path:"run" doc:"Identifier of the run"`
	}
	PruneRunUndo struct {
		PruneRunItem
		Cursor string `query:"cursor" doc:"Where to go on: next of the answer before"`
	}
	ExemptionQuery struct {
		InRepository
		Paging
	}
	ExemptionEnd struct {
		InRepository
		Tag string `query:"tag" doc:"Only the exemptions of this tag. Absent: of all tags"`
	}
	ExceptionQuery struct {
		PruneNamespace
		Paging
	}
	ExceptionNew struct {
		InRepository
		Body NewException
	}
	FreeInput struct {
		PolicyAt
		Body FreeBody
	}
)

// pruneOperation describes an operation on auto-pruning, at a path below /api/v1.
func pruneOperation[I, O any](id, method, path, summary, description string, status int, errors ...int) Operation[I, O] {
	return Operation[I, O]{
		ID: id, Method: method, Path: path, Tag: "autoprune", Access: auth.Maintain,
		Summary: summary, Description: description, Status: status, Errors: append(errors, http.StatusNotFound),
	}
}

// Paths of operations on auto-pruning in a namespace and a repository.
const (
	pruneOfNamespace  = OfNamespace + "/autoprune"
	pruneOfRepository = OfRepository + "/autoprune"
)

// The operations on the state of auto-pruning in a namespace, and on policies that ask or rest there.
var (
	GetPruneState = pruneOperation[PruneNamespace, PruneState]("getAutoPruneState", http.MethodGet, pruneOfNamespace, "Get the state of auto-pruning in a namespace", "", 0)
	SetPruneState = pruneOperation[PruneStateChange, None]("setAutoPruneState", http.MethodPut, pruneOfNamespace,
		"Let the registry's default policies apply to a namespace or not",
		"The namespace's policies wait for a grace period if there is one. 409: what policies would delete then and leave now wasn't confirmed.",
		http.StatusNoContent, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	PruneNow = pruneOperation[PruneNamespace, PruneState]("runAutoPrune", http.MethodPost, pruneOfNamespace+"/run", "Prune a namespace now",
		"Puts the namespace at the head of the queue. Its state says when a worker prunes it, and the list of runs says what the worker did.",
		http.StatusAccepted, http.StatusConflict)

	ListAsks = pruneOperation[AskQuery, AskList]("listAutoPruneAsks", http.MethodGet, pruneOfNamespace+"/asks",
		"List the auto-prune policies that ask for an approval in a namespace",
		"In the namespace's last run, each of these policies would have deleted more tags than its maxDeleted or maxDeletedPercent allows, and deleted none.", 0)
	ListWaitingAsks = Operation[WaitingQuery, WaitingAsks]{
		ID: "listWaitingAutoPruneAsks", Method: http.MethodGet, Path: "/autoprune/asks", Tag: "autoprune", Access: auth.Operate,
		Summary:     "List the namespaces in which auto-prune policies ask for an approval",
		Description: "The namespace that has waited longest comes first. The list of a namespace's asks tells which of its policies still ask.",
	}
	ApproveAsk = pruneOperation[AskApproval, autoprune.Ask]("approveAutoPruneAsk", http.MethodPost, pruneOfNamespace+"/asks/{policy_uuid}/approve",
		"Let a policy that asks delete more tags of a namespace than its cap allows, in one run",
		"The approval is of one version of the policy and a number of tags. It lasts for 7 days, or until the policy is saved or a run "+
			"has deleted tags by it. The namespace is put at the head of the queue. 409: the policy has another version, or would delete more tags.",
		0, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	ConfirmRest = pruneOperation[RestApproval, None]("confirmAutoPruneRest", http.MethodPost, pruneOfNamespace+"/rests/{policy_uuid}/confirm",
		"Let a policy that rests in a namespace delete what it surely wasn't meant to delete",
		"The state of auto-pruning in the namespace lists the policies that rest, with their warnings. The namespace is put at the head of the queue. "+
			"409: the policy has another version, or rests for a warning whose code isn't in the body.",
		http.StatusNoContent, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
)

// The operations on runs of auto-pruning. They need the access in the namespace of the run.
var (
	ListPruneRuns = Operation[PruneRunQuery, PruneRunList]{
		ID: "listAutoPruneRuns", Method: http.MethodGet, Path: "/autoprune/runs", Tag: "autoprune", Access: auth.Ping, Checks: auth.Maintain,
		Summary:     "List runs of auto-pruning, newest first",
		Description: "Needs the access maintain in the namespace; without one, the access operate.",
	}
	GetPruneRun = Operation[PruneRunItem, autoprune.RunDetails]{
		ID: "getAutoPruneRun", Method: http.MethodGet, Path: "/autoprune/runs/{run}", Tag: "autoprune", Access: auth.Ping, Checks: auth.Maintain,
		Summary: "Get a run of auto-pruning", Description: "The tags that it deleted are in the audit log, under the run.",
		Errors: []int{http.StatusNotFound},
	}
	UndoPruneRun = Operation[PruneRunUndo, autoprune.Undone]{
		ID: "undoAutoPruneRun", Method: http.MethodPost, Path: "/autoprune/runs/{run}/undo", Tag: "autoprune", Access: auth.Ping, Checks: auth.Maintain,
		Summary: "Restore the tags that a run has deleted",
		Description: "Restores the tags whose manifests garbage collection hasn't deleted yet, with their former times. Tags that were " +
			"made since stay as they are. The policies that deleted the tags don't delete them again until somebody ends that or the " +
			"policies get another rule. A large run takes several requests: next says where to go on.",
		Errors: []int{http.StatusNotFound, http.StatusConflict},
	}
)

// The operations on what policies don't delete, and on freeing bytes.
var (
	ListExemptions = pruneOperation[ExemptionQuery, ExemptionList]("listAutoPruneExemptions", http.MethodGet, pruneOfRepository+"/exemptions",
		"List the tags of a repository that undos have exempted from policies",
		"An exemption lasts until it is ended, the tag is deleted, or the policy gets another rule.", 0)
	EndExemptions = pruneOperation[ExemptionEnd, EndedExemptions]("endAutoPruneExemptions", http.MethodDelete, pruneOfRepository+"/exemptions",
		"Let policies select the tags again that undos have exempted from them", "The next run may delete these tags.", 0)

	ListExceptions = pruneOperation[ExceptionQuery, ExceptionList]("listAutoPruneExceptions", http.MethodGet, pruneOfNamespace+"/exceptions",
		"List the repositories in which the policies of the namespace and of the registry delete nothing", "", 0)
	GetException = pruneOperation[InRepository, ExceptionList]("getAutoPruneException", http.MethodGet, pruneOfRepository+"/exception",
		"Ask whether a repository is an exception, in which only its own policies delete", "", 0)
	MakeException = pruneOperation[ExceptionNew, None]("makeAutoPruneException", http.MethodPut, pruneOfRepository+"/exception",
		"Make a repository an exception, in which only its own policies delete",
		"After the answer, no policy of the namespace or of the registry deletes a tag of the repository. Their keep rules go on to keep tags. "+
			"A repository without policies of its own keeps every tag.",
		http.StatusNoContent, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	EndException = pruneOperation[InRepository, EndedException]("endAutoPruneException", http.MethodDelete, pruneOfRepository+"/exception",
		"Let the policies of the namespace and of the registry apply in a repository again", "The next run may delete tags of it.", 0)

	FreeBytes = Operation[FreeInput, FreeAnswer]{
		ID: "free{Place}", Method: http.MethodPost, Path: "{place}/autoprune/free", Tag: "autoprune", Access: auth.Administer,
		Places:  []Place{{"Namespace", OfNamespace, "a namespace"}, {"Registry", OfRegistry, "the registry"}},
		Summary: "Free bytes in {place}: delete the least recently used tags",
		Description: "Without plan: finds the least recently used tags whose deletion frees as many bytes, and changes nothing. The bytes are those of blobs " +
			"that no tag of the registry needs any more. What is protected, deployed, kept by policies or exempted stays. " +
			"With the plan of such an answer: lets the next run of each of the plan's namespaces delete these tags, except those that were used since. " +
			"The runs are in the list of runs, and can be undone.",
		Errors:      []int{http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
		BodyExample: map[string]any{"bytes": 500_000_000_000},
	}
)
