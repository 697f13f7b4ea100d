package policies

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/oci"
)

// Exception says that the policies of the namespace and of the registry delete nothing in a
// repository. The repository's own policies do.
type Exception struct {
	Repository string     `json:"repository"`
	Until      *time.Time `json:"until" doc:"When it ends. Null: when somebody ends it"`
	Since      time.Time  `json:"since"`
}

// Excepts returns whether the repository is an exception.
func (l *Set) Excepts(repository int64) bool { return l.exceptions[repository] }

// DropExceptions lets no repository be an exception.
func (l *Set) DropExceptions() { clear(l.exceptions) }

// except marks the policies if the repository is an exception.
func (l *Set) except(t catalog.Repository, list []judge.Applied) []judge.Applied {
	for i := range list {
		list[i].Excepted = l.exceptions[t.ID]
	}
	return list
}

// queueExceptions reads the exceptions of a namespace that are in force.
func (l *Set) queueExceptions(b *pgx.Batch, namespace int64) {
	b.Queue(`
		SELECT e.repository_id FROM autopruneexceptions e JOIN live_repositories r ON r.id = e.repository_id
		WHERE r.top_level_namespace_id = $1 AND (e.until IS NULL OR e.until > now())`, namespace).Query(func(rows pgx.Rows) error {
		var id int64
		_, err := pgx.ForEachRow(rows, []any{&id}, func() error {
			l.exceptions[id] = true
			return nil
		})
		return err
	})
}

// Except makes a repository an exception until a time; nil: until somebody ends it. It takes effect
// as a change of a policy does: after it, no policy of the namespace or the registry deletes a tag of
// the repository. Errors: NAME_UNKNOWN; UNSUPPORTED with status 400 for a time that is over.
func (p *Store) Except(ctx context.Context, repository string, until *time.Time) error {
	t := Target{Repository: repository}
	return p.Change(ctx, t, "making an exception", func(tx pgx.Tx, o Owner) error {
		var over bool
		err := tx.QueryRow(ctx, "SELECT COALESCE($1::timestamptz <= now(), false)", until).Scan(&over)
		if err != nil {
			return err
		}
		if over {
			return oci.Invalid("until: %s is over", until.UTC().Format(time.RFC3339))
		}
		if _, err := tx.Exec(ctx, `
			INSERT INTO autopruneexceptions (repository_id, until) VALUES ($1, $2)
			ON CONFLICT (repository_id) DO UPDATE SET until = EXCLUDED.until`, o.Repository, until); err != nil {
			return err
		}
		return audit.Append(ctx, tx, exceptionEntry(repository, o, map[string]any{"change": "make", "until": until}))
	})
}

// EndException ends the exception of a repository. `was` says whether there was one in force. Error:
// NAME_UNKNOWN.
func (p *Store) EndException(ctx context.Context, repository string) (was bool, err error) {
	t := Target{Repository: repository}
	err = p.Change(ctx, t, "ending an exception", func(tx pgx.Tx, o Owner) error {
		err := tx.QueryRow(ctx, "DELETE FROM autopruneexceptions WHERE repository_id = $1 RETURNING until IS NULL OR until > now()", o.Repository).Scan(&was)
		if errors.Is(err, pgx.ErrNoRows) || err == nil && !was {
			return nil
		}
		if err != nil {
			return err
		}
		return audit.Append(ctx, tx, exceptionEntry(repository, o, map[string]any{"change": "end"}))
	})
	return was, err
}

func exceptionEntry(repository string, o Owner, detail map[string]any) audit.Entry {
	return audit.Entry{Kind: audit.ChangeException, Repository: repository, RepositoryID: o.Repository, Detail: detail}
}

// Exceptions returns up to n exceptions that are in force, of a repository or of a namespace's
// repositories after the name `after`, in the order of their names; `more` says that there are
// others. Error: NAME_UNKNOWN.
func (p *Store) Exceptions(ctx context.Context, t Target, after string, n int) (list []Exception, more bool, err error) {
	o, err := t.Find(ctx, p.DB.Pool, false)
	if err != nil {
		return nil, false, err
	}
	rows, err := p.DB.Pool.Query(ctx, `
		SELECT r.path, e.until, e.created_at FROM autopruneexceptions e JOIN live_repositories r ON r.id = e.repository_id
		WHERE r.top_level_namespace_id = @namespace AND (@repository::bigint = 0 OR r.id = @repository)
			AND (e.until IS NULL OR e.until > now()) AND r.path > @after
		ORDER BY r.path LIMIT @most`, db.Args{"namespace": o.Namespace, "repository": o.Repository, "after": after, "most": n + 1})
	if list, more, err = db.Page(rows, err, n, pgx.RowToStructByPos[Exception]); err != nil {
		return nil, false, fmt.Errorf("listing the exceptions of %s: %w", t, err)
	}
	return list, more, nil
}
