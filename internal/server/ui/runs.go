package ui

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/purser-registry/purser/internal/server/ui/format"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/policy"
)

func (u *UI) addRuns() {
	u.add("/ui/runs", showRuns, nil)
	u.add("/ui/runs/{run}", showRun, nil)
	u.add("/ui/runs/{run}/undo", nil, undoRun)
}

// scopedList is the frame of a list of one namespace or, for those who may see it, of all.
type scopedList struct {
	Namespace string
	// Choices are namespaces from which to choose, if the client may not see the list of all.
	Choices []string
	Refused string // why the list can't be shown, "" if it can
}

// chooseNamespace returns the frame of a list that the registry refused with err. Other errors
// than a refusal for want of a role are returned as they are.
func (q *request) chooseNamespace(err error) (scopedList, error) {
	s := scopedList{Namespace: q.query("namespace")}
	if err == nil {
		return s, nil
	}
	if !hidden(err) || q.account() == "" && !q.open() {
		return s, err
	}
	list, failed := run(q, api.ListNamespaces, api.NamespaceQuery{Limit: 100})
	if failed != nil && !hidden(failed) {
		return s, failed
	}
	for _, n := range list.Namespaces {
		s.Choices = append(s.Choices, n.Name)
	}
	s.Refused = "Choose a namespace: the list of the whole registry is for those who operate it."
	if s.Namespace != "" {
		s.Refused = format.Sentence(err.Error())
	}
	return s, nil
}

type runsData struct {
	scopedList
	Runs  []autoprune.RunSummary
	Pages pages
	// FreeAt is the page that frees bytes in the namespace or, without one, in the registry; "": it isn't
	// for the client.
	FreeAt string
}

// showRuns lists the runs of auto-pruning, newest first.
func showRuns(q *request) error {
	list, err := run(q, api.ListPruneRuns, api.PruneRunQuery{Namespace: q.query("namespace"), Cursor: q.query("page"), Limit: 50})
	frame, err := q.chooseNamespace(err)
	if err != nil {
		return err
	}
	free := ""
	if frame.Refused == "" {
		free = q.freeAt(frame.Namespace)
	}
	return q.show("runs", page{
		Title: "Pruning", Section: "runs", Lead: "Runs of auto-pruning, newest first. Runs that had nothing to do share one line.",
		Data: runsData{frame, list.Runs, q.pagesOf(q.keep("namespace"), list.Next), free},
		Same: []same{command("purser prune runs %s", frame.Namespace), call("GET", "/autoprune/runs")},
	})
}

type runData struct {
	Run      autoprune.RunDetails
	Policies map[string]policyWords // by uuid; those that were deleted are missing
	Deleted  []logEntry             // tags
	NoLog    bool                   // the client may not read the audit log
	Pages    pages
}

// Name returns what a policy does, or its uuid.
func (d runData) Name(policy string) string {
	if w, ok := d.Policies[policy]; ok {
		return w.Does
	}
	return "policy " + policy + " (gone)"
}

func showRun(q *request) error { return q.showRun(q.values["run"], nil) }

// showRun shows what a run has deleted, by which policy and why.
func (q *request) showRun(id string, n *notice) error {
	var d runData
	var err error
	if d.Run, err = run(q, api.GetPruneRun, api.PruneRunItem{Run: id}); err != nil {
		return err
	}
	if err := q.deletedTags(&d); err != nil {
		return err
	}
	if err := q.policyNames(&d); err != nil {
		return err
	}
	p := page{
		Title: "Run of " + d.Run.Namespace, Section: "runs", Notice: n, Data: d,
		Crumbs: []crumb{{"Pruning", "/ui/runs"}, {d.Run.Namespace, "/ui/runs" + arguments("namespace", d.Run.Namespace)}},
		Same: []same{
			command("purser prune show %s", id), command("purser prune undo %s", id),
			command("purser audit list --kind %s", "autoprune_tag_delete"), call("GET", apiPath("/autoprune/runs/%s", id)),
		},
	}
	return q.show("run", p)
}

