package ui

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/server/ui/format"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/policy"
)

// patternPath is the page on which people delete the tags that a pattern selects, or let them expire.
const patternPath = "/ui/repositories/{repository}/-/pattern"

func (u *UI) addPattern() {
	u.add(patternPath, func(q *request) error { return q.showPattern(http.StatusOK, q.selecting(), nil) }, changePattern)
}

// patternData is the content of the page about the tags that a pattern selects.
type patternData struct {
	Repository string
	// Pattern, When, In and At are as somebody has typed them. When is "now", or which of the API's
	// members says when the tags are deleted: in, at or never.
	Pattern, When, In, At string
	Choices               []option         // for When: what the client may do
	Found                 *api.ChangedTags // what the pattern selects, nil: nobody has asked
	Refused               []api.RefusedTag // tags that stay
	Typed                 typed
}

// Action is where the form is sent to.
func (d patternData) Action() string { return link(patternPath, d.Repository) }

// Minutes returns an age of less than an hour in words, "" for a longer one: m is minutes, and not
// months.
func (d patternData) Minutes() string {
	age, err := policy.ParseAge(d.In)
	if d.When != "in" || err != nil || age.Duration() >= time.Hour {
		return ""
	}
	return age.Duration().String()
}

// Does says what happens to the selected tags, in the form that follows "will" or "would".
func (d patternData) Does() string {
	switch d.When {
	case "in":
		return "be deleted " + format.Clip(64, d.In) + " from now"
	case "at":
		return "be deleted at " + format.Clip(64, d.At)
	case "never":
		return "lose the date of deletion"
	}
	return "be deleted now"
}

// run runs the operation that does what the form says, with the part of the input that both
// operations have in common.
func (d patternData) run(q *request, selection api.TagSelection) (api.ChangedTags, error) {
	in := repositoryOf(d.Repository)
	selection.Pattern = d.Pattern
	body := api.SelectedExpiration{TagSelection: selection}
	switch d.When {
	case "now":
		return run(q, api.DeleteTags, api.TagsDeletion{InRepository: in, Body: api.SelectedDeletion{TagSelection: selection, Deletion: q.form.Get("deletion")}})
	case "in":
		body.In = d.In
	case "at":
		body.At = d.At
	case "never":
		body.Never = true
	default:
		return api.ChangedTags{}, formError("The form doesn't say what to do with the tags.")
	}
	return run(q, api.ExpireTags, api.TagsExpiration{InRepository: in, Body: body})
}

// selecting returns the page's content with what a form has sent.
func (q *request) selecting() patternData {
	typed := func(name string) string { return strings.TrimSpace(q.form.Get(name)) }
	d := patternData{Repository: q.repository(), Pattern: typed("pattern"), When: typed("when"), In: typed("in"), At: typed("at")}
	d.Choices = q.tagActions(d.Repository)
	if d.When == "" && len(d.Choices) > 0 {
		d.When = d.Choices[0].Value
	}
	return d
}

// tagActions returns what the client may do with the tags that a pattern selects. A client that may
// push, but not move tags, may not set a date either: see the operation expireTags.
func (q *request) tagActions(repository string) (list []option) {
	of := auth.OfRepository(repository)
	if q.may(auth.Push, of) && q.ui.server.MayOverwrite(q.Context(), repository) {
		list = []option{{"in", "delete them after a time"}, {"at", "delete them at a time"}, {"never", "take their dates away"}}
	}
	if q.may(auth.Delete, of) {
		list = append(list, option{"now", "delete them now"})
	}
	return list
}

// showPattern shows the form, and what the pattern selects if somebody has asked for it.
func (q *request) showPattern(status int, d patternData, n *notice) error {
	if _, err := run(q, api.GetRepository, api.RepositorySizes{InRepository: repositoryOf(d.Repository), SizeLinks: api.SizeLinks{Links: 1}}); err != nil {
		return err
	}
	shown := d.Pattern
	if shown == "" {
		shown = "pr-7-*"
	}
	out := q.repositoryPage(d.Repository, "none")
	out.Crumbs = append(out.Crumbs, crumb{d.Repository, link("/ui/repositories/{repository}", d.Repository)})
	out.Title, out.Tabs, out.Notice, out.Data = "Tags by a pattern", nil, n, d
	out.Lead = "Deletes the tags whose names match a pattern, now or at a date. A * stands for any characters."
	out.Same = []same{
		command("purser tag expire '%s:%s' --in 2d", d.Repository, shown), command("purser tag delete '%s:%s'", d.Repository, shown),
		call("POST", apiPath("/repository/%s/tags/expire", d.Repository)), call("POST", apiPath("/repository/%s/tags/delete", d.Repository)),
		call("POST", apiPath("/repository/%s/tags/restore", d.Repository)),
	}
	return q.showStatus(status, "pattern", out)
}

