package management

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/server"
	"github.com/purser-registry/purser/internal/webhook"
)

// callbackInput is the input of a request to export the audit log to a callback.
type callbackInput struct {
	api.LogCallback
	base string // scheme and host of the client's request; "": it named no host
}

// Resolve records the scheme and host of the URL to which the client has sent the request. huma
// calls Resolve for each request.
func (in *callbackInput) Resolve(ctx huma.Context) []error {
	if u := (url.URL{Scheme: "http", Host: ctx.Host()}); u.Host != "" {
		if server.Observed(ctx.Context()).Encrypted() {
			u.Scheme = "https"
		}
		in.base = u.String()
	}
	return nil
}

// exportBody is the body that the callback receives, in Quay's format.
type exportBody struct {
	ExportID        uuid.UUID `json:"export_id"`
	StartTime       string    `json:"start_time"` // a day; "": from the oldest entry on
	EndTime         string    `json:"end_time"`   // the last day
	Namespace       *string   `json:"namespace"`
	Repository      *string   `json:"repository"` // its name below the namespace
	ExportedDataURL string    `json:"exported_data_url"`
	Status          string    `json:"status"`
}

// quayDay is the layout (package time) of a day in Quay's parameters and callbacks: month, day,
// year.
const quayDay = "01/02/2006"

// addExports adds Quay's requests to export the audit log. The client names a callback URL. The
// registry sends a request to it that contains another URL, from which the entries can be
// fetched.
func (a *API) addExports() {
	if a.opt.Webhooks == nil {
		return
	}
	for _, p := range api.QueueLogExport.Places {
		register(a, api.QueueLogExport.In(p), func(ctx context.Context, in *callbackInput) (*answer[api.QueuedExport], error) {
			id, err := a.queueExport(ctx, p.Path, in)
			return &answer[api.QueuedExport]{api.QueuedExport{ExportID: id}}, err
		})
	}
}

// queueExport queues the callback: a request to the client's callback URL, whose body says at
// which URL the exported entries can be fetched. It returns the export's id.
func (a *API) queueExport(ctx context.Context, path string, in *callbackInput) (id uuid.UUID, err error) {
	if a.opt.Audit == nil {
		return id, errNoLog
	}
	if err := a.checkExport(in); err != nil {
		return id, err
	}
	if err := addDays(&in.LogFilter, in.Body); err != nil {
		return id, err
	}
	f, err := a.logFilter(ctx, in.LogExport)
	if err != nil {
		return id, err
	}
	if now := time.Now().UTC(); f.To.IsZero() || f.To.After(now) {
		f.To = now // entries written later don't appear, whenever the link is used
	}
	id = uuid.New()
	body := exportBody{ExportID: id, EndTime: f.To.Add(-1).UTC().Format(quayDay), Status: "success"}
	if !f.From.IsZero() {
		body.StartTime = f.From.UTC().Format(quayDay)
	}
	namespace, repository, _ := strings.Cut(in.Repository, "/")
	namespace = cmp.Or(namespace, in.Namespace)
	if namespace != "" {
		body.Namespace = &namespace
	}
	if repository != "" {
		body.Repository = &repository
	}
	body.ExportedDataURL = a.exportBase(in) + apiRoot + exportPath(path, in.LogExport, f)
	detail := askedLogs(in.LogFilter)
	detail["export_id"] = id
	if u, err := url.Parse(in.Body.CallbackURL); err == nil { // log only this: the rest of the URL may hold a secret
		detail["callback_host"] = u.Host
	}
	// Callbacks count for ids, since the next of an account's or namespace's name is another.
	account, of := "", namespace
	if o := server.Observed(ctx); o.Account() != "" {
		account = strconv.FormatInt(o.Principal.ID, 10)
	}
	if f.NamespaceID != 0 {
		of = strconv.FormatInt(f.NamespaceID, 10)
	}
	return id, a.opt.Webhooks.Call(ctx, webhook.Callback{
		ID: id, URL: in.Body.CallbackURL, Event: string(audit.ExportLog), Body: body,
		Account: account, Namespace: of,
		Entry: audit.Entry{Kind: audit.ExportLog, Namespace: f.Namespace, Repository: f.Repository, Detail: detail},
	})
}

// checkExport returns an error for the client if the export's callback could not be sent: the
// request names an e-mail address, has no callback URL, or has a callback URL that the registry
// may not call. It also returns an error if no host is known for the URL of the exported
// entries.
func (a *API) checkExport(in *callbackInput) error {
	wrong := func(field, text string) error {
		return server.Refusal(http.StatusBadRequest, "%s: %s", field, text).WithDetail(map[string]string{"field": field})
	}
	switch {
	case in.Body.CallbackEmail != "":
		return wrong("callback_email", "the registry sends no mail; give a callback_url, or fetch the log from …/logs/export")
	case in.Body.CallbackURL == "":
		return wrong("callback_url", "it is missing, so nobody would be notified; give one, or fetch the log from …/logs/export")
	case a.exportBase(in) == "":
		return wrong("callback_url", "the request names no Host, so there is no URL to tell; set http.external_url")
	}
	return a.opt.Webhooks.CheckCallback("callback_url", in.Body.CallbackURL)
}

// exportBase returns the scheme and host for the URL from which exported entries can be
// fetched: the external URL if it is set, else the host to which the client sent its request.
// The external URL comes first, because the host that the client used may be a name, such as
// localhost, under which the callback's receiver can't reach the registry.
func (a *API) exportBase(in *callbackInput) string {
	return cmp.Or(a.server.ExternalURL(), in.base)
}

// exportPath returns the path and query, below apiRoot, of the URL from which the entries that
// the filter `f` selects can be fetched. `path` is the path of the scope with placeholders,
// such as /repository/{repository}.
func exportPath(path string, in api.LogExport, f audit.Filter) string {
	path = strings.NewReplacer("{repository}", url.PathEscape(in.Repository), "{orgname}", url.PathEscape(in.Namespace)).Replace(path)
	query := url.Values{}
	for name, value := range askedLogs(in.LogFilter) {
		query.Set(name, value.(string))
	}
	for _, day := range []string{"starttime", "endtime"} {
		query.Del(day)
	}
	if !f.From.IsZero() {
		query.Set("from", f.From.UTC().Format(time.RFC3339Nano))
	}
	query.Set("to", f.To.UTC().Format(time.RFC3339Nano))
	return path + "/logs/export?" + query.Encode()
}

// addDays copies the days starttime and endtime from the body into the filter. According to Quay's
// manual, clients send starttime and endtime in the body; Purser accepts them in the query too.
// addDays returns an error if body and query have different days, or if a day is malformed.
func addDays(f *api.LogFilter, b api.ExportForm) error {
	given := map[string]struct {
		query *string
		body  string
	}{"starttime": {&f.StartTime, b.StartTime}, "endtime": {&f.EndTime, b.EndTime}}
	for name, days := range given {
		if days.body == "" {
			continue
		}
		day, err := time.Parse(quayDay, days.body)
		if err != nil {
			day, err = time.Parse(time.DateOnly, days.body)
		}
		if err != nil {
			return server.Refusal(http.StatusBadRequest, "%s: %q is not a day like 03/05/2026 or 2026-03-05", name, days.body).
				WithDetail(map[string]string{"field": name})
		}
		text := day.Format(quayDay)
		if *days.query != "" && *days.query != text {
			return badQuery(name, "the body has another one, %s", days.body)
		}
		*days.query = text
	}
	return nil
}
