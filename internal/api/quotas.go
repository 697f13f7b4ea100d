package api

import (
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/quota"
)

// QuotaView is the quota of a namespace as answers of the API show it. The members that Quay's
// API has too come first, then Purser's own.
type QuotaView struct {
	ID                  int64        `json:"id"`
	LimitBytes          *int64       `json:"limit_bytes" doc:"Null: no limit on bytes" example:"10737418240"`
	Limit               *string      `json:"limit" doc:"limit_bytes for people" example:"10.0 GiB"`
	DefaultConfig       bool         `json:"default_config" doc:"Always false: there is no default quota"`
	Limits              []QuotaLimit `json:"limits" nullable:"false" doc:"What happens at which part of the limits. Without a Reject nothing is refused"`
	DefaultConfigExists bool         `json:"default_config_exists" doc:"Always false"`

	Namespace         string    `json:"namespace" example:"library"`
	LimitRepositories *int64    `json:"limit_repositories" doc:"Null: no limit"`
	LimitTags         *int64    `json:"limit_tags" doc:"Null: no limit"`
	UsedBytes         int64     `json:"used_bytes" doc:"Size of the namespace's blobs, each counted once"`
	UsedRepositories  int64     `json:"used_repositories"`
	UsedTags          int64     `json:"used_tags"`
	Counted           bool      `json:"counted" doc:"False while the content from before the quota is being counted: the used numbers are too low, and nothing is refused"`
	CreatedAt         time.Time `json:"created_at"`
}

// QuotaLimit says what happens when a part of a quota is used.
type QuotaLimit struct {
	ID      int64  `json:"id"`
	Type    string `json:"type" doc:"Warning sends a notice; Reject refuses what would exceed the part"`
	Percent int    `json:"limit_percent" doc:"Of each limit of the quota" example:"80"`
}

// ViewQuota converts a quota.
func ViewQuota(q quota.Quota) QuotaView {
	v := QuotaView{
		ID: q.ID, Namespace: q.Namespace, LimitBytes: limitOrNull(q.Limits.Bytes), LimitRepositories: limitOrNull(q.Limits.Repositories),
		LimitTags: limitOrNull(q.Limits.Tags), UsedBytes: q.Used.Bytes, UsedRepositories: q.Used.Repositories, UsedTags: q.Used.Tags,
		Counted: q.Counted, CreatedAt: q.CreatedAt.UTC(), Limits: []QuotaLimit{},
	}
	if v.LimitBytes != nil {
		text := quota.FormatBytes(*v.LimitBytes)
		v.Limit = &text
	}
	for _, s := range q.Steps {
		v.Limits = append(v.Limits, ViewQuotaLimit(s))
	}
	return v
}

// ViewQuotaLimit converts a step of a quota.
func ViewQuotaLimit(s quota.Step) QuotaLimit {
	return QuotaLimit{s.ID, string(s.Kind), s.Percent}
}

func limitOrNull(n int64) *int64 {
	if n == 0 {
		return nil
	}
	return &n
}

// QuotaForm is a quota in requests.
type QuotaForm struct {
	LimitBytes        *int64           `json:"limit_bytes,omitempty" minimum:"0" doc:"Most bytes of blobs, each counted once; 0: no limit. Absent: limit" example:"10737418240"`
	Limit             *string          `json:"limit,omitempty" doc:"limit_bytes as a number and a unit" example:"10 GiB"`
	LimitRepositories *int64           `json:"limit_repositories,omitempty" minimum:"0" doc:"Most repositories; 0: no limit"`
	LimitTags         *int64           `json:"limit_tags,omitempty" minimum:"0" doc:"Most tags; 0: no limit"`
	Limits            []QuotaLimitForm `json:"limits,omitzero" maxItems:"20" doc:"What happens at which part of the limits, in place of what the quota had. Absent: no change"`
}

// TransformSchema adds the read-only members of a quota.
func (QuotaForm) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return ReadOnly(s, "id", "default_config", "default_config_exists", "namespace", "used_bytes", "used_repositories", "used_tags", "counted", "created_at")
}

// QuotaLimitForm is a limit of a quota in requests.
type QuotaLimitForm struct {
	Type      string `json:"type" enum:"Warning,Reject" doc:"Warning sends a notice; Reject refuses what would exceed the part"`
	Threshold int    `json:"threshold_percent,omitempty" minimum:"1" maximum:"100" doc:"Which part of the quota" example:"80"`
	Percent   int    `json:"limit_percent,omitempty" minimum:"1" maximum:"100" doc:"The name that answers have for threshold_percent, in place of it"`
}

// TransformSchema adds the read-only members of a limit.
func (QuotaLimitForm) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return ReadOnly(s, "id")
}

