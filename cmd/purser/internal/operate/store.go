package operate

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/storeid"
)

func storeCommand(src *command.Source) *cobra.Command {
	return command.Group("store", "Look after which blob store belongs to the database", storeShowCommand(src), storeAdoptCommand(src), storeRestoreCommand(src))
}

// withStore runs `fn` with the configured store, even if the database is bound to another
// store. If `existing` is set and the configured directory has no store, it returns an
// error instead of creating one, unless it lacks only a part of its layout and `complete` is set. It
// refuses if servers run with other settings, unless `look` says that fn changes nothing.
func withStore(src *command.Source, cmd *cobra.Command, existing, complete, look bool, fn func(ctx context.Context, store *storeid.Store, metadata *db.DB) error) error {
	return withDSN(src, cmd, func(ctx context.Context, cfg *config.Config, dsn string) error {
		metadata, err := openForCheck(ctx, cmd, cfg, dsn)
		if err != nil {
			return err
		}
		defer metadata.Close()
		if !look {
			// The store of the server that ran last may be another one: that is what adopting is for.
			if err := requireSettingsOfRunning(ctx, src, cmd, cfg, metadata); err != nil {
				return err
			}
		}
		log, err := command.NewLogger(cmd.ErrOrStderr(), cfg.Log)
		if err != nil {
			return err
		}
		store, err := backend.TryStore(ctx, cfg.Storage, blob.DirOptions{Path: cfg.Storage.Filesystem.Path, Existing: existing, Complete: complete})
		if err != nil {
			return err
		}
		guarded, err := backend.IdentifiedStore(cfg.Storage, metadata, store, log)
		if err != nil {
			return err
		}
		return fn(byCommand(ctx, cmd), guarded, metadata)
	})
}

func storeShowCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Compare the identities of the blob store and the database",
		Long: "Compare the identities of the blob store and the database, and look for some of the database's\n" +
			"blobs in the store. Nothing is changed. The exit code is 0 when the two belong together, 1\n" +
			"after an error, and 2 when they don't.",
		Args: cobra.NoArgs,
	}
	out := command.AddFormat(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return withStore(src, cmd, true, false, true, func(ctx context.Context, store *storeid.Store, _ *db.DB) error {
			s, err := store.Show(ctx)
			if err != nil {
				return err
			}
			if err := out.Print(cmd.OutOrStdout(), s, func(w io.Writer) error { return writeStore(w, s) }); err != nil {
				return err
			}
			if !s.Same() {
				return command.ExitCode(command.ExitFindings)
			}
			return nil
		})
	}
	return cmd
}

func writeStore(w io.Writer, s storeid.State) error {
	text := fmt.Sprintf("store     %s  at %s\ndatabase  %s", orNone(s.Store), s.Place, orNone(s.Database))
	if s.LastPlace != "" {
		text += "  last at " + s.LastPlace
	}
	text += "\n" + sampled(s.Sample) + "\n"
	switch {
	case s.Same():
		text += "They belong together.\n"
	case s.Store == "" && s.Database == "":
		text += "Neither has an identity yet: \"purser serve\" gives them one at its first start.\n"
	case s.Store == "":
		text += "They don't belong together: see \"purser store adopt --help\".\n"
	default:
		text += "They don't belong together, and the store belongs to another database: see \"purser store adopt --help\".\n"
	}
	_, err := io.WriteString(w, text)
	return err
}

func sampled(s storeid.Sample) string {
	if s.Sampled == 0 {
		return "The database has no blobs to look for in the store."
	}
	text := fmt.Sprintf("Of %s of the database, drawn at random, the store has %d.", command.Count(int64(s.Sampled), "blob"), s.Found)
	if s.Unreadable > 0 {
		text += fmt.Sprintf(" It can't read %d (%v): \"purser check\" names them all.", s.Unreadable, s.Failure())
	}
	return text
}

func orNone(id string) string {
	if id == "" {
		return "no identity"
	}
	return id
}

func storeAdoptCommand(src *command.Source) *cobra.Command {
	var o storeid.AdoptOptions
	cmd := &cobra.Command{
		Use:   "adopt",
		Short: "Give the blob store to the database",
		Long: "Give the blob store to the database: the store gets the database's identity, and registries on\n" +
			"this database may write to it from now on. Do this when the store was restored or moved without\n" +
			"its identity or its empty directories, when the database was restored from a backup that knows no store, or to begin\n" +
			"with another store.\n\n" +
			"It is refused when the store has none of the database's blobs, unless --force is given,\n" +
			"and when the store belongs to another database, unless --from names the identity that it has.\n" +
			"Registries on that database stop writing then. \"purser store show\" tells what would be said.",
		Args: cobra.NoArgs,
	}
	out := command.AddFormat(cmd)
	cmd.Flags().StringVar(&o.From, "from", "", "take the store away from the database whose store has this `ID`")
	cmd.Flags().BoolVar(&o.New, "new", false, "give store and database a new identity: for a copy of both, to be a registry of its own")
	addOwnSettings(cmd)
	cmd.Flags().BoolVar(&o.Force, "force", false, "adopt a store that has none of the database's blobs, or whose identity is damaged")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return withStore(src, cmd, !o.Force, true, false, func(ctx context.Context, store *storeid.Store, metadata *db.DB) error {
			o.Begin = noteAdoption(ctx, metadata, o)
			a, err := store.Adopt(ctx, o)
			if err != nil {
				return explainDamaged(err)
			}
			return out.Print(cmd.OutOrStdout(), a, func(w io.Writer) error { return writeAdoption(w, a) })
		})
	}
	return cmd
}

// noteAdoption returns a function that enters an adoption into the audit log.
func noteAdoption(ctx context.Context, metadata *db.DB, o storeid.AdoptOptions) func(storeid.Adoption) error {
	return func(a storeid.Adoption) error {
		return audit.New(metadata).Append(ctx, audit.Entry{Kind: audit.AdoptStore, Detail: map[string]any{
			"place": a.Place, "identity": a.Identity, "was": a.Was, "force": o.Force, "sampled": a.Sampled, "found": a.Found,
		}})
	}
}

func writeAdoption(w io.Writer, a storeid.Adoption) error {
	text := fmt.Sprintf("The store at %s and the database belong together already, as %s.\n", a.Place, a.Identity)
	if a.Changed {
		text = fmt.Sprintf("The store at %s belongs to the database now, as %s.\n%s\n", a.Place, a.Identity, sampled(a.Sample))
		if a.Found < a.Sampled {
			text += "\"purser check\" says which blobs are missing, and \"purser check --repair\" has clients push them again.\n"
		}
	}
	_, err := io.WriteString(w, text)
	return err
}
