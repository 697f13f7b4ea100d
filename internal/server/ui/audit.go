package ui

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/server/ui/format"

	"github.com/purser-registry/purser/internal/api"
)

func (u *UI) addAudit() { u.add("/ui/audit", showAudit, nil) }

// logEntry is an entry of the audit log.
type logEntry struct{ api.LogEntry }

// logEntries returns entries as pages show them.
func logEntries(list []api.LogEntry) []logEntry {
	out := make([]logEntry, len(list))
	for i, e := range list {
		out[i] = logEntry{e}
	}
	return out
}

// PolicyID returns the UUID of the policy that did it, "" for none.
func (e logEntry) PolicyID() string {
	policy, _ := e.IDs()
	return policy
}

// Actor says who did it.
func (e logEntry) Actor() string {
	switch {
	case e.Performer != nil:
		return e.Performer.Name
	case e.IP == "":
		return "the registry"
	}
	return "not logged in"
}

// Words says what happened.
func (e logEntry) Words() string {
	text := kindWords(string(e.Kind))
	if e.Pulls > 1 {
		text += fmt.Sprintf(" (%d times)", e.Pulls)
	}
	return text
}

// shownDetails is how many details of an entry the page shows.
const shownDetails = 12

// Details has what the entry says beside the columns, by name.
func (e logEntry) Details() (list []field) {
	shown := map[string]bool{"namespace": true, "repo": true, "tag": true, "manifest_digest": true, "user-agent": true, "performer": true}
	for _, name := range slices.Sorted(maps.Keys(e.Metadata)) {
		if shown[name] || len(list) == shownDetails {
			continue
		}
		value, isText := e.Metadata[name].(string)
		if !isText {
			if text, err := json.Marshal(e.Metadata[name]); err == nil {
				value = string(text)
			}
		}
		list = append(list, field{name, value})
	}
	policy, run := e.IDs()
	for _, f := range []field{{"digest", e.Digest.String()}, {"policy", policy}, {"run", run}, {"address", e.IP}, {"client", format.Agent(e.UserAgent)}, {"request", e.RequestID}} {
		if f.Value != "" {
			list = append(list, f)
		}
	}
	return list
}

// filterOf returns the parameters by which the API selects entries. A day "to" is the last one.
func (q *request) filterOf() (f api.LogFilter, problem string) {
	f = api.LogFilter{Actor: q.query("actor"), Address: q.query("address"), Tag: q.query("tag"), Run: q.query("run"), Policy: q.query("policy"), Digest: q.query("digest")}
	if kinds := q.query("kind"); kinds != "" {
		f.Kinds = strings.Split(kinds, ",")
	}
	for name, to := range map[string]*string{"from": &f.From, "to": &f.To} {
		text := q.query(name)
		if text == "" {
			continue
		}
		day, err := time.Parse(time.DateOnly, text)
		if err != nil {
			return f, text + " is not a day like 2026-03-05."
		}
		if name == "to" {
			day = day.AddDate(0, 0, 1)
		}
		*to = day.Format(time.DateOnly)
	}
	return f, ""
}

// kindGroup are the kinds of entries about one subject.
type kindGroup struct {
	Name  string
	Kinds []field
}

// auditData is the page of the audit log.
type auditData struct {
	Query           map[string]string
	Groups          []kindGroup
	Refused         string
	CSV, JSONLines  string // links of exports
	Filtered, Whole bool   // Whole: the entries of no namespace are shown too
	Logs            []logEntry
	Pages           pages
}

// showAudit lists the audit log of a place, or of all that the client may read, newest first.
func showAudit(q *request) error {
	scope := api.LogAt{Repository: strings.Trim(q.query("repository"), "/")}
	if scope.Repository == "" {
		scope.Namespace = q.query("namespace")
	}
	keep := q.keep("namespace", "repository", "kind", "actor", "address", "tag", "run", "policy", "digest", "from", "to")
	d := auditData{Query: map[string]string{"kind": ""}, Groups: kindGroups, Filtered: len(keep) > 0, Whole: q.operator() && scope == (api.LogAt{})}
	for name := range keep {
		d.Query[name] = keep.Get(name)
	}
	filter, refused := q.filterOf()
	if d.Refused = refused; refused == "" {
		list, err := q.logs(scope, filter)
		switch {
		case err == nil:
			d.Logs, d.Pages = logEntries(list.Logs), q.pagesOf(keep, list.NextPage)
			d.CSV, d.JSONLines = logExport(scope, filter, "csv"), logExport(scope, filter, "")
		case mayAskAgain(q, err):
			d.Refused = format.Sentence(err.Error())
		default:
			return err
		}
	}
	p := page{
		Title: "Audit log", Section: "audit", Lead: "Who did what and when, newest first. What was deleted keeps its log. Times and days are UTC.", Data: d,
		Same: []same{command("purser audit list"), command("purser audit export"), call("GET", api.ListMaintainedLogs.URL(api.MaintainedLogs{})), call("GET", api.ExportMaintainedLogs.URL(api.MaintainedLogDownload{}))},
	}
	var err error
	p.Crumbs, err = q.crumbOf(scope)
	if err != nil {
		return err
	}
	return q.show("audit", p)
}