// deletedTags adds a page of the tags that the run has deleted.
func (q *request) deletedTags(d *runData) error {
	if d.Run.Deleted == 0 {
		return nil
	}
	part := api.LogExport{
		LogAt:     api.LogAt{Namespace: d.Run.Namespace},
		LogFilter: api.LogFilter{Kinds: []string{string(audit.AutopruneTagDelete)}, Run: d.Run.ID},
	}
	list, err := run(q, api.ListLogs, api.LogQuery{LogExport: part, NextPage: q.query("page"), Limit: 80})
	if err != nil {
		d.NoLog = hidden(err)
		if d.NoLog || statusOf(err) == http.StatusServiceUnavailable {
			return nil
		}
		return err
	}
	d.Deleted, d.Pages = logEntries(list.Logs), q.pagesOf(nil, list.NextPage)
	return nil
}

// policyNames reads what the run's policies do now. A run names a policy by its uuid alone.
func (q *request) policyNames(d *runData) error {
	d.Policies = make(map[string]policyWords)
	missing := make(map[string]bool)
	for _, t := range d.Deleted {
		missing[t.PolicyID()] = true
	}
	for _, r := range d.Run.PerRepository {
		for policy := range r.Policies {
			missing[policy] = true
		}
	}
	for _, t := range d.Run.Observed {
		missing[t.Policy] = true
	}
	for policy := range d.Run.Notices {
		missing[policy] = true
	}
	for _, a := range d.Run.Asks {
		missing[a.Policy] = true
	}
	places := []api.At{{Namespace: d.Run.Namespace}, {}}
	for i, r := range d.Run.PerRepository {
		if i < maxPolicyRepositories {
			places = append(places, api.At{Repository: r.Repository})
		}
	}
	for _, at := range places {
		if len(missing) == 0 {
			break
		}
		rows, err := q.policyRows(at, "", nil)
		if err != nil && !hidden(err) {
			return err
		}
		for _, row := range rows {
			d.Policies[row.UUID] = row.Words
			delete(missing, row.UUID)
		}
	}
	return nil
}

// maxPolicyRepositories is in how many repositories of a run the page looks for policies.
const maxPolicyRepositories = 10

// undoRun restores the tags that a run has deleted.
func undoRun(q *request) error {
	id := q.values["run"]
	done, err := run(q, api.UndoPruneRun, api.PruneRunUndo{PruneRunItem: api.PruneRunItem{Run: id}, Cursor: q.form.Get("cursor")})
	if err != nil {
		if statusOf(err) == http.StatusNotFound {
			return err
		}
		return q.showRun(id, noticeOf(err, ""))
	}
	parts := []string{format.Plural(done.Restored, "tag is back", "tags are back")}
	if done.Exists > 0 {
		parts = append(parts, format.Plural(done.Exists, "exists already", "exist already"))
	}
	if done.Gone > 0 {
		parts = append(parts, format.Plural(done.Gone, "can't come back, since its manifest is gone", "can't come back, since their manifests are gone"))
	}
	if done.InTrash > 0 {
		parts = append(parts, format.Plural(done.InTrash, "is in the trash", "are in the trash")+" with "+strings.Join(done.TrashNames, ", ")+": restore that, and undo again")
	}
	n := &notice{Text: strings.Join(parts, "; ") + ". The policies leave these tags alone until they get another rule, or somebody ends the exemption."}
	if done.Next != "" {
		n.Text += " There are more."
		n.Undo = &undo{Action: link("/ui/runs/{run}/undo", id), Text: "Go on", Fields: []field{{"cursor", done.Next}}}
	}
	return q.showRun(id, n)
}

// exceptions adds the repositories in which only their own policies delete: of a namespace the first
// page of them, of a repository itself.
func (q *request) exceptions(d *policiesData) error {
	var list api.ExceptionList
	var err error
	if d.Place.IsNamespace() {
		list, err = run(q, api.ListExceptions, api.ExceptionQuery{PruneNamespace: d.Place.whole()})
	} else {
		list, err = run(q, api.GetException, api.InRepository{Repository: d.Place.repository})
	}
	if err != nil && !hidden(err) {
		return err
	}
	d.Exceptions = list.Exceptions
	return nil
}