// changePattern shows what a pattern selects, or changes the tags that the page has shown.
func changePattern(q *request) error {
	d := q.selecting()
	var n *notice
	var err error
	switch q.form.Get("do") {
	case "undo":
		n, err = q.undoDeletion(&d)
	case "change":
		n, err = q.changeSelected(&d)
		if statusOf(err) == http.StatusConflict { // the page shows what is to be looked at again
			if found, again := q.selected(d); again == nil {
				d.Found = found
			}
		}
	default:
		d.Found, err = q.selected(d)
	}
	if err == nil {
		return q.showPattern(http.StatusOK, d, n)
	}
	if status := formStatus(err); status != 0 {
		n := q.refuse(err, nil)
		d.Typed = q.refused
		return q.showPattern(status, d, n)
	}
	return err
}

// selected asks which tags the form would change.
func (q *request) selected(d patternData) (*api.ChangedTags, error) {
	found, err := d.run(q, api.TagSelection{DryRun: true})
	if err != nil {
		return nil, err
	}
	return &found, nil
}

// changeSelected changes the tags that the page has shown, as many as one request of the API does, and
// says what it did. If there are more, the notice has a form that goes on.
func (q *request) changeSelected(d *patternData) (*notice, error) {
	count, err := strconv.Atoi(strings.TrimSpace(q.form.Get("count")))
	switch {
	case q.form.Get("selection") == "":
		return nil, formError("Ask for a preview first.")
	case err != nil:
		found, err := q.selected(*d)
		d.Found = found
		if err == nil {
			err = formError("Nothing was changed: type the number of the tags to confirm.")
		}
		return nil, err
	}
	done, err := d.run(q, api.TagSelection{Count: &count, Selection: q.form.Get("selection"), After: q.form.Get("after")})
	if err != nil {
		return nil, err
	}
	d.Refused = done.Refused
	n := &notice{Bad: len(done.Refused) > 0, Text: format.Plural(done.Changed, "tag", "tags") + " will " + d.Does() + "."}
	if d.When == "now" {
		n.Text = format.Plural(done.Changed, "tag was", "tags were") + " deleted. Garbage collection keeps their images for a while: until then, they can be restored."
	} else if d.When == "never" {
		n.Text = format.Plural(done.Changed, "tag has", "tags have") + " no date of deletion any more."
	}
	if len(done.Refused) > 0 {
		n.Text += " " + format.Plural(len(done.Refused), "tag stays", "tags stay") + ", as is said below."
	}
	if done.Next != "" {
		n.Text += " There are more."
		n.Undo = &undo{Action: d.Action(), Text: "Go on", Fields: []field{
			{"do", "change"}, {"pattern", d.Pattern}, {"when", d.When}, {"in", d.In}, {"at", d.At},
			{"count", strconv.Itoa(count)}, {"selection", done.Selection}, {"after", done.Next},
		}}
		if done.Deletion != "" {
			n.Undo.Fields = append(n.Undo.Fields, field{"deletion", done.Deletion})
		}
	}
	if done.Deletion != "" && q.may(auth.Maintain, auth.OfRepository(d.Repository)) {
		if n.Also = d.undo("Undo", done.Deletion, ""); n.Undo == nil {
			n.Undo, n.Also = n.Also, nil
		}
	}
	return n, nil
}

// undo returns the form that restores the tags of a deletion, from the cursor on.
func (d patternData) undo(text, deletion, cursor string) *undo {
	return &undo{Action: d.Action(), Text: text, Fields: []field{
		{"do", "undo"}, {"pattern", d.Pattern}, {"when", d.When}, {"deletion", deletion}, {"cursor", cursor},
	}}
}

// undoDeletion restores the tags of a deletion, as many as one request of the API does, and says what it
// did. If there are more, the notice has a form that goes on.
func (q *request) undoDeletion(d *patternData) (*notice, error) {
	deletion := q.form.Get("deletion")
	done, err := run(q, api.RestoreTags, api.TagsRestoration{
		InRepository: repositoryOf(d.Repository), Body: api.UndoneDeletion{Deletion: deletion, Cursor: q.form.Get("cursor")},
	})
	if err != nil {
		return nil, err
	}
	d.Refused = done.Refused
	n := &notice{Bad: len(done.Refused) > 0, Text: format.Plural(done.Restored, "tag is back.", "tags are back.")}
	if len(done.Refused) > 0 {
		n.Text += " " + format.Plural(len(done.Refused), "tag stays as it is", "tags stay as they are") + ", as is said below."
	}
	if done.Next != "" {
		n.Text += " There are more."
		n.Undo = d.undo("Go on", deletion, done.Next)
	}
	return n, nil
}
