package clock

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
)

// Confirm is the function Confirm with the guard's database. The guard looks again afterwards.
func (g *Guard) Confirm(ctx context.Context) (doubt string, err error) {
	g.looks.Lock()
	defer g.looks.Unlock()
	if doubt, err = Confirm(ctx, g.opt.DB.Pool); err != nil {
		return "", err
	}
	return doubt, g.look(ctx, true)
}

// Confirm ends the doubt about the database's clock: somebody says that it is right now. It returns
// what was in doubt, "" if nothing was. It doesn't end a disagreement with another clock.
func Confirm(ctx context.Context, q db.Querier) (doubt string, err error) {
	err = q.QueryRow(ctx, `
		WITH before AS MATERIALIZED (SELECT doubt FROM clock FOR UPDATE)
		UPDATE clock SET doubt = NULL, seen_at = clock_timestamp(), trusted_at = clock_timestamp(), boot = '', confirmed_to = GREATEST(confirmed_to, (SELECT max(time) FROM auditlog))
		FROM before RETURNING COALESCE(before.doubt, '')`).Scan(&doubt)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("confirming the database's clock: %w", err)
	}
	return doubt, nil
}
