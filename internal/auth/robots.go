package auth

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// CreateRobot creates a robot with its first secret, which isn't stored and can't be read
// again. `short` is its name in the namespace. `expires` is when the secret ends, nil: never.
// Errors: 404 if the namespace doesn't exist, 409 if the robot exists, 400 for invalid values.
func (s *Store) CreateRobot(ctx context.Context, namespace, short, description string, l Limits, expires *time.Time) (a Account, secret string, err error) {
	if err := checkShortName("robot", short); err != nil {
		return a, "", err
	}
	if err := checkText("description", description, maxDescription); err != nil {
		return a, "", err
	}
	if err := l.Check(); err != nil {
		return a, "", invalid("%v", err)
	}
	name := namespace + "+" + short
	err = s.change(ctx, "creating robot "+name, func(tx pgx.Tx) error {
		id, err := namespaceID(ctx, tx, namespace)
		if err != nil {
			return err
		}
		if err := countAlone(ctx, tx, id); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `
			INSERT INTO accounts (name, kind, top_level_namespace_id, description, repository_patterns, actions)
			VALUES (@name, 'robot', @id, @description, @patterns, @actions)
			ON CONFLICT DO NOTHING
			RETURNING id, name, kind, @namespace::text, source, subject, entry_id, awaits_entry, email, description, superuser, disabled_at,
				repository_patterns, actions, created_at, last_used_at, password_hash`,
			db.Args{"name": name, "id": id, "description": description, "patterns": l.Repositories, "actions": l.Actions,
				"namespace": namespace})
		if err != nil {
			return err
		}
		a, err = pgx.CollectExactlyOneRow(rows, scanAccount)
		if errors.Is(err, pgx.ErrNoRows) {
			return exists("there is a robot %.80s already", name)
		}
		if err != nil {
			return err
		}
		const count = "SELECT count(*) FROM (SELECT FROM accounts WHERE top_level_namespace_id = $1 LIMIT $2) counted"
		if ok, err := underLimit(ctx, tx, count, id, s.most.Robots); !ok || err != nil {
			return cmp.Or(err, tooManyRobots(namespace, s.most.Robots))
		}
		if _, secret, err = s.createCredential(ctx, tx, Credential{Account: a.ID, Kind: RobotSecret, Expires: expires}); err != nil {
			return err
		}
		return audit.Append(ctx, tx, robotEntry(audit.CreateRobot, name, map[string]any{
			"description": description, "repositories": l.Repositories, "actions": l.Actions}))
	})
	return a, secret, err
}

func robotEntry(kind audit.Kind, name string, detail map[string]any) audit.Entry {
	namespace, _, _ := strings.Cut(name, "+")
	if detail == nil {
		detail = map[string]any{}
	}
	detail["robot"] = name
	return audit.Entry{Kind: kind, Namespace: namespace, Detail: detail}
}

func unknownRobot(name string) error { return unknown("there is no robot %s", short(name)) }

// lockRobot returns the id of the robot `name`, and locks its row until the transaction ends.
func lockRobot(ctx context.Context, tx pgx.Tx, name string) (id int64, err error) {
	err = tx.QueryRow(ctx, "SELECT id FROM accounts WHERE name = $1 AND kind = 'robot' AND deleted_name IS NULL FOR UPDATE", name).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		err = unknownRobot(name)
	}
	return id, err
}

// Robots lists up to n robots of a namespace whose names contain a text, in the order of their
// names, after the name `after`. It says whether there are more.
func (s *Store) Robots(ctx context.Context, namespace, contains, after string, n int) (list []Account, more bool, err error) {
	rows, err := s.db.Pool.Query(ctx, `
		SELECT a.id, a.name, a.kind, n.name, a.source, a.subject, a.entry_id, a.awaits_entry, a.email, a.description, a.superuser, a.disabled_at,
			a.repository_patterns, a.actions, a.created_at, a.last_used_at, a.password_hash
		FROM live_namespaces n JOIN accounts a ON a.top_level_namespace_id = n.id
		WHERE n.name = $1 AND a.name > $2 AND position($3 IN a.name) > 0 ORDER BY a.name LIMIT $4`, namespace, after, contains, n+1)
	return db.Page(rows, err, n, scanAccount)
}

