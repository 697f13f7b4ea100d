package operate

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/backup"
	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/builtinpg"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
)

func moveCommand(src *command.Source) *cobra.Command {
	return command.Group("move", "Move a registry to another database or blob store", moveDatabaseCommand(src), moveBlobsCommand(src))
}

func moveDatabaseCommand(src *command.Source) *cobra.Command {
	back := false
	cmd := &cobra.Command{
		Use:   "database URL",
		Short: "Move from the built-in PostgreSQL to another server, while the registry is stopped",
		Long: "Copy all rows of the built-in PostgreSQL into the empty database at URL, which any PostgreSQL from 15 on\n" +
			"may have. Stop \"purser serve\" before. With - in place of URL it is read from standard input, so that no\n" +
			"list of processes shows its password. The built-in database stays, but no server starts on it any more.\n" +
			"If the move is interrupted, run it again.",
		Example: "  purser move database postgres://purser:secret@db.example.com/purser",
		Args: func(cmd *cobra.Command, args []string) error {
			if back {
				return cobra.NoArgs(cmd, args)
			}
			return cobra.ExactArgs(1)(cmd, args)
		},
	}
	cmd.Flags().BoolVar(&back, "back", false, "give up a move that was made: let servers start on the built-in PostgreSQL again")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg, pg, err := stoppedBuiltIn(src, cmd)
		if err != nil {
			return err
		}
		defer pg.Stop()
		if back {
			return moveBack(cmd, pg.DSN)
		}
		url := args[0]
		if url == "-" {
			line, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			url = strings.TrimSpace(line)
		}
		to, err := pgx.ParseConfig(url)
		if err != nil {
			return command.Usagef("URL: %w", err) // pgx's error has no password
		}
		place := fmt.Sprintf("to database %s at %s", to.Database, net.JoinHostPort(to.Host, strconv.Itoa(int(to.Port))))
		done, err := transfer(cmd, cfg, pg.DSN, url, func(ctx context.Context) error {
			return onConn(ctx, pg.DSN, func(conn *pgx.Conn) error { return db.MarkMoved(ctx, conn, place) })
		})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "The registry has moved %s: %s in %s, during which it was stopped.\n\n"+
			"Set database.main to that database's URL, and start the registry. The built-in PostgreSQL in %s is as it\n"+
			"was; remove it when you no longer need it.\n", place, command.Count(done.Rows, "row"), done.Took.Round(time.Millisecond), backend.PostgresDir(cfg))
		return err
	}
	return cmd
}

// stoppedBuiltIn starts the built-in PostgreSQL for a command that no server may run beside.
func stoppedBuiltIn(src *command.Source, cmd *cobra.Command) (*config.Config, *backend.Postgres, error) {
	cfg, err := src.LoadAndTell(cmd)
	if err != nil {
		return nil, nil, err
	}
	if cfg.Database.Main != "" {
		return nil, nil, errors.New("the metadata isn't in the built-in PostgreSQL: database.main (" + cfg.Source("database.main") +
			") names the server; use \"purser backup\" and \"purser restore\", or PostgreSQL's own tools")
	}
	log, err := command.NewLogger(cmd.ErrOrStderr(), cfg.Log)
	if err != nil {
		return nil, nil, err
	}
	pg, err := backend.StartPostgres(cmd.Context(), cfg, true, log)
	if errors.Is(err, builtinpg.ErrInUse) {
		return nil, nil, command.Refuse("the registry is running: stop \"purser serve\" first")
	}
	return cfg, pg, err
}

// onConn calls fn with a connection to a database.
func onConn(ctx context.Context, dsn string, fn func(conn *pgx.Conn) error) error {
	conn, done, err := db.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer done()
	return fn(conn)
}

func moveBack(cmd *cobra.Command, dsn string) error {
	return onConn(cmd.Context(), dsn, func(conn *pgx.Conn) error {
		was, err := db.UnmarkMoved(cmd.Context(), conn)
		text := "The registry hadn't moved away from the built-in PostgreSQL.\n"
		if was {
			text = "Servers start on the built-in PostgreSQL again. None may run on the other database any more.\n"
		}
		if err == nil {
			_, err = io.WriteString(cmd.OutOrStdout(), text)
		}
		return err
	})
}

// transfer copies all rows from one database to another, while the registry is stopped.
func transfer(cmd *cobra.Command, cfg *config.Config, from, to string, beforeEnd func(ctx context.Context) error) (backup.Transferred, error) {
	ctx := cmd.Context()
	progress := command.NewProgressLine(cmd.ErrOrStderr())
	log, err := command.NewLogger(progress, cfg.Log)
	if err != nil {
		return backup.Transferred{}, err
	}
	store, identity, err := ownStore(ctx, cmd, cfg, from)
	if err != nil {
		return backup.Transferred{}, err
	}
	done, err := backup.Transfer(ctx, backup.TransferOptions{
		From: from, To: to, Stats: string(cfg.Database.Stats), Store: store, Identity: identity, Place: backend.StorageOf(cfg.Storage).Place(),
		Scratch: filepath.Join(cfg.DataDir, "transfer"), Partitions: cfg.Database.Partitions, Purser: command.ReadBuild().Version,
		Room: backend.Disks(cfg).On(cfg.DataDir).Room, BeforeEnd: beforeEnd, Progress: func(p backup.Progress) { tellBackup(progress, p) }, Log: log,
	})
	progress.Clear()
	return done, err
}

