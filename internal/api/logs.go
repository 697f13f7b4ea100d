package api

import (
	"cmp"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
)

// LogFilter has the parameters that select audit entries. Those that Quay has too have Quay's names.
type LogFilter struct {
	From      string   `query:"from" doc:"The first moment, as 2026-03-05T07:00:00Z or 2026-03-05" example:"2026-03-05"`
	To        string   `query:"to" doc:"The moment that ends the time asked for, in the same forms" example:"2026-03-06"`
	StartTime string   `query:"starttime" doc:"Quay's form of from: a day, 03/05/2026" example:"03/05/2026"`
	EndTime   string   `query:"endtime" doc:"Quay's form of to: the last day, 03/05/2026" example:"03/05/2026"`
	Kinds     []string `query:"kind" doc:"Kinds of entries, with commas between them" example:"push_repo,delete_tag"`
	Actor     string   `query:"actor" doc:"Who did it"`
	Address   string   `query:"address" doc:"The client's address, or a network of addresses" example:"192.0.2.0/24"`
	Performer string   `query:"performer" doc:"Quay's name of actor"`
	Tag       string   `query:"tag" doc:"A tag"`
	Digest    string   `query:"digest" doc:"Digest of a manifest or blob"`
	Policy    string   `query:"policy" doc:"UUID of an auto-prune policy"`
	Run       string   `query:"run" doc:"UUID of a run of auto-pruning, or of a deletion of tags by a pattern"`
}

// LogPerformer is the actor of an audit entry in Quay's format.
type LogPerformer struct {
	Kind    string `json:"kind" enum:"user,worker" doc:"worker: the registry itself" example:"user"`
	Name    string `json:"name"`
	IsRobot bool   `json:"is_robot"`
}

// LogEntry is an audit entry in Quay's format, followed by members that only Purser has.
type LogEntry struct {
	Kind      audit.Kind     `json:"kind" example:"push_repo"`
	Metadata  map[string]any `json:"metadata" doc:"What the entry is about"`
	IP        string         `json:"ip,omitempty" doc:"Address of the client"`
	Datetime  string         `json:"datetime" doc:"The time as Quay writes it" example:"Thu, 05 Mar 2026 07:00:00 -0000"`
	Performer *LogPerformer  `json:"performer,omitempty" doc:"Who did it. Missing if nobody was logged in. For deletions by a policy: the worker; policy and run say which"`

	ID           int64      `json:"id"`
	Time         time.Time  `json:"time"`
	Namespace    string     `json:"namespace_name,omitempty"`
	Repository   string     `json:"repository,omitempty" doc:"Name of the repository, with its namespace"`
	RepositoryID int64      `json:"repository_id,omitempty" doc:"Missing if the repository was deleted"`
	Tag          string     `json:"tag,omitempty"`
	Digest       oci.Digest `json:"digest,omitzero"`
	Policy       *uuid.UUID `json:"policy,omitempty" format:"uuid" doc:"Auto-prune policy"`
	Run          *uuid.UUID `json:"run,omitempty" format:"uuid" doc:"Run of auto-pruning, or the deletion by a pattern that deleted the tag or after which it was restored"`
	UserAgent    string     `json:"user_agent,omitempty"`
	RequestID    string     `json:"request_id,omitempty" doc:"The X-Request-Id of the answer, which the registry's log has too"`
	Pulls        int        `json:"pulls,omitempty" doc:"For pull_repo: the number of pulls. Pulls of the same tag or manifest by one client within a second are one entry"`
	FirstTime    *time.Time `json:"first_time,omitempty" doc:"For several pulls: the time of the first. datetime and request_id are those of the last"`
}

// IDs are the policy and the run of the entry as text, "" for none.
func (e LogEntry) IDs() (policy, run string) {
	if e.Policy != nil {
		policy = e.Policy.String()
	}
	if e.Run != nil {
		run = e.Run.String()
	}
	return policy, run
}

// Reason is why a policy or a person did it, "" if the entry doesn't say it.
func (e LogEntry) Reason() string {
	reason, _ := e.Metadata["reason"].(string)
	return reason
}

