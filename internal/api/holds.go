package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/oci"
)

// HoldReport is a report of what is deployed.
type HoldReport struct {
	Digests []HoldItem   `json:"digests,omitzero" doc:"The whole list. An item may also be the digest alone, as a text"`
	Base    *int64       `json:"base,omitempty" doc:"The revision to which add and remove refer. Absent: whatever there is"`
	Add     []HoldItem   `json:"add,omitempty" doc:"Digests that the reporter holds in addition. An item may also be the digest alone, as a text"`
	Remove  []oci.Digest `json:"remove,omitempty" doc:"Digests that the reporter holds no more"`
	// Unresolved are images in use for which the reporter found no digest.
	Unresolved []UnresolvedImage `json:"unresolved,omitempty" doc:"Images in use for which the reporter found no digest. What an earlier report held under these names stays held"`
}

// HoldItem is a digest of a report.
type HoldItem struct {
	Digest oci.Digest `json:"digest"`
	UsedBy string     `json:"used_by,omitempty" doc:"What uses it, for people: the first 256 bytes are kept" example:"pod shop/web-7d9"`
	Names  []string   `json:"names,omitempty" doc:"Names of images, such as that of a tag, by which the reporter found the digest; up to 1 KiB each. More than 100 count as *, which stands for all" example:"registry.example.com/acme/web:v1"`
}

// UnresolvedImage is an image for which a reporter found no digest.
type UnresolvedImage struct {
	Name   string `json:"name" doc:"The name, as in the names of digests" example:"registry.example.com/acme/web:v1"`
	UsedBy string `json:"used_by,omitempty" doc:"What uses it, for people" example:"pod shop/web-7d9"`
	Reason string `json:"reason,omitempty" doc:"Why it could not be resolved, for people"`
}

// UnmarshalJSON reads a digest alone, or an object.
func (i *HoldItem) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, &i.Digest)
	}
	type plain HoldItem
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode((*plain)(i)); err != nil {
		return err
	}
	if i.Digest.IsZero() {
		return errors.New("the member digest is missing")
	}
	return nil
}

// HoldReporterList is a page of reporters.
type HoldReporterList struct {
	Reporters []hold.Reporter `json:"reporters" nullable:"false"`
	NextPage  string          `json:"next_page,omitempty" doc:"Where to go on. Absent on the last page"`
}

// Entries implements Page.
func (l HoldReporterList) Entries() ([]hold.Reporter, string) { return l.Reporters, l.NextPage }

// HeldDigestList is a page of the digests of a reporter.
type HeldDigestList struct {
	Digests  []hold.Held `json:"digests" nullable:"false"`
	NextPage string      `json:"next_page,omitempty" doc:"Where to go on. Absent on the last page"`
}

// Entries implements Page.
func (l HeldDigestList) Entries() ([]hold.Held, string) { return l.Digests, l.NextPage }

// RepositoryHoldList is a page of the holds of a repository.
type RepositoryHoldList struct {
	Holds    []hold.Holder `json:"holds" nullable:"false"`
	NextPage string        `json:"next_page,omitempty" doc:"Where to go on. Absent on the last page"`
}