// crumbOf returns the page of a place above that of its log, none if it was deleted.
func (q *request) crumbOf(at api.LogAt) (list []crumb, err error) {
	switch {
	case at.Repository != "":
		list = []crumb{{at.Repository, link("/ui/repositories/{repository}", at.Repository)}}
		_, err = run(q, api.GetRepository, api.RepositorySizes{InRepository: repositoryOf(at.Repository), SizeLinks: oneLink})
	case at.Namespace != "":
		list = []crumb{{at.Namespace, link("/ui/namespaces/{namespace}", at.Namespace)}}
		_, err = run(q, api.GetNamespace, api.NamespaceSizes{InNamespace: api.InNamespace{Namespace: at.Namespace}, SizeLinks: oneLink})
	}
	if statusOf(err) != 0 {
		return nil, nil
	}
	return list, err
}

// mayAskAgain says whether other fields of the form may give an answer, so that the page shows the error.
func mayAskAgain(q *request, err error) bool {
	switch statusOf(err) {
	case http.StatusBadRequest, http.StatusServiceUnavailable, http.StatusNotFound:
		return true
	case http.StatusForbidden:
		return q.account() != "" || q.open()
	}
	return false
}

// logs returns a page of the log of a place, or of all that the client may read.
func (q *request) logs(at api.LogAt, filter api.LogFilter) (api.LogList, error) {
	const shown = 50
	if at == (api.LogAt{}) {
		return run(q, api.ListMaintainedLogs, api.MaintainedLogs{LogFilter: filter, NextPage: q.query("page"), Limit: shown})
	}
	return run(q, api.ListLogs, api.LogQuery{LogExport: api.LogExport{LogAt: at, LogFilter: filter}, NextPage: q.query("page"), Limit: shown})
}

// logExport returns the link of an export of what logs lists.
func logExport(at api.LogAt, filter api.LogFilter, form string) string {
	if at == (api.LogAt{}) {
		return apiRoot + api.ExportMaintainedLogs.URL(api.MaintainedLogDownload{LogFilter: filter, LogForm: api.LogForm{Format: form}})
	}
	return apiRoot + api.ExportLogs.URL(api.LogDownload{LogExport: api.LogExport{LogAt: at, LogFilter: filter}, LogForm: api.LogForm{Format: form}})
}