// except makes the page's repository an exception, or ends that.
func (q *request) except(p place, on bool) error {
	in := api.InRepository{Repository: p.repository}
	if on {
		_, err := run(q, api.MakeException, api.ExceptionNew{InRepository: in})
		return q.showPolicies(noticeOf(err, "The repository is an exception: only its own policies delete here. Without any, it keeps every tag."))
	}
	_, err := run(q, api.EndException, in)
	return q.showPolicies(noticeOf(err, "The policies of the namespace and of the registry delete here again."))
}

// exemptionsData is the content of the page on the tags of a repository that undos have restored.
type exemptionsData struct {
	Place      place
	Exemptions []policies.Exemption
	Pages      pages
}

// showExemptions lists the tags of a repository that policies don't select, since an undo has restored
// them.
func (q *request) showExemptions(n *notice) error {
	p := q.place()
	list, err := run(q, api.ListExemptions, api.ExemptionQuery{InRepository: api.InRepository{Repository: p.repository}, Paging: q.paging("page", 100)})
	if err != nil {
		return err
	}
	out := q.placePage(p, "/-/policies")
	out.Crumbs = append(out.Crumbs, crumb{p.Name(), p.Home("")}, crumb{"Policies", p.Home("/-/policies")})
	out.Title, out.Tabs, out.Notice = "Exemptions", nil, n
	out.Lead = "An undo has restored these tags. The policies that deleted them don't select them, until somebody ends that or the policy gets another rule."
	out.Data = exemptionsData{p, list.Exemptions, q.pagesOf(url.Values{}, list.NextPage)}
	out.Same = []same{command("purser prune exemptions %s", p.Name()), call("GET", p.api("/autoprune/exemptions"))}
	return q.show("exemptions", out)
}

// endExemptions lets policies select a tag again, or all tags of the repository.
func endExemptions(q *request) error {
	done, err := run(q, api.EndExemptions, api.ExemptionEnd{InRepository: api.InRepository{Repository: q.repository()}, Tag: q.form.Get("tag")})
	return q.showExemptions(noticeOf(err, "Ended "+format.Plural(done.Ended, "exemption", "exemptions")+". The next run may delete these tags."))
}

func (u *UI) addFree() {
	for _, path := range []string{"/ui/namespaces/{namespace}/-/free", "/ui/runs/free"} {
		u.add(path, func(q *request) error { return q.showFree(http.StatusOK, q.freeing(), nil) }, freeBytes)
	}
}

// freeData is the content of the page that frees bytes in a namespace or in the whole registry.
type freeData struct {
	Namespace        string // "" for the registry
	Bytes, UnusedFor string // as somebody has typed them
	Typed            typed
	Plan             *autoprune.FreePlan // nil: nobody has asked for one
	MayFree          bool
}

// freedRepositories is how many repositories of a plan the page lists.
const freedRepositories = 50

// Shown returns the first repositories of the plan.
func (d freeData) Shown() []autoprune.FreeRepository {
	return d.Plan.Repositories[:min(len(d.Plan.Repositories), freedRepositories)]
}

// Action is where the form is sent to.
func (d freeData) Action() string {
	if d.Namespace == "" {
		return "/ui/runs/free"
	}
	return link("/ui/namespaces/{namespace}/-/free", d.Namespace)
}

// api returns the path of the operation that plans, and carries out a plan.
func (d freeData) api() string {
	if d.Namespace == "" {
		return "/autoprune/free"
	}
	return apiPath("/organization/%s/autoprune/free", d.Namespace)
}

// freeing returns the page's content with what a form has sent.
func (q *request) freeing() freeData {
	d := freeData{Namespace: q.values["namespace"], Bytes: strings.TrimSpace(q.form.Get("bytes")), UnusedFor: "30d"}
	if age := strings.TrimSpace(q.form.Get("unused")); age != "" {
		d.UnusedFor = age
	}
	return d
}