// Entry returns the entry in the form of the log itself, which exports have. Of its detail it lacks what Quay's
// format repeats from other members.
func (e LogEntry) Entry() audit.Entry {
	out := audit.Entry{
		ID: e.ID, Time: e.Time, Kind: e.Kind, Address: e.IP, UserAgent: e.UserAgent, RequestID: e.RequestID, Namespace: e.Namespace,
		Repository: e.Repository, RepositoryID: e.RepositoryID, Tag: e.Tag, Digest: e.Digest, Pulls: e.Pulls,
	}
	if e.Performer != nil {
		out.Actor = e.Performer.Name
	}
	if e.Policy != nil {
		out.Policy = *e.Policy
	}
	if e.Run != nil {
		out.Run = *e.Run
	}
	if e.FirstTime != nil {
		out.FirstTime = *e.FirstTime
	}
	detail := maps.Clone(e.Metadata)
	for name, value := range map[string]string{
		"namespace": e.Namespace, "repo": strings.TrimPrefix(e.Repository, e.Namespace+"/"), "tag": e.Tag, "manifest_digest": e.Digest.String(),
		"user-agent": e.UserAgent, "performer": out.Actor,
	} {
		if text, ok := detail[name].(string); ok && text == value {
			delete(detail, name)
		}
	}
	if len(detail) > 0 {
		out.Detail = detail
	}
	return out
}

// LogList is a page of the log.
type LogList struct {
	StartTime string     `json:"start_time" doc:"The start of the time that was asked for, or empty"`
	EndTime   string     `json:"end_time" doc:"The end of the time that was asked for, or empty"`
	Logs      []LogEntry `json:"logs" nullable:"false" doc:"Newest first"`
	NextPage  string     `json:"next_page,omitempty" doc:"Where to go on. Missing on the last page; a page may be empty and not be the last"`
}

// Entries implements Page.
func (l LogList) Entries() ([]LogEntry, string) { return l.Logs, l.NextPage }

// AggregatedLogs counts entries by kind and day.
type AggregatedLogs struct {
	Aggregated []AggregatedLog `json:"aggregated" nullable:"false" doc:"The oldest day first"`
}

// AggregatedLog is the number of entries of a kind on a day.
type AggregatedLog struct {
	Kind     audit.Kind `json:"kind" example:"push_repo"`
	Count    int64      `json:"count"`
	Datetime string     `json:"datetime" doc:"The beginning of the day in UTC, as Quay writes it" example:"Thu, 05 Mar 2026 00:00:00 -0000"`
}

// QuayTime is the layout (package time) of a time in UTC as Quay writes it.
const QuayTime = "Mon, 02 Jan 2006 15:04:05 -0000"

// ExportForm is the body of a request to export the audit log to a callback.
type ExportForm struct {
	_             struct{} `additionalProperties:"true"`
	CallbackURL   string   `json:"callback_url,omitempty" doc:"Where the notice with the entries' address is sent: http or https, without a user, and at a public address unless webhooks.allow_private is set" example:"https://hooks.example.com/exported"`
	CallbackEmail string   `json:"callback_email,omitempty" doc:"Refused: the registry sends no mail"`
	StartTime     string   `json:"starttime,omitempty" doc:"The same as the query's starttime, or a day as 2026-03-05" example:"03/05/2026"`
	EndTime       string   `json:"endtime,omitempty" doc:"The same as the query's endtime, or a day as 2026-03-05" example:"03/05/2026"`
}

// QueuedExport names an export to a callback.
type QueuedExport struct {
	ExportID uuid.UUID `json:"export_id" format:"uuid" doc:"Names the export in the callback, in the audit log and in the registry's log"`
}

// LogAt is At for the audit log.
type LogAt struct {
	Repository string `path:"repository" required:"false" doc:"Name of the repository. It need not exist any more" example:"library/alpine"`
	Namespace  string `path:"orgname" required:"false" doc:"Name of the namespace. It need not exist any more" example:"library"`
}

// Resource returns the place.
func (a LogAt) Resource() auth.Resource { return At(a).Resource() }

func (a LogAt) place() string { return cmp.Or(At(a).place(), OfSuperusers) }