// ownStore opens the configured blob store, and returns its identity, which must be the
// database's.
func ownStore(ctx context.Context, cmd *cobra.Command, cfg *config.Config, dsn string) (blob.Store, string, error) {
	metadata, err := openForCheck(ctx, cmd, cfg, dsn)
	if err != nil {
		return nil, "", err
	}
	defer metadata.Close()
	log, err := command.NewLogger(cmd.ErrOrStderr(), cfg.Log)
	if err != nil {
		return nil, "", err
	}
	raw, err := backend.TryStore(ctx, cfg.Storage, blob.DirOptions{Path: cfg.Storage.Filesystem.Path, Existing: true})
	if err != nil {
		return nil, "", err
	}
	store, err := backend.IdentifiedStore(cfg.Storage, metadata, raw, log)
	if err != nil {
		return nil, "", err
	}
	state, err := store.Show(ctx)
	switch {
	case err != nil:
		return nil, "", err
	case state.Database == "":
		return nil, "", errors.New("the database has no blob store yet: start the registry once with \"purser serve\"")
	case !state.Same():
		return nil, "", fmt.Errorf("%w: \"purser store show\" tells more", blob.ErrWrongStore)
	}
	return raw, state.Database, nil
}

func moveBlobsCommand(src *command.Source) *cobra.Command {
	var t targetFlags
	finish := false
	cmd := &cobra.Command{
		Use:   "blobs PLACE",
		Short: "Move the blobs to another directory or bucket",
		Long: "Copy all blobs to PLACE, an empty directory or s3://BUCKET/PREFIX, while the registry serves. Run it again\n" +
			"to copy what came since. Then stop all servers and run it with --finish: it copies the rest, and makes\n" +
			"PLACE the registry's blob store. From then on servers with the old configuration refuse to start.\n" +
			"The command may be interrupted and run again at any time. While it runs, nothing is deleted from the\n" +
			"blob store. The old store's objects stay; remove them when you no longer need them.",
		Example: "  purser move blobs s3://registry/blobs\n  purser move blobs s3://registry/blobs --finish",
		Args:    cobra.ExactArgs(1),
	}
	out := command.AddFormat(cmd)
	t.add(cmd.Flags())
	cmd.Flags().BoolVar(&finish, "finish", false, "copy the rest, and make PLACE the registry's blob store; all servers must be stopped")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return withDSN(src, cmd, func(ctx context.Context, cfg *config.Config, dsn string) error {
			to, err := backend.BlobPlace(args[0], cfg.Storage, t.s3)
			if err != nil {
				return command.Usagef("PLACE: %w", err)
			}
			store, err := backend.TryStore(ctx, to, blob.DirOptions{Path: to.Filesystem.Path})
			if err != nil {
				return err
			}
			from, identity, err := ownStore(ctx, cmd, cfg, dsn)
			if err != nil {
				return err
			}
			progress := command.NewProgressLine(cmd.ErrOrStderr())
			o := backup.MoveBlobsOptions{
				Main: dsn, From: from, FromPlace: backend.StorageOf(cfg.Storage).Place(), Identity: identity, To: blob.LeaveRoomBeside(store, backend.Disks(cfg)), ToPlace: backend.StorageOf(to).Place(),
				Finish: finish, Progress: func(p backup.Progress) { tellBackup(progress, p) },
			}
			if o.Log, err = command.NewLogger(progress, cfg.Log); err != nil {
				return err
			}
			done, err := backup.MoveBlobs(ctx, o)
			progress.Clear()
			if errors.Is(err, backup.ErrRunning) {
				return command.Refuse(err.Error())
			}
			if err != nil {
				return err
			}
			if err := out.Print(cmd.OutOrStdout(), done, func(w io.Writer) error { return writeMoved(w, o, done) }); err != nil {
				return err
			}
			if done.Missing > 0 && done.Finished {
				return command.ExitCode(command.ExitFindings)
			}
			return nil
		})
	}
	return cmd
}

func writeMoved(w io.Writer, o backup.MoveBlobsOptions, done backup.MovedBlobs) error {
	text := fmt.Sprintf("%s has %s (%s), of which %s (%s) were copied now, in %s.\n", o.ToPlace, command.Count(done.Objects-done.Missing, "object"), command.Size(done.Bytes),
		humanize.Comma(done.Copied), command.Size(done.CopiedBytes), done.Took.Round(time.Millisecond))
	if done.Missing > 0 {
		text += fmt.Sprintf("The old store lacks %s, or they were deleted or are damaged: \"purser check --deep\" says more.\n", command.Count(done.Missing, "object"))
	}
	if done.Finished {
		text += "It is the registry's blob store now. Set storage.s3 or storage.filesystem.path accordingly, and start the registry.\n" +
			"Then \"purser check --repair\" deletes the copies of blobs that were deleted meanwhile.\n"
	} else {
		text += "Run this again to copy what comes now. Then stop all servers, and run it with --finish: it will take about\n" +
			"as long as a pass with nothing new.\n"
	}
	_, err := io.WriteString(w, text)
	return err
}
