package operate

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/backup"
	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/storeid"
)

func storeRestoreCommand(src *command.Source) *cobra.Command {
	var t targetFlags
	var o storeid.AdoptOptions
	cmd := &cobra.Command{
		Use:   "restore TARGET",
		Short: "Copy the objects that the blob store lacks from a backup",
		Long: "Copy from the backups in TARGET the objects of the database's blobs that the blob store lacks, and give the\n" +
			"store to the database if it has no identity: so is a store restored that was lost, or that lost some objects,\n" +
			"while the database is whole. The database isn't changed. Bytes that don't have the blob's digest aren't copied.\n" +
			"Of blobs that are marked as lost, objects that are damaged or can't be read are copied again too.\n" +
			"A server may run. If the command is interrupted, run it again: it goes on.\n\n" + targetText +
			"\nThe exit code is 4 if neither the store nor the backups have the objects of some blobs.",
		Args: cobra.ExactArgs(1),
	}
	out := command.AddFormat(cmd)
	t.add(cmd.Flags())
	cmd.Flags().StringVar(&o.From, "from", "", "take the store away from the database whose store has this `ID`")
	cmd.Flags().BoolVar(&o.Force, "force", false, "write the store's identity anew if it is damaged, or although no object was found")
	addOwnSettings(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		// The backup is looked for first, so that a wrong TARGET doesn't create a store.
		cfg, target, err := loadForTarget(src, cmd, &t, args[0])
		if err != nil {
			return err
		}
		if _, err := backup.Find(cmd.Context(), target, ""); err != nil {
			return err
		}
		return withStore(src, cmd, false, true, false, func(ctx context.Context, store *storeid.Store, metadata *db.DB) error {
			if err := explainDamaged(store.Adoptable(ctx, o)); err != nil {
				return err
			}
			so := backup.StoreOptions{DB: metadata, Target: target, Store: blob.LeaveRoomBeside(store.Store, backend.Disks(cfg))}
			return runStoreRestore(ctx, cmd, store, so, o, *out)
		})
	}
	return cmd
}

// explainDamaged adds the way out to the error for an identity that can't be read.
func explainDamaged(err error) error {
	if errors.Is(err, blob.ErrDamagedIdentity) {
		err = fmt.Errorf("%w: --force writes it anew", err)
	}
	return err
}

// storeReport is a restored store as JSON.
type storeReport struct {
	backup.StoreRestored
	Adoption storeid.Adoption `json:"adoption"`
}

func runStoreRestore(ctx context.Context, cmd *cobra.Command, store *storeid.Store, so backup.StoreOptions, ao storeid.AdoptOptions, out command.Format) error {
	progress := command.NewProgressLine(cmd.ErrOrStderr())
	so.Progress = func(p backup.Progress) { tellBackup(progress, p) }
	r, err := backup.RestoreStore(ctx, so)
	progress.Clear()
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("interrupted: run \"purser store restore\" again, and it goes on: %w", err)
		}
		return err
	}
	entry := audit.Entry{Kind: audit.RunRestore, Detail: map[string]any{"target": so.Target.Place(), "objects": r.Objects, "missing": r.Missing}}
	if err := audit.New(so.DB).Append(ctx, entry); err != nil {
		return err
	}
	ao.Begin = noteAdoption(ctx, so.DB, ao)
	a, err := store.Adopt(ctx, ao)
	if err != nil {
		return explainDamaged(err)
	}
	report := storeReport{r, a}
	if err := out.Print(cmd.OutOrStdout(), report, func(w io.Writer) error { return writeStoreRestored(w, report) }); err != nil {
		return err
	}
	if r.Missing > 0 {
		return command.ExitCode(command.ExitFindings)
	}
	return nil
}

func writeStoreRestored(w io.Writer, r storeReport) error {
	text := fmt.Sprintf("Of %s of the database, the store at %s had %d, and %d were copied (%s).\n",
		command.Count(r.Blobs, "blob"), r.Adoption.Place, r.There, r.Objects, command.Size(r.Bytes))
	if r.Adoption.Changed {
		text += fmt.Sprintf("The store belongs to the database now, as %s.\n", r.Adoption.Identity)
	}
	if r.Missing > 0 {
		text += fmt.Sprintf("\nMissing: %s, which neither the store nor the backups have, or whose place in the store can't be written:\n", command.Count(r.Missing, "blob"))
		for _, m := range r.FirstMissing[:min(len(r.FirstMissing), maxExamples)] {
			text += fmt.Sprintf("  %s  %s\n", m.Digest, command.Size(m.Size))
		}
		if r.Missing > maxExamples {
			text += "  …\n"
		}
	}
	text += `
Next:
  purser check --repair    marks what is missing as lost, so that clients push it again, and what was lost as found
`
	_, err := io.WriteString(w, text)
	return err
}