// Inputs of the operations on the audit log.
type (
	LogExport struct {
		LogAt
		LogFilter
	}
	LogQuery struct {
		LogExport
		NextPage string `query:"next_page" doc:"Where to go on: next_page of the answer before"`
		Limit    int    `query:"limit" minimum:"1" default:"100" doc:"Most entries of the answer. More than 1000 counts as 1000"`
	}
	LogDownload struct {
		LogExport
		LogForm
	}
	// LogForm is the form of an export.
	LogForm struct {
		Format string `query:"format" enum:"jsonl,csv" default:"jsonl" doc:"jsonl: lines of JSON. csv: a table, whose first line has the columns' names"`
	}
	MaintainedLogs struct {
		LogFilter
		NextPage string `query:"next_page" doc:"Where to go on: next_page of the answer before"`
		Limit    int    `query:"limit" minimum:"1" default:"100" doc:"Most entries of the answer. More than 1000 counts as 1000"`
	}
	MaintainedLogDownload struct {
		LogFilter
		LogForm
	}
	LogCallback struct {
		LogExport
		Body ExportForm
	}
)

// logOperation describes an operation on the audit log of a place, at a path below the place's.
func logOperation[I, O any](id string, access auth.Access, method, path, summary, description string, errors ...int) Operation[I, O] {
	return Operation[I, O]{
		ID: id, Method: method, Path: "{place}" + path, Tag: "logs", Access: access, Summary: summary, Description: description,
		Places: []Place{
			{"Repo", OfRepository, "a repository"}, {"Org", OfNamespace, "a namespace, with its repositories"},
			{"User", OfOwn, ownNamespace}, {"All", OfSuperusers, "the whole registry"},
		},
		Errors: errors, NamedErrors: []int{http.StatusNotFound}, // the access may depend on whether the place exists
	}
}

// The operations on the audit log. The answer of ExportLogs is a stream of lines of JSON, so that it is
// opened, not called.
var (
	ListLogs = logOperation[LogQuery, LogList]("list{Place}Logs", auth.Maintain, http.MethodGet, "/logs", "List the audit log of {place}",
		"Newest first. Each answer looks at a bounded number of entries for those that the filter selects, "+
			"so it may have fewer than limit, even none, and still a next_page. What was deleted keeps its log.")
	ExportLogs = logOperation[LogDownload, None]("export{Place}Logs", auth.Maintain, http.MethodGet, "/logs/export", "Export the audit log of {place}",
		"All entries that the filter selects, newest first, each as a line of JSON (application/x-ndjson) or "+
			"of CSV, streamed. In CSV, a text that spreadsheets would take for a formula has an apostrophe before it. That somebody has exported the log is itself an entry.")
	AggregateLogs = logOperation[LogExport, AggregatedLogs]("getAggregate{Place}Logs", auth.Maintain, http.MethodGet, "/aggregatelogs", "Count the entries of the audit log of {place}",
		"By day and kind. Without a time that is asked for: of the last 31 days. Where more than a million entries "+
			"have to be looked at, it is refused.")
	QueueLogExport = logOperation[LogCallback, QueuedExport]("queue{Place}LogsExport", auth.Administer, http.MethodPost, "/exportlogs", "Notify a URL of where the audit log of {place} can be fetched",
		"callback_url gets a POST with export_id, start_time, end_time, namespace, repository, status and "+
			"exported_data_url, which is the path of the export (logs/export) with this filter, up to now. A callback that fails "+
			"is tried again for up to an hour. 429: too many callbacks wait, of the account, for the namespace or of all.",
		http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusTooManyRequests).
		needing(map[string]any{"callback_url": "https://hooks.example.com/exports"})
	ListMaintainedLogs = Operation[MaintainedLogs, LogList]{
		ID: "listMaintainedLogs", Method: http.MethodGet, Path: "/logs", Tag: "logs", Access: auth.LoggedIn,
		Summary: "List the audit log of all namespaces that the account maintains",
		Description: "Newest first; for an administrator of the registry, the whole log. As for the log of one namespace, a page may have " +
			"fewer entries than limit, even none. 400: the account maintains more than 500 namespaces, so that one has to be named.",
	}
	ExportMaintainedLogs = Operation[MaintainedLogDownload, None]{
		ID: "exportMaintainedLogs", Method: http.MethodGet, Path: "/logs/export", Tag: "logs", Access: auth.LoggedIn,
		Summary:     "Export the audit log of all namespaces that the account maintains",
		Description: "As the export of one namespace's log.",
	}
)
