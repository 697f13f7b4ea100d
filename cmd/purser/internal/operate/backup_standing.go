package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/backup"
	"github.com/purser-registry/purser/internal/builtinpg"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/gc/explain"
)

const (
	// oldBackup and oldVerification are from which age on a backup and its verification are overdue, here
	// and in deploy/prometheus/alerts.yaml.
	oldBackup       = 2 * 24 * time.Hour
	oldVerification = 8 * 24 * time.Hour
	// unprotected is the age of content from which on the doctor asks whether there are backups.
	unprotected = 7 * 24 * time.Hour
	// noteWithin is how long noting the result of a verification may take.
	noteWithin = 30 * time.Second
)

// withRegistry calls fn with the registry's database, if it can be reached.
func withRegistry(cmd *cobra.Command, cfg *config.Config, fn func(ctx context.Context, d *db.DB) error) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), noteWithin)
	defer cancel()
	dsn := string(cfg.Database.Main)
	if dsn == "" {
		var err error
		if dsn, err = builtinpg.RunningDSN(backend.PostgresDir(cfg), backend.DatabaseName); err != nil {
			return err
		}
	}
	d, err := db.Open(ctx, db.Options{DSN: dsn, MaxConns: 1, ApplicationName: "purser backup verify", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer d.Close()
	return fn(ctx, d)
}

// noteFound notes in the registry's database what `backup verify` has found, and says so if it can't. The
// verification counts all the same.
func noteFound(cmd *cobra.Command, cfg *config.Config, fn func(ctx context.Context, d *db.DB) error) {
	if err := withRegistry(cmd, cfg, fn); err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "The result isn't noted in the registry's database, so metrics don't have it: %v\n", err) //nolint:errcheck // nobody reads it
	}
}

// noteVerification notes what the verification of a backup has found.
func noteVerification(cmd *cobra.Command, cfg *config.Config, o backup.VerifyOptions, v backup.Verification, found error) {
	noteFound(cmd, cfg, func(ctx context.Context, d *db.DB) error {
		return backup.RecordVerification(ctx, d.Pool, o.Target.Place(), o.Manifest, v, found)
	})
}

// findKnown finds the backup with this id in a target or, if `id` is "", the newest one, which must not be
// older than the one that the registry's database knows there. It notes that the backup's manifest is
// damaged, or that the backup isn't there.
func findKnown(cmd *cobra.Command, cfg *config.Config, target backup.Target, id string) (m *backup.Manifest, err error) {
	var known string
	unknown := withRegistry(cmd, cfg, func(ctx context.Context, d *db.DB) (err error) {
		known, err = backup.Recorded(ctx, d.Pool, target.Place())
		return err
	})
	if unknown == nil && known != "" && id == "" {
		err = backup.RequireThere(cmd.Context(), target, known)
	}
	if err == nil {
		m, err = backup.Find(cmd.Context(), target, id)
	}
	if errors.Is(err, backup.ErrDamaged) || errors.Is(err, backup.ErrNotThere) {
		noteFound(cmd, cfg, func(ctx context.Context, d *db.DB) error {
			return backup.RecordProblem(ctx, d.Pool, target.Place(), cmp.Or(id, known), err)
		})
	}
	if errors.Is(err, backup.ErrNotThere) {
		return nil, command.Refuse(err.Error())
	}
	return m, err
}

// examineBackups looks at the age of backups, and at what verifications have found.
func (d *doctor) examineBackups(ctx context.Context) error {
	list, err := backup.Standings(ctx, d.db.Pool)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		var old bool
		if err := d.db.Pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM blobs WHERE created_at < now() - $1::interval)", unprotected).Scan(&old); err != nil {
			return err
		}
		if old {
			d.find(levelNote, "backups", `run "purser backup DIRECTORY" from a timer, or see that your other backups have database and store (docs/backup.md)`,
				"\"purser backup\" has never been run on this registry")
		}
		return nil
	}
	var verified time.Time
	for _, s := range list {
		if s.Verified.After(verified) {
			verified = s.Verified
		}
		if s.Problem != "" {
			d.find(levelError, "backups in "+s.Place, mendBackup(s), "the newest one isn't whole: %s", s.Problem)
		}
	}
	if age := time.Since(list[0].Snapshot); age > oldBackup {
		d.find(levelWarning, "backups", `run "purser backup `+list[0].Place+`", and look why its timer doesn't`, "the newest one is %s old", explain.Age(age))
	}
	switch age := time.Since(verified); {
	case verified.IsZero():
		d.find(levelNote, "backups", `run "purser backup verify --deep `+list[0].Place+`"`, "none was ever read as a whole and verified")
	case age > oldVerification:
		d.find(levelWarning, "backups", `run "purser backup verify --deep `+list[0].Place+`", from a timer`, "none was read as a whole and found intact for %s", explain.Age(age))
	}
	return nil
}

// noteBackup notes a complete backup in the registry's database. The backup counts all the same if that
// fails.
func noteBackup(ctx context.Context, cmd *cobra.Command, d *db.DB, place string, m *backup.Manifest, deep bool) {
	if err := backup.Record(ctx, d.Pool, place, m, deep); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintf(cmd.ErrOrStderr(), "The backup is complete, but metrics don't have it: %v\n", err) //nolint:errcheck // nobody reads it
	}
}

// noteAbsence notes that the newest backup of a place isn't there, so that metrics and the doctor tell of it.
func noteAbsence(ctx context.Context, d *db.DB, place string, found error) error {
	id, err := backup.Recorded(ctx, d.Pool, place)
	if err != nil {
		return err
	}
	return backup.RecordProblem(ctx, d.Pool, place, id, found)
}

// mendBackup says how to mend the newest backup of a place. One that isn't there can't be copied again.
func mendBackup(s backup.Standing) string {
	if strings.HasPrefix(s.Problem, backup.ErrNotThere.Error()) {
		return `mount its volume, and run "purser backup ` + s.Place + `"; if its backups are lost, add --new-place`
	}
	return `run "purser backup --deep ` + s.Place + `", then "purser backup verify --deep ` + s.Place + `"`
}