// DeleteRobot deletes a robot with its secrets and grants. Error: 404.
func (s *Store) DeleteRobot(ctx context.Context, name string) error {
	return s.change(ctx, "deleting robot "+name, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, "DELETE FROM accounts WHERE name = $1 AND kind = 'robot' AND deleted_name IS NULL", name)
		if err == nil && tag.RowsAffected() == 0 {
			return unknownRobot(name)
		}
		if err == nil {
			err = forgetUploads(ctx, tx, name)
		}
		if err != nil {
			return err
		}
		return audit.Append(ctx, tx, robotEntry(audit.DeleteRobot, name, nil))
	})
}

// RotateRobot gives a robot a new secret. Its other secrets stay valid for `overlap`, so that
// clients can change over; 0 ends them at once. `expires` is when the new secret ends, nil:
// never. Error: 404.
func (s *Store) RotateRobot(ctx context.Context, name string, overlap time.Duration, expires *time.Time) (secret string, err error) {
	err = s.change(ctx, "rotating the secret of robot "+name, func(tx pgx.Tx) error {
		id, err := lockRobot(ctx, tx, name)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			UPDATE credentials SET expires_at = LEAST(COALESCE(expires_at, 'infinity'), now() + $2::interval)
			WHERE account_id = $1 AND kind IN ('robot', 'federated')`, id, overlap)
		if err != nil {
			return err
		}
		if _, secret, err = s.createCredential(ctx, tx, Credential{Account: id, Kind: RobotSecret, Expires: expires}); err != nil {
			return err
		}
		return audit.Append(ctx, tx, robotEntry(audit.RegenerateRobotToken, name, map[string]any{"overlap": overlap.String()}))
	})
	return secret, err
}

// RobotChange changes a robot. Nil fields stay as they are; a pointer to a nil slice takes the
// limit away.
type RobotChange struct {
	Description  *string
	Disabled     *bool
	Repositories *[]string
	Actions      *[]Action
}

// ChangeRobot changes a robot. Errors: 404, 400 for invalid limits.
func (s *Store) ChangeRobot(ctx context.Context, name string, c RobotChange) error {
	var limits Limits
	if c.Repositories != nil {
		limits.Repositories = *c.Repositories
	}
	if c.Actions != nil {
		limits.Actions = *c.Actions
	}
	if err := limits.Check(); err != nil {
		return invalid("%v", err)
	}
	if c.Description != nil {
		if err := checkText("description", *c.Description, maxDescription); err != nil {
			return err
		}
	}
	return s.change(ctx, "changing robot "+name, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			UPDATE accounts SET
				repository_patterns = CASE WHEN @narrow THEN @patterns ELSE repository_patterns END,
				actions = CASE WHEN @restrict THEN @actions ELSE actions END,
				description = COALESCE(@description, description),
				disabled_at = CASE WHEN @disabled::boolean IS NULL THEN disabled_at WHEN @disabled THEN COALESCE(disabled_at, now()) END
			WHERE name = @name AND kind = 'robot'`,
			db.Args{"name": name, "narrow": c.Repositories != nil, "patterns": limits.Repositories, "restrict": c.Actions != nil,
				"actions": limits.Actions, "description": c.Description, "disabled": c.Disabled})
		if err == nil && tag.RowsAffected() == 0 {
			return unknownRobot(name)
		}
		if err != nil {
			return err
		}
		detail := map[string]any{}
		if c.Repositories != nil {
			detail["repositories"] = limits.Repositories
		}
		if c.Actions != nil {
			detail["actions"] = limits.Actions
		}
		if c.Disabled != nil {
			detail["disabled"] = *c.Disabled
		}
		return audit.Append(ctx, tx, robotEntry(audit.ChangeUser, name, detail))
	})
}

// Federation is a rule that lets a token of another issuer log in as a robot.
type Federation struct {
	ID               uuid.UUID
	Issuer, Audience string
	// Claims are names of claims with the patterns that their values must match.
	Claims  map[string]string
	Created time.Time
}

// Federations lists the rules of a robot. Error: 404.
func (s *Store) Federations(ctx context.Context, robot string) (list []Federation, err error) {
	rows, err := s.db.Pool.Query(ctx, `
		SELECT f.id, f.issuer, f.audience, f.claims, f.created_at
		FROM accounts a JOIN robotfederations f ON f.account_id = a.id
		WHERE a.name = $1 AND a.deleted_name IS NULL ORDER BY f.created_at, f.id LIMIT $2`, robot, mostFederations)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (f Federation, err error) {
		err = row.Scan(&f.ID, &f.Issuer, &f.Audience, &f.Claims, &f.Created)
		return f, err
	})
}

