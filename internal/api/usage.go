package api

import (
	"net/http"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/diskspace"
	"github.com/purser-registry/purser/internal/usage"
)

// RegistryUsage is what the registry stores, and how that grew.
type RegistryUsage struct {
	usage.RegistrySums
	Disks        []diskspace.Disk    `json:"disks" nullable:"false" doc:"The disks on which this replica keeps data; none if that is in S3 and another PostgreSQL"`
	Namespaces   []usage.Sums        `json:"namespaces" nullable:"false" doc:"Those that store most, the largest first"`
	Repositories []usage.Sums        `json:"repositories" nullable:"false" doc:"Those that store most, the largest first"`
	Days         []usage.RegistryDay `json:"days" nullable:"false" doc:"The oldest first. Days on which nothing was measured are left out"`
}

// UsageQuery asks what the registry stores.
type UsageQuery struct {
	Limit int `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"How many namespaces and repositories are listed"`
	Days  int `query:"days" minimum:"1" maximum:"400" default:"30" doc:"How many days, of which today is the last"`
}

// GetUsage tells operators alone what namespaces share: own bytes say whether others have the same content.
var GetUsage = Operation[UsageQuery, RegistryUsage]{
	ID: "getUsage", Method: http.MethodGet, Path: "/usage", Tag: "system", Access: auth.Operate,
	Summary: "Get what the registry stores, and how that grew",
	Description: "Sizes are measured now and then, again a minute to a day after the last time, while clients push and delete: " +
		"they are as of moments between measured_from and measured_at. Days are UTC, and the registry remembers 400 of them.",
}

// NamespaceUsage is what a namespace stores, and how that grew.
type NamespaceUsage struct {
	usage.NamespaceSums
	Repositories []usage.Sums `json:"repositories" nullable:"false" doc:"Those that store something, the largest first"`
	NextPage     string       `json:"next_page,omitempty" doc:"Where the next page of repositories begins"`
	Days         []usage.Day  `json:"days" nullable:"false" doc:"The oldest first. Days before the first measurement are left out"`
	// Pruned has tags and no bytes: what deleted tags free is known when garbage collection deletes what nothing has.
	Pruned []autoprune.PrunedDay `json:"pruned" nullable:"false" doc:"Tags that auto-pruning deleted, by the day on which its run began, the oldest first. Days without any are left out"`
}

// Entries implements Page.
func (u NamespaceUsage) Entries() ([]usage.Sums, string) { return u.Repositories, u.NextPage }

// NamespaceUsageQuery asks what a namespace stores.
type NamespaceUsageQuery struct {
	InNamespace
	Paging
	Days int `query:"days" minimum:"1" maximum:"400" default:"30" doc:"How many days, of which today is the last"`
}

// GetNamespaceUsage says nothing of other namespaces but to operators.
var GetNamespaceUsage = Operation[NamespaceUsageQuery, NamespaceUsage]{
	ID: "getNamespaceUsage", Method: http.MethodGet, Path: "/organization/{orgname}/usage", Tag: "namespace", Access: auth.Maintain,
	Summary: "Get what a namespace stores, and how that grew",
	Description: "Sizes are measured again a minute to a day after the last time, while clients push and delete. If that happens between two pages, " +
		"a repository whose size changed may be on both or on none. Days are UTC, and the registry remembers 400 of them.",
	Errors: []int{http.StatusNotFound},
}
