package clock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
)

// Confirm is the function Confirm with the guard's database. The guard looks again afterwards.
func (g *Guard) Confirm(ctx context.Context) (doubt string, err error) {
	g.looks.Lock()
	defer g.looks.Unlock()
	if doubt, err = Confirm(ctx, g.opt.DB); err != nil {
		return "", err
	}
	return doubt, g.look(ctx, true)
}

// Confirm ends the doubt about the database's clock: somebody says that it is right now. It returns
// what was in doubt, "" if nothing was. It doesn't end a disagreement with another clock. The time of
// the doubt is left out of account as an absence is: see package clock.
func Confirm(ctx context.Context, d *db.DB) (doubt string, err error) {
	err = d.Tx(ctx, func(tx pgx.Tx) error {
		doubt = ""
		var since *time.Time
		var now time.Time
		err := tx.QueryRow(ctx, "SELECT COALESCE(doubt, ''), trusted_at, clock_timestamp() FROM clock FOR UPDATE").Scan(&doubt, &since, &now)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			UPDATE clock SET doubt = NULL, seen_at = $1, trusted_at = $1, boot = '',
				confirmed_to = GREATEST(confirmed_to, (SELECT max(time) FROM auditlog))`, now)
		if err != nil || since == nil || !now.After(*since) {
			return err
		}
		return postpone(ctx, tx, *since, now)
	})
	if err != nil {
		return "", fmt.Errorf("confirming the database's clock: %w", err)
	}
	return doubt, nil
}
