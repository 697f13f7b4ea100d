package policies

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/judge"
)

// Exemption says that a policy doesn't select a tag, because an undo has restored the tag.
type Exemption struct {
	Tag    string    `json:"tag"`
	Policy string    `json:"policy" doc:"Id of the policy that doesn't select the tag; free: bytes are freed without the tag"`
	Since  time.Time `json:"since" doc:"When the tag was restored"`
}

// ExemptionPlace is the place of an exemption in the list.
type ExemptionPlace struct{ Tag, Policy string }

// Exemptions returns up to n exemptions of a repository's tags that are in force and come after the
// place `after`, in the order of the tags' names and the policies' ids; `more` says that there are
// others. It returns the error NAME_UNKNOWN if the repository doesn't exist.
func (p *Store) Exemptions(ctx context.Context, repository string, after ExemptionPlace, n int) (list []Exemption, more bool, err error) {
	o, err := Target{Repository: repository}.Find(ctx, p.DB.Pool, false)
	if err != nil {
		return nil, false, err
	}
	rows, err := p.DB.Pool.Query(ctx, `
		SELECT t.name, e.policy, e.created_at
		FROM autopruneexemptions e
		JOIN tags t ON t.repository_id = e.repository_id AND t.top_level_namespace_id = @namespace AND t.id = e.tag_id
		JOIN (SELECT uuid, rule_version FROM namespaceautoprunepolicy WHERE namespace_id = @namespace
			UNION ALL SELECT uuid, rule_version FROM repositoryautoprunepolicy WHERE repository_id = @repository
			UNION ALL SELECT uuid, rule_version FROM defaultautoprunepolicy
			UNION ALL SELECT @free::text, 0) p ON p.uuid = e.policy AND p.rule_version <= e.version
		WHERE e.repository_id = @repository AND (t.name, e.policy) > (@tag, @policy)
		ORDER BY t.name, e.policy LIMIT @most`, db.Args{"namespace": o.Namespace, "repository": o.Repository, "tag": after.Tag, "policy": after.Policy, "free": judge.FreeName, "most": n + 1})
	if list, more, err = db.Page(rows, err, n, pgx.RowToStructByPos[Exemption]); err != nil {
		return nil, false, fmt.Errorf("listing exemptions of %s: %w", repository, err)
	}
	return list, more, nil
}

// EndExemptions ends the exemptions of a tag, or those of all tags of the repository if `tag` is "",
// and returns how many there were. It returns the error NAME_UNKNOWN if the repository doesn't exist.
func (p *Store) EndExemptions(ctx context.Context, repository, tag string) (ended int64, err error) {
	o, err := Target{Repository: repository}.Find(ctx, p.DB.Pool, false)
	if err != nil {
		return 0, err
	}
	err = p.DB.Tx(ctx, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `
			WITH gone AS (
				DELETE FROM autopruneexemptions e
				WHERE e.repository_id = @repository AND (@tag = '' OR EXISTS (SELECT FROM tags t
					WHERE t.repository_id = @repository AND t.top_level_namespace_id = @namespace AND t.name = @tag AND t.id = e.tag_id))
				RETURNING 1)
			SELECT count(*) FROM gone`, db.Args{"namespace": o.Namespace, "repository": o.Repository, "tag": tag}).Scan(&ended)
		if err != nil || ended == 0 {
			return err
		}
		return audit.Append(ctx, tx, audit.Entry{Kind: audit.ChangeExemptions, Repository: repository, RepositoryID: o.Repository, Tag: tag,
			Detail: map[string]any{"change": "end", "exemptions": ended}})
	})
	if err != nil {
		return 0, fmt.Errorf("ending exemptions of %s: %w", repository, err)
	}
	return ended, nil
}
