package management

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/oci"
)

// pruneState is the state of auto-pruning in a namespace.
type pruneState struct {
	UsesDefaults bool                  `json:"uses_defaults" doc:"Whether the registry's default policies apply while the namespace has none of its own"`
	Reported     bool                  `json:"reported" doc:"Whether a reporter of what is deployed is live in the namespace. If none is, last_pulled policies don't know what runs"`
	Task         *autoprune.TaskStatus `json:"task" doc:"Null: no policy applies, or no worker has looked at the namespace yet"`
}

// TransformSchema marks members that may be null.
func (pruneState) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return api.Nullable(s, "task")
}

// pruneSetting is the body of a request that says whether the registry's default policies
// apply to a namespace.
type pruneSetting struct {
	UsesDefaults bool `json:"uses_defaults" doc:"False: the registry's default policies don't apply to the namespace"`
}

// TransformSchema adds the read-only members of a state.
func (pruneSetting) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return api.ReadOnly(s, "task", "reported")
}

// addPruning adds the operations that show the state of auto-pruning in a namespace, and start,
// list and undo runs of auto-pruning.
func (a *API) addPruning() {
	prune := a.opt.Autoprune
	if prune == nil {
		return
	}
	tags := []string{"autoprune"}
	type state struct{ Body pruneState }
	add(a, auth.Maintain, huma.Operation{
		OperationID: "getAutoPruneState", Method: http.MethodGet, Path: "/organization/{orgname}/autoprune", Tags: tags,
		Summary: "Get the state of auto-pruning in a namespace", Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, in *PolicyOfNamespace) (*state, error) {
		on, err := prune.UsesDefaults(ctx, in.Namespace)
		if err != nil {
			return nil, err
		}
		task, err := prune.Task(ctx, in.Namespace)
		if err != nil {
			return nil, err
		}
		reported, err := prune.Reported(ctx, in.Namespace)
		return &state{pruneState{on, reported, task}}, err
	})

	type setState struct {
		PolicyOfNamespace
		Body pruneSetting
	}
	add(a, auth.Maintain, huma.Operation{
		OperationID: "setAutoPruneState", Method: http.MethodPut, Path: "/organization/{orgname}/autoprune", Tags: tags,
		Summary: "Let the registry's default policies apply to a namespace or not", DefaultStatus: http.StatusNoContent,
		Errors: []int{http.StatusNotFound, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
	}, func(ctx context.Context, in *setState) (*struct{}, error) {
		return nil, prune.UseDefaults(ctx, in.Namespace, in.Body.UsesDefaults)
	})

	add(a, auth.Maintain, huma.Operation{
		OperationID: "runAutoPrune", Method: http.MethodPost, Path: "/organization/{orgname}/autoprune/run", Tags: tags,
		Summary:       "Prune a namespace now",
		Description:   "Puts the namespace at the head of the queue. Its state says when a worker prunes it, and the list of runs says what the worker did.",
		DefaultStatus: http.StatusAccepted, Errors: []int{http.StatusNotFound, http.StatusConflict},
	}, func(ctx context.Context, in *PolicyOfNamespace) (*state, error) {
		if err := prune.RunNow(ctx, in.Namespace); err != nil {
			return nil, err
		}
		task, err := prune.Task(ctx, in.Namespace)
		if err != nil {
			return nil, err
		}
		on, err := prune.UsesDefaults(ctx, in.Namespace)
		if err != nil {
			return nil, err
		}
		reported, err := prune.Reported(ctx, in.Namespace)
		return &state{pruneState{on, reported, task}}, err
	})
	a.addPruneAsks()
	a.addExemptions()
	a.addRests()
	a.addExceptions()
	a.addFree()
	a.addPruneRuns()
}

// pruneApproval is the body of a request that approves what a policy asks for.
type pruneApproval struct {
	Version int64 `json:"version" minimum:"1" doc:"Version of the policy"`
	Tags    int64 `json:"tags" minimum:"1" doc:"How many tags the policy may delete: at least the tags_would_delete for which it asks"`
}

// addPruneAsks adds the operations that list and approve policies that ask, because they would
// delete more than their caps allow.
func (a *API) addPruneAsks() {
	prune, tags := a.opt.Autoprune, []string{"autoprune"}
	type asksInput struct {
		PolicyOfNamespace
		api.Paging
	}
	type output struct {
		Body struct {
			Asks     []autoprune.Ask `json:"asks" nullable:"false"`
			NextPage string          `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
		}
	}
	add(a, auth.Maintain, huma.Operation{
		OperationID: "listAutoPruneAsks", Method: http.MethodGet, Path: "/organization/{orgname}/autoprune/asks", Tags: tags,
		Summary:     "List the auto-prune policies that ask for an approval in a namespace",
		Description: "In the namespace's last run, each of these policies would have deleted more tags than its maxDeleted or maxDeletedPercent allows, and deleted none.",
		Errors:      []int{http.StatusNotFound},
	}, func(ctx context.Context, in *asksInput) (*output, error) {
		var begin int // they have the order in which policies apply, which nothing names
		if _, err := parseCursor(in.NextPage, "ask", &begin); err != nil {
			return nil, err
		}
		list, err := prune.Asks(ctx, in.Namespace)
		begin = min(max(begin, 0), len(list))
		end := min(begin+in.Most(), len(list))
		out := new(output)
		out.Body.Asks = list[begin:end]
		if end < len(list) {
			out.Body.NextPage = cursor("ask", end)
		}
		return out, err
	})

	type waitingInput struct {
		Limit    int    `query:"limit" minimum:"1" default:"50" doc:"Most namespaces. More than 500 counts as 500"`
		NextPage string `query:"next_page" doc:"The next_page of the page before"`
	}
	type waitingOutput struct {
		Body struct {
			Namespaces []autoprune.NamespaceAsks `json:"namespaces" nullable:"false"`
			NextPage   string                    `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
		}
	}
	add(a, auth.Operate, huma.Operation{
		OperationID: "listWaitingAutoPruneAsks", Method: http.MethodGet, Path: "/autoprune/asks", Tags: tags,
		Summary:     "List the namespaces in which auto-prune policies ask for an approval",
		Description: "The namespace that has waited longest comes first. The list of a namespace's asks tells which of its policies still ask.",
	}, func(ctx context.Context, in *waitingInput) (*waitingOutput, error) {
		var after autoprune.AsksPlace
		if _, err := parseCursor(in.NextPage, "asks", &after); err != nil {
			return nil, err
		}
		list, more, err := prune.WaitingAsks(ctx, after, min(in.Limit, 500))
		out := new(waitingOutput)
		out.Body.Namespaces = list
		if more {
			last := list[len(list)-1]
			out.Body.NextPage = cursor("asks", autoprune.AsksPlace{Asked: last.Asked, Namespace: last.Namespace})
		}
		return out, err
	})

	type approveInput struct {
		PolicyOfNamespace
		PolicyItem
		Body pruneApproval
	}
	type approveOutput struct{ Body autoprune.Ask }
	add(a, auth.Maintain, huma.Operation{
		OperationID: "approveAutoPruneAsk", Method: http.MethodPost, Path: "/organization/{orgname}/autoprune/asks/{policy_uuid}/approve", Tags: tags,
		Summary: "Let a policy that asks delete more tags of a namespace than its cap allows, in one run",
		Description: "The approval is of one version of the policy and a number of tags. It lasts for 7 days, or until the policy is saved or a run " +
			"has deleted tags by it. The namespace is put at the head of the queue. 409: the policy has another version, or would delete more tags.",
		Errors: []int{http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
	}, func(ctx context.Context, in *approveInput) (*approveOutput, error) {
		ask, err := prune.Approve(ctx, in.Namespace, in.Policy, in.Body.Version, in.Body.Tags)
		return &approveOutput{ask}, err
	})
}

// undoTime limits how long one request to undo a run of auto-pruning works. If not all tags are
// restored by then, the answer says where the client's next request is to continue.
const undoTime = 20 * time.Second

func (a *API) addPruneRuns() {
	prune, tags := a.opt.Autoprune, []string{"autoprune"}
	type listInput struct {
		Namespace string `query:"namespace" doc:"Only runs of this namespace, which may have been deleted"`
		Cursor    string `query:"cursor" doc:"Where to go on: next of the page before"`
		Limit     int    `query:"limit" minimum:"1" default:"50" doc:"Runs per page. More than 500 counts as 500"`
	}
	type listOutput struct {
		Body struct {
			Runs []autoprune.RunSummary `json:"runs" nullable:"false"`
			Next string                 `json:"next,omitempty" doc:"Where to go on. Absent on the last page"`
		}
	}
	add(a, auth.Ping, huma.Operation{
		OperationID: "listAutoPruneRuns", Method: http.MethodGet, Path: "/autoprune/runs", Tags: tags, Extensions: checked(auth.Maintain),
		Summary:     "List runs of auto-pruning, newest first",
		Description: "Needs the access maintain in the namespace; without one, the access operate.",
	}, func(ctx context.Context, in *listInput) (*listOutput, error) {
		access, of := auth.Operate, auth.Registry
		if in.Namespace != "" {
			access, of = auth.Maintain, auth.OfNamespace(in.Namespace)
		}
		if err := a.server.Authorize(ctx, access, of); err != nil {
			return nil, err
		}
		var id int64
		if in.Namespace != "" {
			var err error
			if id, _, err = a.seen(ctx, in.Namespace); err != nil {
				return nil, err
			}
		}
		list, next, err := prune.RunsOf(ctx, in.Namespace, id, in.Cursor, min(in.Limit, 500))
		out := new(listOutput)
		out.Body.Runs, out.Body.Next = list, next
		if list == nil {
			out.Body.Runs = []autoprune.RunSummary{}
		}
		return out, err
	})

	type input struct {
		Run string `path:"run" doc:"Identifier of the run"`
	}
	type output struct{ Body autoprune.RunDetails }
	add(a, auth.Ping, huma.Operation{
		OperationID: "getAutoPruneRun", Method: http.MethodGet, Path: "/autoprune/runs/{run}", Tags: tags, Extensions: checked(auth.Maintain),
		Summary: "Get a run of auto-pruning", Description: "The tags that it deleted are in the audit log, under the run.",
		Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, in *input) (*output, error) {
		d, err := a.pruneRun(ctx, in.Run)
		return &output{d}, err
	})

	type undoInput struct {
		Run    string `path:"run" doc:"Identifier of the run"`
		Cursor string `query:"cursor" doc:"Where to go on: next of the answer before"`
	}
	type undoOutput struct{ Body autoprune.Undone }
	add(a, auth.Ping, huma.Operation{
		OperationID: "undoAutoPruneRun", Method: http.MethodPost, Path: "/autoprune/runs/{run}/undo", Tags: tags, Extensions: checked(auth.Maintain),
		Summary: "Restore the tags that a run has deleted",
		Description: "Restores the tags whose manifests garbage collection hasn't deleted yet, with their former times. Tags that were " +
			"made since stay as they are. The policies that deleted the tags don't delete them again until somebody ends that or the " +
			"policies get another rule. A large run takes several requests: next says where to go on.",
		Errors: []int{http.StatusNotFound, http.StatusConflict},
	}, func(ctx context.Context, in *undoInput) (*undoOutput, error) {
		if _, err := a.pruneRun(ctx, in.Run); err != nil {
			return nil, err
		}
		done, err := prune.Undo(ctx, in.Run, in.Cursor, undoTime)
		return &undoOutput{done}, err
	})
}

// pruneRun returns a run of a namespace in which the client has the access maintain. The error
// for another run is the same as for a run that doesn't exist.
func (a *API) pruneRun(ctx context.Context, id string) (autoprune.RunDetails, error) {
	d, err := a.opt.Autoprune.GetRun(ctx, id)
	if err != nil {
		return d, err
	}
	name := cmp.Or(d.NamespaceNow, d.Namespace)
	err = a.server.Authorize(ctx, auth.Maintain, auth.OfNamespace(name))
	if err == nil {
		var seen int64
		if seen, _, err = a.seen(ctx, name); err == nil && seen != 0 && seen != d.NamespaceID {
			err = autoprune.RunUnknown(id) // of a namespace that had the name before
		}
	}
	if oci.CodeOf(err) == oci.Denied {
		err = autoprune.RunUnknown(id)
	}
	if err != nil {
		return autoprune.RunDetails{}, err
	}
	return d, nil
}