// freeAt returns the page that frees bytes in a namespace or, if that is "", in the registry; "" if the
// client may not do that.
func (q *request) freeAt(namespace string) string {
	access, of := auth.Administer, auth.OfNamespace(namespace)
	if namespace == "" {
		access, of = auth.Operate, auth.Registry
	}
	if !q.may(access, of) {
		return ""
	}
	return freeData{Namespace: namespace}.Action()
}

// readPruning returns an error if the client may not even see how the namespace or, if that is "", the
// registry is pruned.
func (q *request) readPruning(namespace string) error {
	if namespace == "" {
		_, err := run(q, api.ListWaitingAsks, api.WaitingQuery{Limit: 1})
		return err
	}
	_, err := run(q, api.GetPruneState, api.PruneNamespace{Namespace: namespace})
	return err
}

// showFree shows the form, and the plan if there is one.
func (q *request) showFree(status int, d freeData, n *notice) error {
	if err := q.readPruning(d.Namespace); err != nil {
		return err
	}
	d.MayFree = q.freeAt(d.Namespace) != ""
	out := page{Section: "runs", Crumbs: []crumb{{"Pruning", "/ui/runs"}}}
	out.Same = []same{command("purser prune free 500GB"), call("POST", d.api())}
	if d.Namespace != "" {
		p := place{namespace: d.Namespace}
		out = q.placePage(p, "/-/policies")
		out.Crumbs = append(out.Crumbs, crumb{p.Name(), p.Home("")}, crumb{"Policies", p.Home("/-/policies")})
		out.Same = []same{command("purser prune free 500GB %s", p.Name()), call("POST", d.api())}
	}
	out.Title, out.Tabs, out.Notice, out.Data = "Free bytes", nil, n, d
	out.Lead = "Deletes the least recently used tags, until garbage collection can free as many bytes. What is protected, deployed, kept by policies or exempted stays."
	return q.showStatus(status, "free", out)
}

// freeBytes makes a plan, or carries out the plan that the page has shown.
func freeBytes(q *request) error {
	d := q.freeing()
	in := api.FreeInput{PolicyAt: api.PolicyAt{Namespace: d.Namespace}}
	var answer api.FreeAnswer
	var err error
	switch q.form.Get("do") {
	case "plan":
		var size policy.Size
		if size, err = policy.ParseSize(strings.ReplaceAll(d.Bytes, " ", "")); err != nil {
			err = fieldError{"bytes", format.Sentence(err.Error())}
			break
		}
		in.Body.Bytes, in.Body.UnusedFor = int64(size), d.UnusedFor
		if answer, err = run(q, api.FreeBytes, in); err == nil {
			d.Plan = answer.Plan
			return q.showFree(http.StatusOK, d, nil)
		}
	case "free":
		if in.Body.Plan = q.form.Get("plan"); in.Body.Plan == "" {
			err = formError("Ask for a preview first.")
			break
		}
		if answer, err = run(q, api.FreeBytes, in); err == nil {
			return q.showFree(http.StatusOK, d, startedNotice(answer.Started))
		}
	default:
		err = formError("The form doesn't say what to do.")
	}
	if status := formStatus(err); status != 0 {
		n := q.refuse(err, map[string]string{"unused_for": "unused", "unusedFor": "unused"})
		d.Typed = q.refused
		return q.showFree(status, d, n)
	}
	return err
}

// startedNotice says which runs will delete the tags of a plan.
func startedNotice(f *autoprune.Freeing) *notice {
	switch {
	case f == nil || len(f.Namespaces) == 0:
		return &notice{Bad: true, Text: "Nothing was started: the namespace is gone."}
	case len(f.Namespaces) == 1:
		return &notice{Text: "The next run of namespace " + f.Namespaces[0] + " deletes these tags, except those that were used since. The list of runs tells of it, and the run can be undone."}
	}
	return &notice{Text: "The next runs of " + format.Plural(len(f.Namespaces), "namespace", "namespaces") + " delete these tags, except those that were used since. The list of runs tells of them, and each run can be undone."}
}
