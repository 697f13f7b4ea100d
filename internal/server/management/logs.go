package management

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// LogFilter has the query parameters that select audit entries. Parameters that Quay has too
// have Quay's names. LogFilter is exported because huma finds parameters only in exported
// types.
type LogFilter struct {
	From      string   `query:"from" doc:"The first moment, as 2026-03-05T07:00:00Z or 2026-03-05" example:"2026-03-05"`
	To        string   `query:"to" doc:"The moment that ends the time asked for, in the same forms" example:"2026-03-06"`
	StartTime string   `query:"starttime" doc:"Quay's form of from: a day, 03/05/2026" example:"03/05/2026"`
	EndTime   string   `query:"endtime" doc:"Quay's form of to: the last day, 03/05/2026" example:"03/05/2026"`
	Kinds     []string `query:"kind" doc:"Kinds of entries, with commas between them" example:"push_repo,delete_tag"`
	Actor     string   `query:"actor" doc:"Who did it"`
	Performer string   `query:"performer" doc:"Quay's name of actor"`
	Tag       string   `query:"tag" doc:"A tag"`
	Digest    string   `query:"digest" doc:"Digest of a manifest or blob"`
	Policy    string   `query:"policy" doc:"UUID of an auto-prune policy"`
	Run       string   `query:"run" doc:"UUID of a run of auto-pruning, or of a deletion of tags by a pattern"`
}

// filter converts the parameters to an audit.Filter for the given namespace or repository. If
// both names are "", the filter selects entries of the whole registry. The error that it
// returns is meant for the client.
func (f LogFilter) filter(namespace, repository string) (out audit.Filter, err error) {
	out = audit.Filter{Namespace: namespace, Repository: repository, Actor: f.Actor, Tag: f.Tag}
	if out.From, err = either("from", f.From, "starttime", f.StartTime, 0); err != nil {
		return out, err
	}
	if out.To, err = either("to", f.To, "endtime", f.EndTime, 1); err != nil {
		return out, err
	}
	if !out.From.IsZero() && !out.To.IsZero() && !out.From.Before(out.To) {
		return out, badQuery("to", "it is not after the first moment, %s", out.From.Format(time.RFC3339))
	}
	if f.Performer != "" {
		if f.Actor != "" && f.Actor != f.Performer {
			return out, badQuery("performer", "it is the same as actor, and both are given")
		}
		out.Actor = f.Performer
	}
	for _, k := range f.Kinds {
		if !slices.Contains(audit.Kinds(), audit.Kind(k)) {
			return out, badQuery("kind", "there is no kind %q: the kinds are %s", k, joinKinds())
		}
		out.Kinds = append(out.Kinds, audit.Kind(k))
	}
	if f.Digest != "" {
		if out.Digest, err = oci.ParseDigest(f.Digest); err != nil {
			return out, badQuery("digest", "%v", err)
		}
	}
	if out.Policy, err = parseUUID("policy", f.Policy); err != nil {
		return out, err
	}
	out.Run, err = parseUUID("run", f.Run)
	return out, err
}

// badQuery returns the error for an invalid query parameter.
func badQuery(name, format string, args ...any) error {
	return server.Refusal(http.StatusBadRequest, "query parameter "+name+": "+format, args...).
		WithDetail(map[string]string{"parameter": name})
}

func joinKinds() string {
	var names []string
	for _, k := range audit.Kinds() {
		names = append(names, string(k))
	}
	return strings.Join(names, ", ")
}

func parseUUID(name, text string) (uuid.UUID, error) {
	if text == "" {
		return uuid.Nil, nil
	}
	id, err := uuid.Parse(text)
	if err != nil {
		return id, badQuery(name, "%q is not a UUID", text)
	}
	return id, nil
}

// either parses a time that the client may give in one of two query parameters. Purser's
// parameter has the name `name` and the value `text`, a time or a day. Quay's parameter has the
// name `quays` and the value `day`; `days` is added to this day: 0 if the beginning of the day
// is meant, 1 if its end is. The result is the zero time if neither parameter has a value, and
// an error if both have one or if the value can't be parsed.
func either(name, text, quays, day string, days int) (time.Time, error) {
	switch {
	case text != "" && day != "":
		return time.Time{}, badQuery(quays, "it is the same as %s, and both are given", name)
	case day != "":
		t, err := time.Parse("01/02/2006", day)
		if err != nil {
			return t, badQuery(quays, "%q is not a day like 03/05/2026, the month first", day)
		}
		return t.AddDate(0, 0, days), nil
	case text == "":
		return time.Time{}, nil
	}
	for _, form := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(form, text); err == nil {
			return t, nil
		}
	}
	return time.Time{}, badQuery(name, "%q is not a time like 2026-03-05T07:00:00Z, nor a day like 2026-03-05", text)
}

