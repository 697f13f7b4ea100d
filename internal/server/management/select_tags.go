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

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
	"github.com/purser-registry/purser/internal/server"
)

// Bounds of one request that changes the tags which a pattern selects: the answer says where to go
// on.
const (
	changedTags   = 500
	changedWithin = 20 * time.Second
	toldTags      = 100
)

// changeSelected changes the tags that a pattern selects by calling `change` for each. A tag that
// can't be changed is told in the answer, and the others are changed nevertheless.
func (a *API) changeSelected(ctx context.Context, repository string, in api.TagSelection,
	change func(now time.Time, tag browse.SelectedTag) error,
) (*api.ChangedTags, error) {
	s, err := a.browser.SelectTags(ctx, repository, in.Pattern)
	if err != nil {
		return nil, err
	}
	out := &api.ChangedTags{Selected: len(s.Tags), Half: s.Half, Tags: []string{}, Refused: []api.RefusedTag{}, Selection: selectionAfter(s, in.After)}
	for _, t := range s.Tags[:min(toldTags, len(s.Tags))] {
		out.Tags = append(out.Tags, t.Name)
	}
	if in.DryRun {
		return out, nil
	}
	if err := confirmed(in, s); err != nil {
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
func selectionAfter(s browse.Selection, after string) string {
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
func confirmed(in api.TagSelection, s browse.Selection) error {
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

func parseDeletion(text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil || id == uuid.Nil {
		return id, server.Refusal(http.StatusBadRequest, "deletion: %.40q is not the UUID of a deletion", text).WithDetail(map[string]string{"field": "deletion"})
	}
	return id, nil
}

// addSelectedTags binds the operations that delete the tags which a pattern selects, let them expire,
// or restore those of a deletion.
func (a *API) addSelectedTags() {
	serve(a, api.DeleteTags, func(ctx context.Context, in *api.TagsDeletion) (*api.ChangedTags, error) {
		deletion := uuid.New()
		if in.Body.Deletion != "" {
			var err error
			if deletion, err = parseDeletion(in.Body.Deletion); err != nil {
				return nil, err
			}
		}
		options := overridingHolds(in.Body.OverrideHolds)
		out, err := a.changeSelected(ctx, in.Repository, in.Body.TagSelection, func(_ time.Time, t browse.SelectedTag) error {
			unmoved := catalog.Condition{Tag: t.Name, IfMatch: &catalog.Validators{Digests: []oci.Digest{t.Digest}}}
			return a.catalog.DeleteTagOf(ctx, deletion, in.Repository, t.Name, unmoved, options...)
		})
		if err == nil && (out.Changed > 0 || in.Body.Deletion != "") {
			out.Deletion = deletion.String()
		}
		return out, err
	})
	serve(a, api.ExpireTags, func(ctx context.Context, in *api.TagsExpiration) (*api.ChangedTags, error) {
		if len(a.tagOptions(ctx, in.Repository)) > 0 {
			return nil, oci.Errorf(oci.Denied, "these credentials may not have a tag of %s deleted: use credentials with the action overwrite", in.Repository)
		}
		after, at, err := parseExpiration(in.Body.In, in.Body.At, in.Body.Never)
		if err != nil {
			return nil, err
		}
		return a.changeSelected(ctx, in.Repository, in.Body.TagSelection, func(now time.Time, t browse.SelectedTag) error {
			date := at
			if after > 0 {
				date = now.Add(after)
			}
			return a.catalog.SetTagExpirationOf(ctx, in.Repository, t.Name, t.Digest, date)
		})
	})
	serve(a, api.RestoreTags, a.restoreTags)
}

func (a *API) restoreTags(ctx context.Context, in *api.TagsRestoration) (*api.RestoredTags, error) {
	deletion, err := parseDeletion(in.Body.Deletion)
	if err != nil {
		return nil, err
	}
	done, err := a.catalog.UndoDeletion(ctx, in.Repository, deletion, in.Body.Cursor)
	if err != nil {
		return nil, err
	}
	out := &api.RestoredTags{Deletion: deletion.String(), Restored: done.Restored, Refused: []api.RefusedTag{}, Next: done.Next}
	for _, name := range done.Exists {
		out.Refused = append(out.Refused, api.RefusedTag{Tag: name, Reason: "there is a tag of this name: it was pushed or restored since"})
	}
	for _, name := range done.Gone {
		out.Refused = append(out.Refused, api.RefusedTag{Tag: name, Reason: "garbage collection has deleted its manifest"})
	}
	return out, nil
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
		age, err := policy.ParseAge(strings.TrimSpace(in))
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
