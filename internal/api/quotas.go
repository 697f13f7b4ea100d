package api

import (
	"time"

	"github.com/purser-registry/purser/internal/catalog"
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
func ViewQuota(q catalog.Quota) QuotaView {
	v := QuotaView{
		ID: q.ID, Namespace: q.Namespace, LimitBytes: limitOrNull(q.Limits.Bytes), LimitRepositories: limitOrNull(q.Limits.Repositories),
		LimitTags: limitOrNull(q.Limits.Tags), UsedBytes: q.Used.Bytes, UsedRepositories: q.Used.Repositories, UsedTags: q.Used.Tags,
		Counted: q.Counted, CreatedAt: q.CreatedAt.UTC(), Limits: []QuotaLimit{},
	}
	if v.LimitBytes != nil {
		text := catalog.FormatBytes(*v.LimitBytes)
		v.Limit = &text
	}
	for _, s := range q.Steps {
		v.Limits = append(v.Limits, ViewQuotaLimit(s))
	}
	return v
}

// ViewQuotaLimit converts a step of a quota.
func ViewQuotaLimit(s catalog.QuotaStep) QuotaLimit {
	return QuotaLimit{s.ID, string(s.Kind), s.Percent}
}

func limitOrNull(n int64) *int64 {
	if n == 0 {
		return nil
	}
	return &n
}