// LogPage selects a page of the log.
type LogPage struct {
	NextPage string `query:"next_page" doc:"Where to go on: next_page of the answer before"`
	Limit    int    `query:"limit" minimum:"1" default:"100" doc:"Most entries of the answer. More than 1000 counts as 1000"`
}

// LogPerformer is the actor of an audit entry in Quay's format. It is exported because huma
// makes JSON schemas only of exported types.
type LogPerformer struct {
	Kind    string `json:"kind" enum:"user,worker" doc:"worker: the registry itself" example:"user"`
	Name    string `json:"name"`
	IsRobot bool   `json:"is_robot"`
}

// logEntry is an audit entry in Quay's format, followed by members that only Purser has.
type logEntry struct {
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

func newLogEntry(e audit.Entry) logEntry {
	out := logEntry{
		Kind: e.Kind, Metadata: map[string]any{}, IP: e.Address, Datetime: quayTime(e.Time),
		ID: e.ID, Time: e.Time, Namespace: e.Namespace, Repository: e.Repository, RepositoryID: e.RepositoryID,
		Tag: e.Tag, Digest: e.Digest, UserAgent: e.UserAgent, RequestID: e.RequestID,
	}
	if text, ok := e.Detail.(json.RawMessage); ok {
		if json.Unmarshal(text, &out.Metadata) != nil { // not a JSON object
			out.Metadata = map[string]any{"detail": text}
		}
	}
	tell := func(name, value string) {
		if value != "" {
			out.Metadata[name] = value
		}
	}
	tell("namespace", e.Namespace)
	tell("repo", strings.TrimPrefix(e.Repository, e.Namespace+"/"))
	tell("tag", e.Tag)
	tell("manifest_digest", e.Digest.String())
	tell("user-agent", e.UserAgent)
	switch e.Actor {
	case "":
	case audit.ActorAutoprune, audit.ActorExpiration:
		out.Performer = &LogPerformer{"worker", e.Actor, false}
		tell("performer", e.Actor) // Quay has it here
	default:
		out.Performer = &LogPerformer{"user", e.Actor, strings.Contains(e.Actor, "+")}
	}
	if e.Policy != uuid.Nil {
		out.Policy = &e.Policy
	}
	if e.Run != uuid.Nil {
		out.Run = &e.Run
	}
	if out.Pulls = e.Pulls; !e.FirstTime.IsZero() {
		out.FirstTime = &e.FirstTime
	}
	return out
}

// quayTime formats a time as Quay does, in the format of dates in e-mail. It returns "" for the
// zero time.
func quayTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("Mon, 02 Jan 2006 15:04:05") + " -0000"
}

// logList is a page of the log.
type logList struct {
	StartTime string     `json:"start_time" doc:"The start of the time that was asked for, or empty"`
	EndTime   string     `json:"end_time" doc:"The end of the time that was asked for, or empty"`
	Logs      []logEntry `json:"logs" nullable:"false" doc:"Newest first"`
	NextPage  string     `json:"next_page,omitempty" doc:"Where to go on. Missing on the last page; a page may be empty and not be the last"`
}

// emptyPages limits how many pages of the audit log one request reads in search of an entry
// that matches the filter.
const emptyPages = 5

// logs returns one page of the audit entries that match `f`. It reads pages of the audit log
// until one has a matching entry, but at most emptyPages. If none of them has a matching entry,
// logs returns an empty page, although later pages may have matching entries. NextPage is the
// cursor of the next page, or "" if there is none.
func (a *API) logs(ctx context.Context, f audit.Filter, p LogPage) (*logList, error) {
	log := a.opt.Audit
	if log == nil {
		return nil, errNoLog
	}
	out := &logList{StartTime: quayTime(f.From), EndTime: quayTime(f.To), Logs: []logEntry{}, NextPage: p.NextPage}
	for range emptyPages {
		entries, next, err := log.List(ctx, f, out.NextPage, min(p.Limit, audit.MaxPage))
		if errors.Is(err, audit.ErrCursor) {
			return nil, badQuery("next_page", "%v", err)
		}
		if err != nil {
			return nil, err
		}
		out.NextPage = next
		for _, e := range entries {
			out.Logs = append(out.Logs, newLogEntry(e))
		}
		if len(entries) > 0 || next == "" {
			break
		}
	}
	return out, nil
}

var errNoLog = oci.Errorf(oci.Unavailable, "this process has no audit log")

