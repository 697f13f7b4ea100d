package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/loosefk/generate"
)

// addSchemaDump adds a file to a plan: the SQL dump of the database's schema as it will be
// after the plan's migrations. To make it, addSchemaDump copies the schema into a temporary
// database and runs the migrations there.
func addSchemaDump(ctx context.Context, app *App, plan *generate.Plan, file string) (err error) {
	if _, err := exec.LookPath("pg_dump"); err != nil {
		return errors.New("pg_dump is not installed: install PostgreSQL's client programs, of the server's version or newer, or leave --schema-dump out")
	}
	if len(plan.Keys) == 0 {
		return errors.New("no foreign key changes, so the dump would hold nothing new: leave --schema-dump out")
	}
	db, err := app.database(plan.Keys[0].Database)
	if err != nil {
		return err
	}
	for _, k := range plan.Keys {
		if k.Database != db.Name {
			return fmt.Errorf("keys of database %s and of %s change: convert them one after the other", db.Name, k.Database)
		}
	}
	cfg := db.Pool.Config().ConnConfig.Copy()
	schema, err := pgDump(ctx, cfg)
	if err != nil {
		return err
	}
	name := "loosefk_dump_" + strings.ToLower(rand.Text()[:10])
	if _, err := db.Pool.Exec(ctx, "CREATE DATABASE "+name+" TEMPLATE template0"); err != nil {
		return fmt.Errorf("making a copy of the schema, for which the role needs CREATEDB: %w", err)
	}
	defer func() {
		_, drop := db.Pool.Exec(context.WithoutCancel(ctx), "DROP DATABASE "+name+" WITH (FORCE)")
		err = errors.Join(err, drop)
	}()
	cfg.Database = name
	if err := migrateCopy(ctx, cfg, schema, plan.Statements()); err != nil {
		return fmt.Errorf("running the migrations in a copy of the schema: %w", err)
	}
	if schema, err = pgDump(ctx, cfg); err != nil {
		return err
	}
	old, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	plan.Files = append(plan.Files, generate.PlannedFile{Path: file, Content: schema, Old: string(old), Changed: err == nil})
	return nil
}

// pgDump returns the SQL dump of a database's schema that pg_dump makes, without owners and
// rights.
func pgDump(ctx context.Context, cfg *pgx.ConnConfig) (string, error) {
	cmd := exec.CommandContext(ctx, "pg_dump", "--schema-only", "--no-owner", "--no-privileges")
	mode := "disable"
	if cfg.TLSConfig != nil {
		mode = "require"
	}
	cmd.Env = append(os.Environ(), "PGHOST="+cfg.Host, "PGPORT="+strconv.Itoa(int(cfg.Port)), "PGUSER="+cfg.User,
		"PGPASSWORD="+cfg.Password, "PGDATABASE="+cfg.Database, "PGSSLMODE="+mode)
	out, err := cmd.Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		err = errors.New(strings.TrimSpace(string(failed.Stderr)))
	}
	return string(out), err
}

// migrateCopy first runs `schema`, the SQL dump of a schema, in an empty database, and then
// `statements`, which are those of the migrations.
func migrateCopy(ctx context.Context, cfg *pgx.ConnConfig, schema string, statements []string) error {
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // all statements are committed
	var lines []string
	for line := range strings.SplitSeq(schema, "\n") {
		if !strings.HasPrefix(line, `\`) { // commands of psql, which the server doesn't know
			lines = append(lines, line)
		}
	}
	for _, sql := range append([]string{strings.Join(lines, "\n"), "RESET ALL"}, statements...) {
		if _, err := conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
	}
	return nil
}
