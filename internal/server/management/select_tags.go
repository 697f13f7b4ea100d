package management

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// Bounds of one request that changes the tags which a pattern selects: the answer says where to go
// on.
const (
	changedTags   = 500
	changedWithin = 20 * time.Second
	toldTags      = 100
)

// TagSelection is the part that requests to delete tags and to let them expire have in common. It is
// exported because huma finds members only in exported types.
type TagSelection struct {
	Pattern string `json:"pattern" maxLength:"128" doc:"The name of a tag, in which * stands for any characters" example:"pr-7-*"`
	DryRun  bool   `json:"dry_run,omitempty" doc:"Change nothing, and say what is selected"`
	Count   *int   `json:"count,omitempty" minimum:"0" doc:"How many tags the pattern selects, as a dry run has said. 409 if it is another number. It must be given if the pattern selects half of the repository's tags or more, also with after"`
	After   string `json:"after,omitempty" maxLength:"128" doc:"The member next of the answer before: go on after this tag"`
	// Selection is the answer's member of the same name, which somebody has seen.
	Selection string `json:"selection,omitempty" maxLength:"64" doc:"The member selection of the answer before. 409 if the pattern selects other tags since, or one of them was moved"`
}

// changeSelected changes the tags that a pattern selects by calling `change` for each. A tag that
// can't be changed is told in the answer, and the others are changed nevertheless.
func (a *API) changeSelected(ctx context.Context, repository string, in TagSelection,
	change func(now time.Time, tag catalog.SelectedTag) error,
) (out api.ChangedTags, err error) {
	s, err := a.catalog.SelectTags(ctx, repository, in.Pattern)
	if err != nil {
		return out, err
	}
	out = api.ChangedTags{Selected: len(s.Tags), Half: s.Half, Tags: []string{}, Refused: []api.RefusedTag{}, Selection: selectionAfter(s, in.After)}
	for _, t := range s.Tags[:min(toldTags, len(s.Tags))] {
		out.Tags = append(out.Tags, t.Name)
	}
	if in.DryRun {
		return out, nil
	}
	if err := in.confirmed(s); err != nil {
		return out, err
	}
	began, done := time.Now(), 0
	for _, t := range s.Tags {
		if t.Name <= in.After {
			continue
		}
		if done == changedTags || time.Since(began) > changedWithin {
			out.Selection = selectionAfter(s, out.Next)
			return out, nil
		}
		err := change(s.Now, t)
		switch status := statusOf(err); {
		case err == nil:
			out.Changed++
		case status == http.StatusNotFound: // it was deleted meanwhile
		case status == http.StatusConflict, status == http.StatusPreconditionFailed:
			out.Refused = append(out.Refused, api.RefusedTag{Tag: t.Name, Reason: err.Error()})
		default:
			return out, err
		}
		done, out.Next = done+1, t.Name
	}
	out.Next, out.Selection = "", ""
	return out, nil
}