// kindGroups are the kinds of entries of the audit log with what they mean, by subject, in the
// order of the filter.
var kindGroups = []kindGroup{
	{"Images and tags", []field{
		{"push_repo", "pushed"}, {"pull_repo", "pulled"}, {"push_repo_failed", "push was refused"}, {"pull_repo_failed", "pull was refused"},
		{"create_tag", "created the tag"}, {"move_tag", "moved the tag"}, {"delete_tag", "deleted the tag"}, {"delete_tag_failed", "deletion of the tag was refused"},
		{"revert_tag", "restored the tag"}, {"change_tag_expiration", "changed when the tag expires"}, {"change_tag_protection", "changed a rule that protects tags"},
		{"change_autoprune_exception", "changed whether the repository is an exception"}, {"free_space", "let the least recently used tags be deleted"},
		{"change_tag_immutability", "changed whether the tag is immutable"}, {"change_tag_labels", "changed which labels decide about tags"},
		{"delete_manifest", "deleted the manifest"}, {"delete_blob", "deleted the blob"},
	}},
	{"Repositories and namespaces", []field{
		{"create_repo", "created the repository"}, {"delete_repo", "deleted the repository"}, {"restore_repo", "restored the repository"}, {"purge_repo", "deleted the repository for good"},
		{"change_repo_visibility", "changed who may see the repository"}, {"org_create", "created the namespace"}, {"org_delete", "deleted the namespace"},
		{"org_restore", "restored the namespace"}, {"org_purge", "deleted the namespace for good"},
	}},
	{"Pruning", []field{
		{"autoprune_tag_delete", "a policy deleted the tag"}, {"run_autoprune", "asked for a run of pruning"}, {"undo_autoprune", "took a run of pruning back"}, {"change_autoprune_exemptions", "let policies select restored tags again"},
		{"announce_autoprune", "a policy announced deletions"}, {"ask_autoprune", "a policy asks for an approval"}, {"approve_autoprune", "approved deletions of a policy"},
		{"rest_autoprune", "a policy rests"}, {"confirm_autoprune", "confirmed warnings of a policy"},
		{"observe_autoprune", "a policy that only observes found tags"}, {"create_namespace_autoprune_policy", "created a policy of the namespace"},
		{"update_namespace_autoprune_policy", "changed a policy of the namespace"}, {"delete_namespace_autoprune_policy", "deleted a policy of the namespace"},
		{"create_repository_autoprune_policy", "created a policy of the repository"}, {"update_repository_autoprune_policy", "changed a policy of the repository"},
		{"delete_repository_autoprune_policy", "deleted a policy of the repository"}, {"change_default_autoprune_policy", "changed a default policy"},
	}},
	{"Deployed images", []field{
		{"report_holds", "reported what is deployed"}, {"hold_reporter_silent", "a reporter is silent"}, {"hold_reporter_ended", "a reporter’s holds have ended"}, {"delete_hold_reporter", "deleted a reporter"},
	}},
	{"Quotas", []field{
		{"org_create_quota", "gave a quota"}, {"org_change_quota", "changed a quota"}, {"org_delete_quota", "took a quota away"}, {"org_create_quota_limit", "added a limit to a quota"},
		{"org_change_quota_limit", "changed a limit of a quota"}, {"org_delete_quota_limit", "removed a limit of a quota"}, {"recount_quota", "had a quota counted again"},
	}},
	{"Accounts and roles", []field{
		{"login_success", "logged in"}, {"login_failure", "failed to log in"}, {"logout_success", "logged out"}, {"user_create", "created an account"}, {"user_delete", "deleted an account"},
		{"user_enable", "enabled an account"}, {"user_disable", "disabled an account"}, {"change_user", "changed an account"}, {"user_change_password", "changed a password"},
		{"create_app_specific_token", "made a token"}, {"revoke_app_specific_token", "revoked a token"}, {"user_end_log_ins", "ended all log-ins of an account"}, {"rotate_token_keys", "replaced the keys of tokens"},
		{"create_robot", "created a robot"}, {"delete_robot", "deleted a robot"}, {"regenerate_robot_token", "gave a robot a new secret"},
		{"create_robot_federation", "let a pipeline log in as a robot"}, {"delete_robot_federation", "let no pipeline log in as a robot"}, {"federated_robot_token_exchange", "a pipeline logged in as a robot"},
		{"org_create_team", "created a team"}, {"org_delete_team", "deleted a team"}, {"org_set_team_role", "changed a team’s role"}, {"org_set_team_description", "changed a team’s description"},
		{"org_add_team_member", "added a member to a team"}, {"org_remove_team_member", "removed a member from a team"}, {"enable_team_sync", "let groups decide who is in a team"},
		{"disable_team_sync", "let groups no longer decide who is in a team"}, {"add_repo_permission", "gave a role"}, {"change_repo_permission", "changed a role"}, {"delete_repo_permission", "took a role away"},
	}},
	{"Operation", []field{
		{"run_gc", "ran garbage collection"}, {"retry_gc", "retried failed reviews"}, {"run_check", "checked the store"}, {"adopt_store", "adopted a store"},
		{"run_backup", "made a backup"}, {"run_restore", "restored a backup"}, {"run_import", "imported another registry"}, {"finish_import", "finished the import"},
		{"run_loose_foreign_keys", "ran loose foreign keys"}, {"export_logs", "exported the log"}, {"change_maintenance", "did maintenance"},
		{"create_webhook", "created a webhook"}, {"update_webhook", "changed a webhook"}, {"delete_webhook", "deleted a webhook"}, {"redeliver_webhook", "sent notices of a webhook again"},
	}},
}

// wordsOfKinds has the words of each kind.
var wordsOfKinds = func() map[string]string {
	words := make(map[string]string)
	for _, group := range kindGroups {
		for _, kind := range group.Kinds {
			words[kind.Name] = kind.Value
		}
	}
	return words
}()

// kindWords says what a kind of entry means. A newer version may have written kinds without words.
func kindWords(kind string) string {
	if words, ok := wordsOfKinds[kind]; ok {
		return words
	}
	return strings.ReplaceAll(kind, "_", " ")
}