// QuotaList is a page of the quotas of all namespaces.
type QuotaList struct {
	Quotas   []QuotaView `json:"quotas" nullable:"false"`
	NextPage string      `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
}

// Entries implements Page.
func (l QuotaList) Entries() ([]QuotaView, string) { return l.Quotas, l.NextPage }

// Inputs of the operations on quotas.
type (
	QuotaQuery struct{ At }
	QuotaNew   struct {
		At
		Body QuotaForm
	}
	QuotaItem struct {
		At
		ID int64 `path:"quota_id" doc:"Identifier of the quota"`
	}
	QuotaChange struct {
		QuotaItem
		Body QuotaForm
	}
	QuotaLimitNew struct {
		QuotaItem
		Body QuotaLimitForm
	}
	QuotaLimitItem struct {
		QuotaItem
		Limit int64 `path:"limit_id" doc:"Identifier of the limit"`
	}
	QuotaLimitChange struct {
		QuotaLimitItem
		Body QuotaLimitForm
	}
	QuotaPage struct {
		Limit    int    `query:"limit" minimum:"1" default:"50" doc:"Most entries of a page. More than 100 counts as 100"`
		NextPage string `query:"next_page" doc:"Where to go on: next_page of the answer before"`
	}
)

var (
	quotaPlace  = Place{"Organization", OfNamespace, "a namespace"}
	quotaPlaces = []Place{quotaPlace, {"User", OfOwn, "the namespace of the client's account"}}
)

// quotaReading and quotaChanging describe operations on the quota of a namespace.
func quotaReading[I, O any](id, path, summary, description string) Operation[I, O] {
	return Operation[I, O]{
		ID: id, Method: http.MethodGet, Path: "{place}/quota" + path, Places: quotaPlaces, Tag: "quota", Access: auth.Maintain,
		Summary: summary, Description: description, Errors: []int{http.StatusNotFound},
	}
}

func quotaChanging[I, O any](id, method, path, summary, description string, status int) Operation[I, O] {
	op := quotaReading[I, O](id, path, summary, description)
	op.Method, op.Places, op.Access, op.Status = method, []Place{quotaPlace}, auth.Operate, status
	if method != http.MethodDelete {
		op.Errors = append(op.Errors, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	}
	return op
}

// The operations on quotas. Those on the quota of a namespace have Quay's paths.
var (
	ListQuota   = quotaReading[QuotaQuery, []QuotaView]("list{Place}Quota", "", "Get the quota of {place}", "The list is empty, or has one quota.")
	GetQuota    = quotaReading[QuotaItem, QuotaView]("get{Place}Quota", "/{quota_id}", "Get one quota of {place}", "")
	CreateQuota = quotaChanging[QuotaNew, QuotaView]("create{Place}Quota", http.MethodPost, "", "Give a namespace a quota",
		"Limits the bytes, repositories and tags of the namespace. Add a limit of the type Reject, here or later: without one, nothing is refused. "+
			"Content that the namespace has is counted first, and until counted is true nothing is refused.", http.StatusCreated)
	ChangeQuota = quotaChanging[QuotaChange, QuotaView]("change{Place}Quota", http.MethodPut, "/{quota_id}", "Change a quota",
		"Members that are absent stay as they are. A limit may be lower than what is used: nothing is deleted, but nothing can be added.", 0)
	DeleteQuota  = quotaChanging[QuotaItem, None]("delete{Place}Quota", http.MethodDelete, "/{quota_id}", "Take a namespace's quota away", "", http.StatusNoContent)
	RecountQuota = quotaChanging[QuotaItem, QuotaView]("recount{Place}Quota", http.MethodPost, "/{quota_id}/recount", "Count the content of a namespace again",
		"Pushes go on meanwhile, and the quota holds with the old numbers. This is never needed, unless somebody has changed rows of the database by hand.", 0)

	ListQuotaLimits = quotaReading[QuotaItem, []QuotaLimit]("list{Place}QuotaLimit", "/{quota_id}/limit", "List the limits of a quota of {place}", "")
	AddQuotaLimit   = quotaChanging[QuotaLimitNew, QuotaView]("create{Place}QuotaLimit", http.MethodPost, "/{quota_id}/limit", "Add a limit to a quota", "", http.StatusCreated)
	GetQuotaLimit   = Operation[QuotaLimitItem, QuotaLimit]{
		ID: "get{Place}QuotaLimit", Method: http.MethodGet, Path: "{place}/quota/{quota_id}/limit/{limit_id}", Places: []Place{quotaPlace},
		Tag: "quota", Access: auth.Maintain, Summary: "Get a limit of a quota", Errors: []int{http.StatusNotFound},
	}
	ChangeQuotaLimit = quotaChanging[QuotaLimitChange, QuotaView]("change{Place}QuotaLimit", http.MethodPut, "/{quota_id}/limit/{limit_id}", "Change a limit of a quota", "", 0)
	DeleteQuotaLimit = quotaChanging[QuotaLimitItem, None]("delete{Place}QuotaLimit", http.MethodDelete, "/{quota_id}/limit/{limit_id}", "Remove a limit from a quota", "", http.StatusNoContent)

	ListQuotas = Operation[QuotaPage, QuotaList]{
		ID: "listQuotas", Method: http.MethodGet, Path: "/quota", Tag: "quota", Access: auth.Operate,
		Summary: "List the quotas of all namespaces, in the order of the namespaces' names",
	}
)
