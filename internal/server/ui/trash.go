package ui

import (
	"errors"
	"net/http"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/catalog/trash"
)

func (u *UI) addTrash() { u.add("/ui/trash", showTrash, changeTrash) }

type trashData struct {
	scopedList
	Items []trash.Trashed
	Pages pages
	Typed typed
}

// showTrash lists deleted repositories and namespaces. The parameter deleted is what was deleted
// just now.
func showTrash(q *request) error {
	var n *notice
	namespace := q.query("namespace")
	if q.URL.Query().Has("deleted") {
		id := q.query("deleted")
		var t trash.Trashed
		err := error(nil)
		if id != "" {
			t, err = run(q, api.GetTrash, api.TrashItem{ID: id})
		}
		switch {
		case err != nil && !hidden(err):
			return err
		case id == "":
			n = &notice{Text: "It is deleted for good: this registry has no trash."}
		case err == nil:
			n = &notice{
				Text: clip(255, t.Name) + " is deleted. It can be restored until " + exact(t.ExpiresAt) + ".",
				Undo: &undo{Action: "/ui/trash", Text: "Restore it", Fields: []field{{"do", "restore"}, {"id", id}, {"namespace", namespace}}},
			}
			if t.IsNamespace() {
				n.Undo.Fields = n.Undo.Fields[:2]
			}
		}
	}
	return q.showTrash(http.StatusOK, namespace, n)
}

func (q *request) showTrash(status int, namespace string, n *notice) error {
	list, err := run(q, api.ListTrash, api.TrashQuery{Namespace: namespace, Cursor: q.query("page")})
	frame, err := q.chooseNamespace(err)
	if err != nil {
		return err
	}
	frame.Namespace = namespace
	return q.showStatus(status, "trash", page{
		Title: "Trash", Section: "trash", Notice: n, Lead: "Deleted repositories and namespaces, as long as they can be restored.",
		Data: trashData{frame, list.Items, q.pagesOf(q.keep("namespace"), list.Next), q.refused},
		Same: []same{command("purser trash list"), command("purser trash restore ID"), call("GET", "/trash")},
	})
}

// changeTrash restores something or deletes it for good.
func changeTrash(q *request) error {
	id, namespace := q.form.Get("id"), q.form.Get("namespace")
	var err error
	n := &notice{}
	switch q.form.Get("do") {
	case "restore":
		var restored api.RestoredTrash
		restored, err = run(q, api.RestoreTrash, api.TrashRestoration{TrashItem: api.TrashItem{ID: id}, Body: api.RestoreForm{As: q.form.Get("as")}})
		n.Text = clip(255, restored.Name) + " is back, with its tags, policies and rights."
	case "purge":
		_, err = run(q, api.PurgeTrash, api.TrashItem{ID: id})
		n.Text = "It is deleted for good."
	default:
		err = formError("The form doesn't say what to do.")
	}
	status := http.StatusOK
	if err != nil {
		if status = statusOf(err); status == 0 {
			status = http.StatusBadRequest
			if _, ok := errors.AsType[formError](err); !ok {
				return err
			}
		}
		n = q.refuse(err, nil)
	}
	return q.showTrash(status, namespace, n)
}