// exportLogs first writes an audit entry about the export, and then streams all audit entries
// that `f` selects to the client. It keeps only one page of entries in memory at a time. If it
// fails in the middle, it closes the connection, so that the client notices.
func (a *API) exportLogs(ctx context.Context, f audit.Filter, detail map[string]any) (*huma.StreamResponse, error) {
	if a.opt.Audit == nil {
		return nil, errNoLog
	}
	if _, err := server.Observed(ctx).Lease.Take(ctx, listMemory); err != nil { // it reads page by page
		return nil, err
	}
	if err := a.logExport(ctx, f, detail); err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(c huma.Context) {
		r, w := humago.Unwrap(c)
		w.Header().Set("Content-Type", "application/x-ndjson")
		if _, err := a.opt.Audit.Export(r.Context(), w, f); err != nil {
			a.server.Fail(w, r, err)
		}
	}}, nil
}

// logExport writes an audit entry which says that a client exports the audit log.
func (a *API) logExport(ctx context.Context, f audit.Filter, detail map[string]any) error {
	return a.opt.Audit.Append(ctx, audit.Entry{
		Kind: audit.ExportLog, Namespace: f.Namespace, Repository: f.Repository, Detail: detail,
	})
}

// asked returns the filter parameters that the client gave: a map from the name of each
// parameter to its value.
func (f LogFilter) asked() map[string]any {
	out := map[string]any{}
	for name, value := range map[string]string{
		"from": f.From, "to": f.To, "starttime": f.StartTime, "endtime": f.EndTime, "kind": strings.Join(f.Kinds, ","),
		"actor": f.Actor, "performer": f.Performer, "tag": f.Tag, "digest": f.Digest, "policy": f.Policy, "run": f.Run,
	} {
		if value != "" {
			out[name] = value
		}
	}
	return out
}

// LogRepository has the path parameter that names a repository, LogNamespace the one that names
// a namespace. The operations on the audit log of a repository or namespace embed them in their
// inputs.
type (
	LogRepository struct {
		Repository string `path:"repository" doc:"Name of the repository. It need not exist any more" example:"library/alpine"`
	}
	LogNamespace struct {
		Namespace string `path:"orgname" doc:"Name of the namespace. It need not exist any more" example:"library"`
	}
)

func (a *API) addLogs() {
	type repoList struct {
		LogRepository
		LogFilter
		LogPage
	}
	type repoExport struct {
		LogRepository
		LogFilter
	}
	addLog(a, logTexts{"Repo", "/repository/{repository}", "a repository"},
		func(in *repoList) logRequest { return logRequest{"", in.Repository, in.LogFilter, in.LogPage} },
		func(in *repoExport) logRequest { return logRequest{"", in.Repository, in.LogFilter, LogPage{}} })
	type orgList struct {
		LogNamespace
		LogFilter
		LogPage
	}
	type orgExport struct {
		LogNamespace
		LogFilter
	}
	addLog(a, logTexts{"Org", "/organization/{orgname}", "a namespace, with its repositories"},
		func(in *orgList) logRequest { return logRequest{in.Namespace, "", in.LogFilter, in.LogPage} },
		func(in *orgExport) logRequest { return logRequest{in.Namespace, "", in.LogFilter, LogPage{}} })
	type allList struct {
		LogFilter
		LogPage
	}
	type allExport struct{ LogFilter }
	type userList struct {
		NamespaceOfUser
		LogFilter
		LogPage
	}
	type userExport struct {
		NamespaceOfUser
		LogFilter
	}
	addLog(a, logTexts{"User", "/user", "the namespace of the client's account, which is " + anonymousNamespace + " if nobody is logged in"},
		func(in *userList) logRequest { return logRequest{in.namespace, "", in.LogFilter, in.LogPage} },
		func(in *userExport) logRequest { return logRequest{in.namespace, "", in.LogFilter, LogPage{}} })
	addLog(a, logTexts{"All", "/superuser", "the whole registry"},
		func(in *allList) logRequest { return logRequest{"", "", in.LogFilter, in.LogPage} },
		func(in *allExport) logRequest { return logRequest{"", "", in.LogFilter, LogPage{}} })
}

// logRequest is a request for a part of the log.
type logRequest struct {
	namespace, repository string
	filter                LogFilter
	page                  LogPage
}

// logTexts has the texts that differ between the operations on the audit log of a repository, a
// namespace and the whole registry: the operation's name, its path, and the words for its
// description.
type logTexts struct{ name, path, of string }

// errors returns the HTTP statuses of errors that the operations with these texts may answer,
// without those that every operation of the API may answer: 404 if the path names a repository
// or namespace, else none.
func (t logTexts) errors() []int {
	if strings.Contains(t.path, "{") { // authorization may depend on whether the repository or namespace exists
		return []int{http.StatusNotFound}
	}
	return nil
}