// Inputs of the operations on holds.
type (
	HoldReporterQuery struct {
		Namespace string `query:"namespace" doc:"List the reporters of this namespace. Absent: those of the whole registry"`
		NextPage  string `query:"next_page" doc:"Where to go on: next_page of the page before"`
		Limit     int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"Most reporters of a page. It has fewer if they are long"`
	}
	HoldReporterItem struct {
		Reporter  string `path:"reporter" doc:"Name of the reporter: a cluster, a host, a pipeline. A slash in it is written as %2F" example:"prod-eu"`
		Namespace string `query:"namespace" doc:"The namespace in which its holds are in force. Absent: the whole registry" example:"acme"`
	}
	// HoldReporting is the input of a report without its body, which is read as a stream.
	HoldReporting struct {
		HoldReporterItem
		Lease string `query:"lease" doc:"How long the holds last without another report, such as 90m, 24h or 7d: from a minute to 30 days. Absent: as before; 24h for a new reporter" example:"24h"`
		Kind  string `query:"kind" doc:"What the reporter is, for people" example:"kubernetes"`

		Cluster        string `query:"cluster" doc:"What the report is of, such as the UID of a cluster. If earlier reports were of another one, the report is refused" example:"0b1ec1e5-5b3c-4b6b-9b5e-0d2f0a8a5a0e"`
		ReplaceCluster bool   `query:"replace_cluster" doc:"The reporter is of this cluster from now on, whatever it was of before"`
		AllowEmpty     bool   `query:"allow_empty" doc:"The whole list may be empty although the reporter holds something"`
	}
	HoldReportInput struct {
		HoldReporting
		Body HoldReport
	}
	HeldDigestQuery struct {
		HoldReporterItem
		NextPage string `query:"next_page" doc:"Where to go on: next_page of the page before"`
		Limit    int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"Digests per page"`
	}
	RepositoryHoldQuery struct {
		Repository string `path:"repository" doc:"Name of the repository" example:"acme/app"`
		Digest     string `query:"digest" doc:"Only who holds this manifest, or a relative of it"`
		NextPage   string `query:"next_page" doc:"Where to go on: next_page of the page before"`
		Limit      int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"Holds per page"`
	}
)

// Place returns the place of the reporter.
func (i HoldReporterItem) Place() hold.Place {
	return hold.Place{Namespace: i.Namespace, Reporter: i.Reporter}
}

// Resource returns the repository.
func (i RepositoryHoldQuery) Resource() auth.Resource { return auth.OfRepository(i.Repository) }

// holdOperation describes an operation on reporters, which needs the access in the reporter's
// namespace.
func holdOperation[I, O any](id, method, path, summary, description string, access auth.Access) Operation[I, O] {
	return Operation[I, O]{
		ID: id, Method: method, Path: "/holds" + path, Tag: "hold", Access: auth.Ping, Checks: access,
		Summary:     summary,
		Description: description + "Needs the access " + access.String() + " in the namespace; without one, the access operate.",
		Errors:      []int{http.StatusNotFound},
	}
}

// The operations on holds.
var (
	ReportHolds = Operation[HoldReportInput, hold.Reported]{
		ID: "reportHolds", Method: http.MethodPut, Path: "/holds/{reporter}", Tag: "hold", Access: auth.Ping, Checks: auth.Hold,
		Summary: "Report which digests are deployed",
		Description: "Nothing that is held is deleted by policies, by garbage collection, or by clients that don't say override_holds: neither the digests, " +
			"nor their indexes, children and attached manifests. The holds of a reporter end together when its lease is over; each report renews it, also " +
			"one that changes nothing. A digest that isn't there yet is remembered. The body is the whole list, as JSON or as a stream of one item per " +
			"line; or a difference: add, remove, and base, the revision to which it refers. A report is stored as a whole or not at all. " +
			"Needs the access hold in the namespace; without one, the access operate. A reporter belongs to the account that made it; others need the " +
			"access delete to report under its name. What a whole list leaves out stays held until the lease ends that it had; a difference that " +
			"removes a digest ends its hold at once if the account has the access delete, which a shorter lease needs too. 409: the reporter is of " +
			"another cluster; or the list is empty, the reporter holds something, and allow_empty isn't set; or base isn't its revision.",
		Errors: []int{http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
	}
	ListHoldReporters = holdOperation[HoldReporterQuery, HoldReporterList]("listHoldReporters", http.MethodGet, "",
		"List the reporters of holds, by name", "", auth.Maintain)
	GetHoldReporter = holdOperation[HoldReporterItem, hold.Reporter]("getHoldReporter", http.MethodGet, "/{reporter}",
		"Get a reporter of holds", "", auth.Maintain)
	DeleteHoldReporter = holdOperation[HoldReporterItem, None]("deleteHoldReporter", http.MethodDelete, "/{reporter}",
		"Delete a reporter and its holds", "The holds end at once. If the reporter reports again, it is a new one. ", auth.Delete)
	ListHeldDigests = holdOperation[HeldDigestQuery, HeldDigestList]("listHeldDigests", http.MethodGet, "/{reporter}/digests",
		"List the digests that a reporter holds", "", auth.Maintain)

	ListRepositoryHolds = Operation[RepositoryHoldQuery, RepositoryHoldList]{
		ID: "listRepositoryHolds", Method: http.MethodGet, Path: OfRepository + "/holds", Tag: "hold", Access: auth.Maintain,
		Summary: "List who holds manifests of a repository",
		Description: "Lists the digests of this repository that reporters hold, in the order of the digests. With digest: the reporters " +
			"that hold this manifest or a relative, such as its index, which keep it.",
		Errors: []int{http.StatusNotFound},
	}
)
