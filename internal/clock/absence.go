package clock

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// longestPause is how long nobody may have looked while the registry ran: it looks more often. Package hold
// has it too.
const longestPause = time.Minute

// postponeTimeout bounds the time in which an absence is left out of account, which is that of the
// rows that it postpones. Until then nothing is deleted.
const postponeTimeout = time.Minute

// skipAbsence leaves a time out of account in which nobody could reach the registry, if nobody has
// trusted the clock for so long that no process ran, or that the clock was set. The first process that
// notices writes a new trusted time, so the others find none that is long ago.
func (g *Guard) skipAbsence(ctx context.Context, r row) (absent bool, err error) {
	if r.trusted == nil || r.now.Sub(*r.trusted) <= longestPause {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), postponeTimeout)
	defer cancel()
	err = g.opt.DB.Tx(ctx, func(tx pgx.Tx) error {
		t, err := tx.Exec(ctx, "UPDATE clock SET trusted_at = $2 WHERE trusted_at = $1 AND doubt IS NULL", r.trusted, r.now)
		if err != nil || t.RowsAffected() == 0 {
			return err
		}
		return postpone(ctx, tx, *r.trusted, r.now)
	})
	if err != nil {
		return false, fmt.Errorf("leaving the time since %s out of account, in which the registry didn't run: %w", clockTime(*r.trusted), err)
	}
	return true, nil
}

// postpone adds an absence to leases of reporters, to the ends of what they have left out (by the column
// postponed, since they may have left out millions), and to dates of the trash, if they weren't over when
// it began: their people could do nothing meanwhile. Afterwards a lease is as long as it was then.
func postpone(ctx context.Context, tx pgx.Tx, since, until time.Time) error {
	away := until.Sub(since)
	for _, sql := range []string{
		"UPDATE holdreporters SET expires_at = expires_at + $2, postponed = postponed + $2 WHERE expires_at > $1",
		"UPDATE repositories SET purge_after = purge_after + $2 WHERE deleted_at IS NOT NULL AND purge_after > $1",
		"UPDATE top_level_namespaces SET purge_after = purge_after + $2 WHERE deleted_at IS NOT NULL AND purge_after > $1",
	} {
		if _, err := tx.Exec(ctx, sql, since, away); err != nil {
			return err
		}
	}
	return nil
}