// selectionAfter returns a text that stands for the tags of a selection whose names come after
// `after`, and for the manifests that they point to. Equal texts mean equal tags and manifests.
func selectionAfter(s catalog.Selection, after string) string {
	sum := sha256.New()
	for _, t := range s.Tags {
		if t.Name > after {
			fmt.Fprintf(sum, "%s@%s\n", t.Name, t.Digest) //nolint:errcheck // a hash takes everything
		}
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// statusOf returns the status with which an error is answered; 0: it isn't the client's.
func statusOf(err error) int {
	if e, ok := errors.AsType[*oci.Error](err); ok {
		return e.HTTPStatus()
	}
	return 0
}

// confirmed returns an error unless the client has said how many tags it means to change, where it
// must. A request that goes on must say it again, though fewer may be left by then. It also returns
// an error if the client means other tags or manifests than those that are selected now.
func (in TagSelection) confirmed(s catalog.Selection) error {
	switch n := len(s.Tags); {
	case in.Count != nil && *in.Count != n && in.After == "":
		return server.Refusal(http.StatusConflict, "the pattern %s selects %d tags, and not %d: look at them again", in.Pattern, n, *in.Count)
	case in.Count == nil && s.Half:
		return server.Refusal(http.StatusConflict, "the pattern %s selects %d tags, half of the repository's or more: repeat the number as count", in.Pattern, n)
	case in.Selection != "" && in.Selection != selectionAfter(s, in.After):
		return server.Refusal(http.StatusConflict, "the pattern %s selects other tags than you have seen, or one of them was moved: look at them again", in.Pattern)
	}
	return nil
}

// selectedDeletion is the body of a request to delete tags.
type selectedDeletion struct {
	TagSelection
	OverrideHolds bool   `json:"override_holds,omitempty" doc:"Delete tags too whose manifests are deployed"`
	Deletion      string `json:"deletion,omitempty" maxLength:"36" doc:"The deletion to which the tags are to belong: the member deletion of the answer before, or a UUID of the client's own. Absent: a new one"`
}

// id returns the id of the deletion to which the tags are to belong.
func (d selectedDeletion) id() (uuid.UUID, error) {
	if d.Deletion == "" {
		return uuid.New(), nil
	}
	return parseDeletion(d.Deletion)
}

// undoneDeletion is the body of a request to restore tags.
type undoneDeletion struct {
	Deletion string `json:"deletion" maxLength:"36" doc:"The member deletion of the answer to the request that deleted the tags"`
	Cursor   string `json:"cursor,omitempty" maxLength:"64" doc:"The member next of the answer before: go on there"`
}

func parseDeletion(text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil || id == uuid.Nil {
		return id, server.Refusal(http.StatusBadRequest, "deletion: %.40q is not the UUID of a deletion", text).WithDetail(map[string]string{"field": "deletion"})
	}
	return id, nil
}

// selectedExpiration is the body of a request to let tags expire.
type selectedExpiration struct {
	TagSelection
	In string `json:"in,omitempty" maxLength:"64" doc:"Delete them after this time by the database's clock: a number and one of s, m, h, d, w and y" example:"2d"`
	At string `json:"at,omitempty" maxLength:"64" doc:"Delete them at this time" example:"2030-01-02T15:04:05Z"`
	// Never takes the date away. It is a member of its own, so that nobody says it by leaving something out.
	Never bool `json:"never,omitempty" doc:"Take away their dates"`
}

// addSelectedTags adds the operations that delete the tags which a pattern selects, or let them
// expire.
func (a *API) addSelectedTags() {
	type output struct{ Body api.ChangedTags }
	errs := []int{http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType}
	const bounds = " A request changes at most 500 tags: the answer says where to go on. A tag that is refused, such as a protected one or one that was moved meanwhile, is named, and the others are changed. " +
		"At most 10,000 tags may be selected, of 100,000 that begin like the pattern."
	type deleteInput struct {
		api.InRepository
		Body selectedDeletion
	}
	add(a, auth.Delete, huma.Operation{
		OperationID: "deleteTags", Method: http.MethodPost, Path: "/repository/{repository}/tags/delete", Tags: []string{"tag"},
		Summary:     "Delete the tags whose names match a pattern",
		Description: "They can be restored until garbage collection deletes their manifests: restoreTags restores all of them. A tag that is deployed is refused." + bounds, Errors: errs,
	}, func(ctx context.Context, in *deleteInput) (*output, error) {
		deletion, err := in.Body.id()
		if err != nil {
			return nil, err
		}
		options := overridingHolds(in.Body.OverrideHolds)
		out, err := a.changeSelected(ctx, in.Repository, in.Body.TagSelection, func(_ time.Time, t catalog.SelectedTag) error {
			unmoved := catalog.Condition{Tag: t.Name, IfMatch: &catalog.Validators{Digests: []oci.Digest{t.Digest}}}
			return a.catalog.DeleteTagOf(ctx, deletion, in.Repository, t.Name, unmoved, options...)
		})
		if out.Changed > 0 || in.Body.Deletion != "" {
			out.Deletion = deletion.String()
		}
		return &output{out}, err
	})
	type expireInput struct {
		api.InRepository
		Body selectedExpiration
	}
	add(a, auth.Push, huma.Operation{
		OperationID: "expireTags", Method: http.MethodPost, Path: "/repository/{repository}/tags/expire", Tags: []string{"tag"},
		Summary:     "Have the tags whose names match a pattern deleted at a date",
		Description: "Exactly one of in, at and never must be given." + bounds, Errors: errs,
	}, func(ctx context.Context, in *expireInput) (*output, error) {
		if len(a.tagOptions(ctx, in.Repository)) > 0 {
			return nil, oci.Errorf(oci.Denied, "these credentials may not have a tag of %s deleted: use credentials with the action overwrite", in.Repository)
		}
		after, at, err := parseExpiration(in.Body.In, in.Body.At, in.Body.Never)
		if err != nil {
			return nil, err
		}
		out, err := a.changeSelected(ctx, in.Repository, in.Body.TagSelection, func(now time.Time, t catalog.SelectedTag) error {
			date := at
			if after > 0 {
				date = now.Add(after)
			}
			return a.catalog.SetTagExpirationOf(ctx, in.Repository, t.Name, t.Digest, date)
		})
		return &output{out}, err
	})
}

// addTagRestoration adds the operation that restores the tags of a deletion by a pattern.
func (a *API) addTagRestoration() {
	type input struct {
		api.InRepository
		Body undoneDeletion
	}
	type output struct{ Body api.RestoredTags }
	add(a, auth.Maintain, huma.Operation{
		OperationID: "restoreTags", Method: http.MethodPost, Path: "/repository/{repository}/tags/restore", Tags: []string{"tag"},
		Summary: "Restore the tags of a deletion",
		Description: "Restores exactly the tags that deleteTags, or requests for single tags with the same deletion, have deleted, with their former times. A date of deletion comes back unless it is over. " +
			"A tag that was pushed again since stays as it is and is named, as is one whose manifest garbage collection has deleted. " +
			"A request restores at most 1000 tags: the answer says where to go on. 404: the audit log has no such deletion in the repository. " +
			"409: the namespace's quota has no room for the tags.",
		Errors: []int{http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
	}, func(ctx context.Context, in *input) (*output, error) {
		deletion, err := parseDeletion(in.Body.Deletion)
		if err != nil {
			return nil, err
		}
		done, err := a.catalog.UndoDeletion(ctx, in.Repository, deletion, in.Body.Cursor)
		if err != nil {
			return nil, err
		}
		out := api.RestoredTags{Deletion: deletion.String(), Restored: done.Restored, Refused: []api.RefusedTag{}, Next: done.Next}
		for _, name := range done.Exists {
			out.Refused = append(out.Refused, api.RefusedTag{Tag: name, Reason: "there is a tag of this name: it was pushed or restored since"})
		}
		for _, name := range done.Gone {
			out.Refused = append(out.Refused, api.RefusedTag{Tag: name, Reason: "garbage collection has deleted its manifest"})
		}
		return &output{out}, nil
	})
}

// parseExpiration parses what a client says about an expiration: exactly one of the three. The zero
// values stand for never.
func parseExpiration(in, at string, never bool) (after time.Duration, date time.Time, err error) {
	given := 0
	for _, one := range []bool{in != "", at != "", never} {
		if one {
			given++
		}
	}
	switch {
	case given != 1:
		return 0, date, server.Refusal(http.StatusBadRequest, "give exactly one of in, at and never")
	case in != "":
		age, err := autoprune.ParseAge(strings.TrimSpace(in))
		if err != nil {
			return 0, date, server.Refusal(http.StatusBadRequest, "in: %v", err).WithDetail(map[string]string{"field": "in"})
		}
		return age.Duration(), date, nil
	case at != "":
		if date, err = time.Parse(time.RFC3339, at); err != nil {
			return 0, date, server.Refusal(http.StatusBadRequest, "at: %.40q is no time like 2030-01-02T15:04:05Z", at).WithDetail(map[string]string{"field": "at"})
		}
		return 0, date, catalog.CheckExpiration(date)
	}
	return 0, date, nil
}