// aggregatedDays is how many days of the audit log are counted if a request names no start time:
// the days before the end time that the request names, or else before now.
const aggregatedDays = 31

// aggregatedLogs counts entries by kind and day.
type aggregatedLogs struct {
	Aggregated []aggregatedLog `json:"aggregated" nullable:"false" doc:"The oldest day first"`
}

type aggregatedLog struct {
	Kind     audit.Kind `json:"kind" example:"push_repo"`
	Count    int64      `json:"count"`
	Datetime string     `json:"datetime" doc:"The beginning of the day in UTC, as Quay writes it" example:"Thu, 05 Mar 2026 00:00:00 -0000"`
}

// aggregate counts the audit entries that `f` selects, by kind and day. If `f` has no start
// time, it counts the aggregatedDays days before the end time of `f`, or before now if `f` has
// no end time. It returns an error if it would have to examine more than audit.MaxAggregated
// entries.
func (a *API) aggregate(ctx context.Context, f audit.Filter) (*aggregatedLogs, error) {
	if a.opt.Audit == nil {
		return nil, errNoLog
	}
	if f.From.IsZero() {
		f.From = time.Now()
		if !f.To.IsZero() {
			f.From = f.To
		}
		f.From = f.From.AddDate(0, 0, -aggregatedDays)
	}
	done, err := a.turn(ctx) // it may read a million entries, by a connection that pushes need
	if err != nil {
		return nil, err
	}
	defer done()
	list, all, err := a.opt.Audit.Aggregate(ctx, f)
	if err != nil {
		return nil, err
	}
	if !all {
		return nil, badQuery("starttime", "there are more than %d entries to look at: ask for fewer days, by starttime and endtime", audit.MaxAggregated)
	}
	out := &aggregatedLogs{[]aggregatedLog{}}
	for _, c := range list {
		out.Aggregated = append(out.Aggregated, aggregatedLog{c.Kind, c.Count, quayTime(c.Day)})
	}
	return out, nil
}

// addLog adds the operations that list, export and count the audit entries of one scope: a
// repository, a namespace or the whole registry. The functions `list` and `export` return the
// scope and the filter from the input of an operation.
func addLog[L, E any](a *API, text logTexts, list func(*L) logRequest, export func(*E) logRequest) {
	type listOutput struct{ Body *logList }
	add(a, auth.Administer, huma.Operation{
		OperationID: "list" + text.name + "Logs", Method: http.MethodGet, Path: text.path + "/logs", Tags: []string{"logs"},
		Summary: "List the audit log of " + text.of,
		Description: "Newest first. Each answer looks at a bounded number of entries for those that the filter selects, " +
			"so it may have fewer than limit, even none, and still a next_page. What was deleted keeps its log.",
		Errors: text.errors(),
	}, func(ctx context.Context, in *L) (*listOutput, error) {
		req := list(in)
		f, err := a.logFilter(ctx, req)
		if err != nil {
			return nil, err
		}
		page, err := a.logs(ctx, f, req.page)
		return &listOutput{page}, err
	})
	add(a, auth.Administer, huma.Operation{
		OperationID: "export" + text.name + "Logs", Method: http.MethodGet, Path: text.path + "/logs/export", Tags: []string{"logs"},
		Summary: "Export the audit log of " + text.of,
		Description: "All entries that the filter selects, newest first, each as a line of JSON (application/x-ndjson), " +
			"streamed. That somebody has exported the log is itself an entry.",
		Errors: text.errors(),
	}, func(ctx context.Context, in *E) (*huma.StreamResponse, error) {
		req := export(in)
		f, err := a.logFilter(ctx, req)
		if err != nil {
			return nil, err
		}
		return a.exportLogs(ctx, f, req.filter.asked())
	})
	type aggregateOutput struct{ Body *aggregatedLogs }
	add(a, auth.Administer, huma.Operation{
		OperationID: "getAggregate" + text.name + "Logs", Method: http.MethodGet, Path: text.path + "/aggregatelogs", Tags: []string{"logs"},
		Summary: "Count the entries of the audit log of " + text.of,
		Description: "By day and kind. Without a time that is asked for: of the last 31 days. Where more than a million entries " +
			"have to be looked at, it is refused.",
		Errors: text.errors(),
	}, func(ctx context.Context, in *E) (*aggregateOutput, error) {
		req := export(in)
		f, err := a.logFilter(ctx, req)
		if err != nil {
			return nil, err
		}
		out, err := a.aggregate(ctx, f)
		return &aggregateOutput{out}, err
	})
}
