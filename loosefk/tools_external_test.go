package loosefk_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/doctor"
	"github.com/purser-registry/purser/loosefk/generate"
)

func init() {
	loosefk.Tools.Examine = func(ctx context.Context, w *loosefk.Worker) (texts []string, err error) {
		findings, err := doctor.Examine(ctx, w)
		for _, f := range findings {
			texts = append(texts, f.Text)
		}
		return texts, err
	}
	loosefk.Tools.Repair = func(ctx context.Context, w *loosefk.Worker) (texts []string, err error) {
		found, err := doctor.Audit(ctx, w, doctor.AuditOptions{Repair: true})
		for _, o := range found {
			texts = append(texts, fmt.Sprintf("%s %d/%d %d/%d %v%v %d", o.Child, o.Pending, o.PendingParents, o.Rows, o.Parents, o.Examples, o.ExampleKeys, o.Repaired))
		}
		return texts, err
	}
	loosefk.Tools.ForeignKeys = func(ctx context.Context, dbs loosefk.Databases, defs loosefk.Definitions) error {
		_, err := generate.ForeignKeys(ctx, dbs, defs)
		return err
	}
	loosefk.Tools.ConvertAndRevert = convertAndRevert
}

func convertAndRevert(t *testing.T, dbs loosefk.Databases) error {
	g := generate.Generator{Databases: dbs, File: filepath.Join(t.TempDir(), "loose.yml"), Migrations: t.TempDir(), Now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	if err := os.WriteFile(g.File, nil, 0o600); err != nil {
		return err
	}
	up := func(plan *generate.Plan, err error) error {
		if err != nil {
			return err
		}
		if len(plan.Keys) != 1 {
			return fmt.Errorf("the plan refuses %v", plan.Refused)
		}
		if err := plan.Write(); err != nil {
			return err
		}
		migrations, err := goose.NewProvider(goose.DialectPostgres, stdlib.OpenDBFromPool(dbs[0].Pool), os.DirFS(g.Migrations))
		if err != nil {
			return err
		}
		_, err = migrations.Up(t.Context())
		return err
	}
	keys, err := generate.ForeignKeys(t.Context(), dbs, nil)
	if err != nil {
		return err
	}
	keys = slices.DeleteFunc(keys, func(k generate.ForeignKey) bool { return k.From != "others" })
	if err := up(g.Convert(t.Context(), keys)); err != nil {
		return fmt.Errorf("converting: %w", err)
	}
	if g.Definitions, err = loosefk.Load(g.File); err != nil {
		return err
	}
	if err := up(g.Revert(t.Context(), g.Definitions)); err != nil {
		return fmt.Errorf("reverting: %w", err)
	}
	return nil
}
