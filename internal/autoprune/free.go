package autoprune

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
)

// Freeing bytes deletes the least recently used tags of some namespaces: those that weren't used for the
// longest time. A plan (PlanFree) finds the place in the order of last uses up to which tags must go,
// and Free stores this place, the bound, for each of the namespaces. The namespace's next run then
// has one policy more, a last_pulled policy that selects only tags up to the bound. So the run that
// frees does everything as other runs do: it asks for uses and holds just before it deletes, respects
// protection and keep rules, and can be undone. A tag that was used since the plan was made is behind
// the bound. A run deletes up to the bound what nothing keeps then: a tag that was protected, held or
// in an exception when the plan was made may go, if that has ended since.

// freeLasts is how long a request waits for a run. A tag that nobody used then may be in use later.
const freeLasts = 24 * time.Hour

// loadFree reads the request to free in the task's namespace. A run that has begun before the request
// takes no notice of it, since it may be past some of the repositories: then `waits` is true. A
// request is dropped if statistics began anew since, which makes another order of last uses.
func (p *Pruner) loadFree(ctx context.Context, t *task, l *policies.Set) (waits bool, err error) {
	var id, age *string
	var known *bool
	var at, since *time.Time
	var repository *int64
	var name *string
	err = p.db.Pool.QueryRow(ctx, `
		WITH mine AS (
			UPDATE autoprunefree SET run = $2
			WHERE namespace_id = $1 AND (run = $2 OR NOT $3) AND created_at > now() - $4::interval
			RETURNING id::text, unused_for, known, at, repository_id, name, since
		)
		SELECT mine.*, mine.id IS NULL AND EXISTS (SELECT FROM autoprunefree WHERE namespace_id = $1 AND created_at > now() - $4::interval)
		FROM (SELECT) one LEFT JOIN mine ON true`, t.namespace, t.run, t.resumed, freeLasts).
		Scan(&id, &age, &known, &at, &repository, &name, &since, &waits)
	if err == nil && id != nil {
		f := policies.Free{ID: *id, Since: *since, Bound: judge.FreePlace{Known: *known, At: *at, Repository: *repository, Name: *name}}
		if f.Age, err = policy.ParseAge(*age); err == nil && l.Pulls.Since.Truncate(time.Microsecond).After(f.Since) {
			_, err = p.db.Pool.Exec(ctx, "DELETE FROM autoprunefree WHERE namespace_id = $1 AND run = $2", t.namespace, t.run)
		} else {
			l.Free = &f
		}
	}
	if err != nil {
		return false, fmt.Errorf("looking for a request to free: %w", err)
	}
	return waits, nil
}

// FreeRequest is a plan that somebody lets happen.
type FreeRequest struct {
	Bytes      int64           `json:"bytes"`
	UnusedFor  string          `json:"unused_for"`
	Bound      judge.FreePlace `json:"bound"`
	Since      time.Time       `json:"since"`
	Namespaces []string        `json:"namespaces"`
}

// token returns the request as text for clients.
func (f FreeRequest) token() string {
	text, _ := json.Marshal(f) //nolint:errcheck // it has only texts, numbers and times
	return base64.RawURLEncoding.EncodeToString(text)
}

// ParseFreeRequest parses the text of a plan.
func ParseFreeRequest(token string) (f FreeRequest, err error) {
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err == nil {
		_, err = policy.ParseAge(f.UnusedFor)
	}
	if err != nil || f.Bytes <= 0 || len(f.Namespaces) == 0 || len(f.Namespaces) > maxFreed || f.Bound.At.IsZero() || f.Since.IsZero() ||
		strings.ContainsRune(f.Bound.Name+strings.Join(f.Namespaces, ""), 0) {
		return f, oci.Invalid("plan: it isn't the plan of an answer")
	}
	return f, nil
}

// Freeing says what Free has started.
type Freeing struct {
	ID         string   `json:"id" doc:"The policy that the audit log and the runs name for the tags that are deleted"`
	Namespaces []string `json:"namespaces" nullable:"false" doc:"The namespaces whose next run deletes"`
}

// Free lets the next run of each of the plan's namespaces delete the tags of the plan, and puts these
// namespaces at the head of the queue. A namespace that is gone is left out. Error: UNSUPPORTED with
// status 409 if bytes are being freed in one of them already; then nothing is started, unless somebody
// else began at the same moment.
func (p *Pruner) Free(ctx context.Context, f FreeRequest) (Freeing, error) {
	id := uuid.New()
	out := Freeing{ID: id.String(), Namespaces: []string{}}
	slices.Sort(f.Namespaces)
	if err := p.refuseFreeing(ctx, f.Namespaces); err != nil {
		return out, err
	}
	for _, namespace := range slices.Compact(f.Namespaces) {
		t := policies.Target{Namespace: namespace}
		err := p.Policies.Change(ctx, t, "freeing bytes", func(tx pgx.Tx, o policies.Owner) error {
			done, err := tx.Exec(ctx, `
				INSERT INTO autoprunefree AS f (namespace_id, id, unused_for, known, at, repository_id, name, since)
				VALUES (@namespace, @id, @unused_for, @known, @at, @repository, @name, @since)
				ON CONFLICT (namespace_id) DO UPDATE SET id = EXCLUDED.id, unused_for = EXCLUDED.unused_for, known = EXCLUDED.known,
					at = EXCLUDED.at, repository_id = EXCLUDED.repository_id, name = EXCLUDED.name, since = EXCLUDED.since,
					run = NULL, created_at = now()
				WHERE f.created_at <= now() - @lasts::interval`, db.Args{"namespace": o.Namespace, "id": id, "unused_for": f.UnusedFor,
				"known": f.Bound.Known, "at": f.Bound.At, "repository": f.Bound.Repository, "name": f.Bound.Name, "since": f.Since, "lasts": freeLasts})
			if err != nil {
				return err
			}
			if done.RowsAffected() == 0 {
				return freedAlready(namespace)
			}
			return audit.Append(ctx, tx, audit.Entry{Kind: audit.FreeSpace, Namespace: namespace, Policy: id,
				Detail: map[string]any{"bytes": f.Bytes, "unused_for": f.UnusedFor, "last_used_until": f.Bound.At}})
		})
		switch {
		case oci.CodeOf(err) == oci.NameUnknown:
		case err != nil:
			return out, err
		default:
			out.Namespaces = append(out.Namespaces, namespace)
		}
	}
	return out, nil
}

func freedAlready(namespace string) error {
	return oci.Errorf(oci.Unsupported, "bytes are being freed in namespace %s already: its runs tell", namespace).WithStatus(409)
}

// refuseFreeing returns an error if bytes are being freed in one of the namespaces.
func (p *Pruner) refuseFreeing(ctx context.Context, namespaces []string) error {
	var name string
	err := p.db.Pool.QueryRow(ctx, `
		SELECT n.name FROM autoprunefree f JOIN live_namespaces n ON n.id = f.namespace_id
		WHERE n.name = ANY ($1) AND f.created_at > now() - $2::interval ORDER BY n.name LIMIT 1`, namespaces, freeLasts).Scan(&name)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("looking for requests to free: %w", err)
	}
	return freedAlready(name)
}