// SetFederations replaces the rules of a robot. The caller must have checked them. Errors: 404,
// 400 if there are too many.
func (s *Store) SetFederations(ctx context.Context, robot string, list []Federation) error {
	return s.setFederations(ctx, robot, list, func([]uuid.UUID) bool { return true })
}

// ReplaceFederations is SetFederations for a client that has seen rules with these IDs. Further error: 409
// if the robot has others by now, since they would be lost, or ones that were deleted would be back.
func (s *Store) ReplaceFederations(ctx context.Context, robot string, seen []uuid.UUID, list []Federation) error {
	return s.setFederations(ctx, robot, list, func(present []uuid.UUID) bool {
		return len(seen) == len(present) && !slices.ContainsFunc(present, func(id uuid.UUID) bool { return !slices.Contains(seen, id) })
	})
}

// setFederations replaces the rules of a robot if `may` accepts the IDs of those that it has.
func (s *Store) setFederations(ctx context.Context, robot string, list []Federation, may func(present []uuid.UUID) bool) error {
	return s.change(ctx, "changing the federation of robot "+robot, func(tx pgx.Tx) error {
		id, err := lockRobot(ctx, tx, robot)
		if err != nil {
			return err
		}
		rows, err := tx.Query(ctx, "SELECT id FROM robotfederations WHERE account_id = $1", id)
		if err != nil {
			return err
		}
		present, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		if err != nil {
			return err
		}
		if !may(present) {
			return oci.Errorf(oci.Unsupported, "the rules of robot %s were changed meanwhile, so nothing was done: look at them again", robot).
				WithStatus(http.StatusConflict)
		}
		if len(list) > s.most.FederationRules && len(list) > len(present) { // those that are there already may stay
			return tooManyRules(robot, s.most.FederationRules)
		}
		// Credentials that clients got by the old rules end with them.
		_, err = tx.Exec(ctx, `
			WITH ended AS (DELETE FROM credentials WHERE account_id = $1 AND kind = 'federated')
			DELETE FROM robotfederations WHERE account_id = $1`, id)
		if err != nil {
			return err
		}
		kind := audit.DeleteRobotFederation
		for _, f := range list {
			kind = audit.CreateRobotFederation
			// Each has a time of its own, by which lists keep their order.
			_, err := tx.Exec(ctx, "INSERT INTO robotfederations (id, account_id, issuer, audience, claims, created_at) VALUES ($1, $2, $3, $4, $5, clock_timestamp())",
				uuid.New(), id, f.Issuer, f.Audience, f.Claims)
			if err != nil {
				return err
			}
		}
		return audit.Append(ctx, tx, robotEntry(kind, robot, map[string]any{"rules": len(list)}))
	})
}

// CreateFederatedToken makes a credential of a robot that ends at `expires`. `rules` are the rules of
// the robot by which it has logged in. Errors: 404, and 401 if it has other rules by now: who changes
// the rules ends what the old ones have made, and this would come after that.
func (s *Store) CreateFederatedToken(ctx context.Context, robot string, rules []uuid.UUID, title string, expires time.Time) (secret string, err error) {
	err = s.change(ctx, "making a token for robot "+robot, func(tx pgx.Tx) error {
		id, err := lockRobot(ctx, tx, robot)
		if err != nil {
			return err
		}
		var stand bool // a change gives each rule a new id
		if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM robotfederations WHERE account_id = $1 AND id = ANY ($2))", id, rules).Scan(&stand); err != nil {
			return err
		}
		if !stand {
			return oci.Errorf(oci.Unauthorized, "the rules of robot %s have been changed since it logged in: log in again", robot)
		}
		if _, secret, err = s.createCredential(ctx, tx, Credential{Account: id, Kind: FederatedToken, Title: title, Expires: &expires}); err != nil {
			return err
		}
		return audit.Append(ctx, tx, robotEntry(audit.ExchangeFederatedToken, robot, map[string]any{"subject": title}))
	})
	return secret, err
}
