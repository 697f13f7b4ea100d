package management

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
	"github.com/purser-registry/purser/internal/server/runs"
)

// auditFilter converts parameters to a filter for the entries of a place. The error that it returns is
// meant for the client.
func auditFilter(at api.LogAt, f api.LogFilter) (out audit.Filter, err error) {
	out = audit.Filter{Namespace: at.Namespace, Repository: at.Repository, Actor: f.Actor, Tag: f.Tag}
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
	if out.Address, err = parseNetwork(f.Address); err != nil {
		return out, err
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

// parseNetwork reads an address or a network, "" for none.
func parseNetwork(text string) (network netip.Prefix, err error) {
	if text == "" {
		return network, nil
	}
	if network, err = netip.ParsePrefix(text); err == nil {
		return network, nil
	}
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		return network, badQuery("address", "%q is neither an address like 192.0.2.7 nor a network like 192.0.2.0/24", text)
	}
	return netip.PrefixFrom(a, a.BitLen()), nil
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

func newLogEntry(e audit.Entry) api.LogEntry {
	out := api.LogEntry{
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
		out.Performer = &api.LogPerformer{Kind: "worker", Name: e.Actor}
		tell("performer", e.Actor) // Quay has it here
	default:
		out.Performer = &api.LogPerformer{Kind: "user", Name: e.Actor, IsRobot: strings.Contains(e.Actor, "+")}
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
	return t.UTC().Format(api.QuayTime)
}

// emptyPages limits how many pages of the audit log one request reads in search of an entry
// that matches the filter.
const emptyPages = 5

// logs returns one page of the audit entries that match the filter. It reads pages of the audit log
// until one has a matching entry, but at most emptyPages. If none of them has a matching entry,
// logs returns an empty page, although later pages may have matching entries. NextPage is the
// cursor of the next page, or "" if there is none.
func (a *API) logs(ctx context.Context, in *api.LogQuery) (*api.LogList, error) {
	f, err := a.logFilter(ctx, in.LogExport)
	if err != nil {
		return nil, err
	}
	return a.logsOf(ctx, f, in.NextPage, in.Limit)
}

func (a *API) logsOf(ctx context.Context, f audit.Filter, page string, limit int) (*api.LogList, error) {
	log := a.opt.Audit
	if log == nil {
		return nil, errNoLog
	}
	out := &api.LogList{StartTime: quayTime(f.From), EndTime: quayTime(f.To), Logs: []api.LogEntry{}, NextPage: page}
	for range emptyPages {
		entries, next, err := log.List(ctx, f, out.NextPage, min(limit, audit.MaxPage))
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
// that the filter selects to the client. It keeps only one page of entries in memory at a time. If it
// fails in the middle, it closes the connection, so that the client notices.
func (a *API) exportLogs(ctx context.Context, in *api.LogDownload) (*huma.StreamResponse, error) {
	f, err := a.logFilter(ctx, in.LogExport)
	if err != nil {
		return nil, err
	}
	return a.exportOf(ctx, f, in.LogFilter, in.Format)
}

// exportOf exports the entries that a filter selects, which the client has asked for by parameters.
func (a *API) exportOf(ctx context.Context, f audit.Filter, asked api.LogFilter, format string) (*huma.StreamResponse, error) {
	if a.opt.Audit == nil {
		return nil, errNoLog
	}
	if _, err := server.Observed(ctx).Lease.Take(ctx, listMemory); err != nil { // it reads page by page
		return nil, err
	}
	entries := []audit.Entry{{Kind: audit.ExportLog, Namespace: f.Namespace, Repository: f.Repository, Detail: askedLogs(asked)}}
	if f.Among != nil { // each namespace's log tells that it was exported
		entries = nil
		for _, n := range f.Among {
			entries = append(entries, audit.Entry{Kind: audit.ExportLog, Namespace: n.Name, Detail: askedLogs(asked)})
		}
	}
	if err := a.opt.Audit.Append(ctx, entries...); err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(c huma.Context) {
		r, w := humago.Unwrap(c)
		form, contentType := audit.Form(audit.Lines), "application/x-ndjson"
		if format == "csv" {
			form, contentType = audit.CSV, "text/csv; charset=utf-8; header=present"
		}
		w.Header().Set("Content-Type", contentType)
		if _, err := a.opt.Audit.Export(r.Context(), w, f, form); err != nil {
			a.server.Fail(w, r, err)
		}
	}}, nil
}

// askedLogs returns the filter parameters that the client gave: a map from the name of each parameter
// to its value.
func askedLogs(f api.LogFilter) map[string]any {
	out := map[string]any{}
	for name, value := range map[string]string{
		"from": f.From, "to": f.To, "starttime": f.StartTime, "endtime": f.EndTime, "kind": strings.Join(f.Kinds, ","),
		"actor": f.Actor, "address": f.Address, "performer": f.Performer, "tag": f.Tag, "digest": f.Digest, "policy": f.Policy, "run": f.Run,
	} {
		if value != "" {
			out[name] = clip(value)
		}
	}
	return out
}

// mostAsked is how many bytes of a filter's value are kept in the log.
const mostAsked = 300

func clip(text string) string {
	if len(text) > mostAsked {
		return strings.ToValidUTF8(text[:mostAsked], "") + "…"
	}
	return text
}

// addLogs binds the operations on the audit log.
func (a *API) addLogs() {
	serve(a, api.ListLogs, a.logs)
	register(a, api.ExportLogs, a.exportLogs)
	serve(a, api.AggregateLogs, a.aggregate)
	serve(a, api.ListMaintainedLogs, a.maintainedLogs)
	register(a, api.ExportMaintainedLogs, a.exportMaintainedLogs)
}

func (a *API) maintainedLogs(ctx context.Context, in *api.MaintainedLogs) (*api.LogList, error) {
	f, err := a.maintainedFilter(ctx, in.LogFilter)
	if err != nil {
		return nil, err
	}
	return a.logsOf(ctx, f, in.NextPage, in.Limit)
}

func (a *API) exportMaintainedLogs(ctx context.Context, in *api.MaintainedLogDownload) (*huma.StreamResponse, error) {
	f, err := a.maintainedFilter(ctx, in.LogFilter)
	if err != nil {
		return nil, err
	}
	return a.exportOf(ctx, f, in.LogFilter, in.Format)
}

// aggregatedDays is how many days of the audit log are counted if a request names no start time:
// the days before the end time that the request names, or else before now.
const aggregatedDays = 31

// aggregate counts the audit entries that the filter selects, by kind and day. If the filter has no
// start time, it counts the aggregatedDays days before its end time, or before now if it has no end
// time. It returns an error if it would have to examine more than audit.MaxAggregated
// entries.
func (a *API) aggregate(ctx context.Context, in *api.LogExport) (*api.AggregatedLogs, error) {
	f, err := a.logFilter(ctx, *in)
	if err != nil {
		return nil, err
	}
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
	out := &api.AggregatedLogs{Aggregated: []api.AggregatedLog{}}
	for _, c := range list {
		out.Aggregated = append(out.Aggregated, api.AggregatedLog{Kind: c.Kind, Count: c.Count, Datetime: quayTime(c.Day)})
	}
	return out, nil
}

// The audit log and the runs of auto-pruning keep what was in a namespace that is deleted. Somebody
// else may make a namespace under the same name, and is shown nothing of that: only those who
// operate the registry see what has the same name. So it is with a repository's log, which the
// namespace's administrators may see too.

// seen returns the id of the namespace of this name to whose rows the client is limited, and when it
// was made; 0 if the client may see the rows of all namespaces that have had the name.
func (a *API) seen(ctx context.Context, namespace string) (id int64, born time.Time, err error) {
	err = a.server.Authorize(ctx, auth.Operate, auth.Registry)
	if code := oci.CodeOf(err); code != oci.Denied && code != oci.Unauthorized {
		return 0, born, err
	}
	return a.catalog.NamespaceRow(ctx, namespace)
}

// logFilter returns the filter of a request for a part of the log, limited to what the client may see.
func (a *API) logFilter(ctx context.Context, in api.LogExport) (audit.Filter, error) {
	f, err := auditFilter(in.LogAt, in.LogFilter)
	if err != nil {
		return f, err
	}
	if in.Namespace == "" && in.Repository == "" { // a token for policies isn't one for the whole registry
		return f, a.server.Authorize(ctx, auth.Operate, auth.Registry)
	}
	namespace := in.Namespace
	if namespace == "" {
		namespace, _, _ = strings.Cut(in.Repository, "/")
	}
	if f.NamespaceID, f.Born, err = a.seen(ctx, namespace); err != nil || f.NamespaceID == 0 || in.Repository == "" {
		return f, err
	}
	err = a.server.Authorize(ctx, api.ListLogs.Access, auth.OfNamespace(namespace))
	if code := oci.CodeOf(err); code != oci.Denied && code != oci.Unauthorized {
		return f, err
	}
	f.RepositoryID, err = a.browser.RepositoryID(ctx, in.Repository)
	return f, err
}

// maintainedNamespaces is how many namespaces a list or an export of the log takes at most: a page examines
// as many entries of each as there are entries that it may examine for each of them.
const maintainedNamespaces = 500

// maintainedFilter returns the filter for the log of the namespaces that the account maintains, or of the
// whole registry if it administers that.
func (a *API) maintainedFilter(ctx context.Context, asked api.LogFilter) (audit.Filter, error) {
	f, err := auditFilter(api.LogAt{}, asked)
	if err != nil {
		return f, err
	}
	if allowed, err := a.allows(ctx, auth.Operate, auth.Registry); allowed || err != nil {
		return f, err
	}
	f.Among = []audit.NamespaceIs{} // not nil, which would be the whole log
	list, more, err := a.opt.Accounts.Namespaces(ctx, server.Observed(ctx).Principal.ID, api.ListLogs.Access.Role(), "", maintainedNamespaces)
	if err != nil {
		return f, err
	}
	if more {
		return f, server.Refusal(http.StatusBadRequest, "you maintain more than %d namespaces: ask for the log of one. "+
			"That is the field Namespace of the page, a TARGET of purser audit, and GET /api/v1/organization/{orgname}/logs", maintainedNamespaces)
	}
	for _, in := range list {
		if allowed, err := a.allows(ctx, api.ListLogs.Access, auth.OfNamespace(in.Name)); err != nil {
			return f, err
		} else if allowed { // a token's limits may not, or its role isn't there any more
			f.Among = append(f.Among, audit.NamespaceIs{Name: in.Name, ID: in.ID, Born: in.Made})
		}
	}
	return f, nil
}

// allows says whether the client has an access. The error is that of a database that can't say it.
func (a *API) allows(ctx context.Context, access auth.Access, of auth.Resource) (bool, error) {
	err := a.server.Authorize(ctx, access, of)
	if code := oci.CodeOf(err); code == oci.Denied || code == oci.Unauthorized {
		return false, nil
	}
	return err == nil, err
}

// logAct writes an audit entry for an operator's action. The caller does the action afterwards,
// and only if logAct returns no error. If the registry has no audit log, logAct does nothing.
func (a *API) logAct(ctx context.Context, kind audit.Kind, detail map[string]any) error {
	if a.opt.Audit == nil {
		return nil
	}
	return a.opt.Audit.Append(ctx, audit.Entry{Kind: kind, Detail: detail})
}

// logRun returns a function that writes an audit entry for a run and then calls `work`. If the
// entry can't be written, the function returns the error and doesn't call `work`. `ctx` is the
// context of the request that started the run: the audit entry names this request's client.
// `work` gets the context of the run.
func logRun[R any](ctx context.Context, a *API, kind audit.Kind, detail map[string]any,
	work func(ctx context.Context, r *runs.Run[R]) error,
) func(ctx context.Context, r *runs.Run[R]) error {
	from := audit.SourceOf(ctx)
	return func(ctx context.Context, r *runs.Run[R]) error {
		status, _ := r.View()
		detail["task"] = status.ID
		if err := a.logAct(audit.WithSource(ctx, from), kind, detail); err != nil {
			return err
		}
		return work(ctx, r)
	}
}
