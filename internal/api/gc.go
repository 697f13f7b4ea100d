package api

import (
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/gc/explain"
	"github.com/purser-registry/purser/internal/oci"
)

// ExplainedBlob explains why a blob is kept, or when it will be deleted. It does so twice: in
// members for programs, and in sentences for people.
type ExplainedBlob struct {
	explain.BlobExplanation
	Explanation []string `json:"explanation" nullable:"false" doc:"The explanation in sentences"`
}

// TransformSchema marks the member "review" as one that may be null.
func (ExplainedBlob) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return Nullable(s, "review")
}

// ExplainedManifest is like ExplainedBlob, for a manifest.
type ExplainedManifest struct {
	explain.ManifestExplanation
	Explanation []string `json:"explanation" nullable:"false" doc:"The explanation in sentences"`
}

// TransformSchema marks members that may be null.
func (ExplainedManifest) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return Nullable(s, "review", "subject")
}

// Activity is what garbage collection has deleted, by day.
type Activity struct {
	Days []gc.DayReclaimed `json:"days" nullable:"false" doc:"The oldest first. Days on which nothing was deleted are left out"`
}

// RetryRequest is the body of a request to retry failed reviews.
type RetryRequest struct {
	Kind gc.ReviewKind `json:"kind,omitempty" enum:"blob,manifest," doc:"What to retry; empty: both"`
}

// Retried counts the failed reviews that were queued again.
type Retried struct {
	Blobs     int64 `json:"blobs"`
	Manifests int64 `json:"manifests"`
}

// Inputs of the operations on garbage collection.
type (
	BlobItem struct {
		Digest oci.Digest `path:"digest" doc:"Digest of the blob"`
	}
	ActivityQuery struct {
		Days int `query:"days" minimum:"1" maximum:"31" default:"30" doc:"How many days, of which today is the last"`
	}
	RetryInput struct{ Body *RetryRequest }
)

// The operations on garbage collection.
var (
	GetGCStatus = Operation[struct{}, gc.GCStatus]{
		ID: "getGCStatus", Method: http.MethodGet, Path: "/gc/status", Tag: "gc", Access: auth.Operate, Summary: "Get the status of garbage collection",
	}
	ExplainBlob = Operation[BlobItem, ExplainedBlob]{
		ID: "explainBlob", Method: http.MethodGet, Path: "/gc/explain/{digest}", Tag: "gc", Access: auth.Operate,
		Summary: "Explain why a blob is kept, or when it will be deleted", Errors: []int{http.StatusNotFound},
	}
	// The explanation contains the error text of a failed review, which may disclose internals of the
	// database. Therefore the operation needs auth.Administer.
	ExplainManifest = Operation[ManifestItem, ExplainedManifest]{
		ID: "explainManifest", Method: http.MethodGet, Path: "/repository/{repository}/manifest/{digest}/explain", Tag: "gc,manifest", Access: auth.Administer,
		Summary: "Explain why a manifest is kept, or when it will be deleted", Errors: []int{http.StatusNotFound},
	}
	GetGCActivity = Operation[ActivityQuery, Activity]{
		ID: "getGCActivity", Method: http.MethodGet, Path: "/gc/activity", Tag: "gc", Access: auth.Operate,
		Summary: "Get what garbage collection has deleted, by day", Description: "Days are UTC. The registry remembers 31 of them.",
	}
	RetryGC = Operation[RetryInput, Retried]{
		ID: "retryGC", Method: http.MethodPost, Path: "/gc/retry", Tag: "gc", Access: auth.Operate, Summary: "Try reviews again that failed too often",
		Description: "A review that failed too often is not tried again. This makes all such reviews due again.",
		Errors:      []int{http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
	}
)
