package api

import (
	"net/http"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/catalog/trash"
)

// TrashList is a page of the trash.
type TrashList struct {
	Items []trash.Trashed `json:"items" nullable:"false"`
	Next  string          `json:"next,omitempty" doc:"The cursor of the next page"`
}

// Entries implements Page.
func (l TrashList) Entries() ([]trash.Trashed, string) { return l.Items, l.Next }

// RestoreForm is the body of a request to restore something.
type RestoreForm struct {
	As string `json:"as,omitempty" doc:"Another name than it had: of a repository, one in the same namespace" example:"library/alpine-old"`
}

// RestoredTrash is the answer to a restoration.
type RestoredTrash struct {
	Name string `json:"name" doc:"The name that it has now"`
}

// Inputs of the operations on the trash.
type (
	TrashQuery struct {
		Namespace string `query:"namespace" doc:"Only deleted namespaces of this name, and repositories of the namespace that has it now" example:"library"`
		Cursor    string `query:"cursor" doc:"Where to go on: next of the answer before"`
		Limit     int    `query:"limit" default:"100" minimum:"1" maximum:"500" doc:"Most items of a page"`
	}
	TrashItem struct {
		ID string `path:"trash_id" doc:"Identifier in the trash: of the header Purser-Trash-Id, or of the list" example:"repository-17"`
	}
	TrashRestoration struct {
		TrashItem
		Body RestoreForm
	}
)

// The operations on the trash.
var (
	ListTrash = Operation[TrashQuery, TrashList]{
		ID: "listTrash", Method: http.MethodGet, Path: "/trash", Tag: "trash", Access: auth.Ping, Checks: auth.Delete,
		Summary: "List deleted repositories and namespaces that can be restored",
		Description: "Lists what the client may restore: see getTrash. Without a namespace, it lists everything and needs the " +
			"access operate.",
		Errors: []int{http.StatusNotFound},
	}
	GetTrash = Operation[TrashItem, trash.Trashed]{
		ID: "getTrash", Method: http.MethodGet, Path: "/trash/{trash_id}", Tag: "trash", Access: auth.Ping, Checks: auth.Delete,
		Summary: "Get something in the trash, and what keeps it from being restored",
		Description: "Needs the access by which the client might delete it: delete to a repository, admin to a namespace. The " +
			"roles that clients had when it was deleted count.",
		Errors: []int{http.StatusNotFound},
	}
	RestoreTrash = Operation[TrashRestoration, RestoredTrash]{
		ID: "restoreTrash", Method: http.MethodPost, Path: "/trash/{trash_id}/restore", Tag: "trash", Access: auth.Ping, Checks: auth.Delete,
		Summary: "Restore a deleted repository or namespace",
		Description: "It comes back as it was, with its tags, policies, rules, rights, robots and statistics. If its name is in use " +
			"meanwhile, or its namespace is in the trash: 409. Needs the access of getTrash. To give it another name than it " +
			"had needs what a new one of this name needs: push for a repository, operate for a namespace.",
		Errors: []int{http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
	}
	PurgeTrash = Operation[TrashItem, None]{
		ID: "purgeTrash", Method: http.MethodPost, Path: "/trash/{trash_id}/purge", Tag: "trash", Access: auth.Ping, Checks: auth.Administer,
		Summary: "Delete something in the trash for good", Description: "Needs the access admin to the namespace.",
		Status: http.StatusNoContent, Errors: []int{http.StatusNotFound},
	}
)
