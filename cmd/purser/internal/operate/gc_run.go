package operate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/gc"
)

func gcRunCommand(src *command.Source) *cobra.Command {
	r := &gcRun{}
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Collect garbage now, until nothing is due",
		Long: "Collect garbage now, until nothing is due: run the reviews that are due, which delete what nothing\n" +
			"refers to, and delete pending deletions from the store. It may run beside servers, which do the same\n" +
			"all the time, and may be interrupted. With --dry-run it rolls back what it does in the database,\n" +
			"leaves the store alone, and lists what would be deleted.",
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("limit") && !r.dry {
				return errors.New("--limit is for --dry-run: leave it out, since a run lists nothing")
			}
			return cobra.NoArgs(cmd, args)
		},
	}
	cmd.Flags().BoolVar(&r.dry, "dry-run", false, "delete nothing, and list what would be deleted")
	r.limit = 100
	cmd.Flags().Var(command.Number(&r.limit, 0, command.MaxListed), "limit", "list at most `N` things that would be deleted; 0: all")
	r.format = command.AddFormat(cmd)
	addOwnSettings(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return withCollector(src, cmd, func(ctx context.Context, cfg *config.Config, c *gc.Collector, metadata *db.DB, log *audit.Log) error {
			if !r.dry {
				if err := requireSameSettings(ctx, src, cmd, cfg, metadata); err != nil {
					return err
				}
			}
			r.out, r.progress = cmd.OutOrStdout(), command.NewProgressLine(cmd.ErrOrStderr())
			if err := log.Append(ctx, audit.Entry{Kind: audit.RunGC, Detail: map[string]any{"dry_run": r.dry}}); err != nil {
				return err
			}
			return r.run(ctx, cfg, c, metadata)
		})
	}
	return cmd
}

// gcRun is one "purser gc run".
type gcRun struct {
	dry    bool
	limit  int
	format *command.Format
	batch  int // reviews in a transaction; 0: the default

	out      io.Writer
	progress *command.ProgressLine
	report   gcReport
	err      error // from writing to out
}

// gcReport says what a run of garbage collection deleted, or in a dry run would delete.
type gcReport struct {
	DryRun   bool `json:"dry_run"`
	Complete bool `json:"complete"` // the run neither failed nor was interrupted
	gc.Progress
	// Found lists up to --limit of the manifests and blobs that a dry run would delete. It
	// is nil unless the run is a dry run with JSON output.
	Found []gc.DryRunDeletion `json:"found,omitzero"`
}

// errInterrupted is the error of an interrupted run.
var errInterrupted = errors.New("interrupted: the next run, or the servers, do the rest")

func (r *gcRun) run(ctx context.Context, cfg *config.Config, c *gc.Collector, metadata *db.DB) error {
	log, err := r.logger(cfg.Log)
	if err != nil {
		return err
	}
	o := gc.CollectOptions{
		Collector: c, DryRun: r.dry, Batch: r.batch, TransactionTimeout: cfg.GC.TransactionTimeout,
		StorageTimeout: cfg.Storage.DeleteTimeout, MaxFailures: cfg.GC.SetAsideAfter, UploadAge: backend.UploadAge(cfg),
		Progress: func(done gc.Progress) { r.progress.Measure(measured(done)) }, WouldDelete: r.found, Log: log,
	}
	if r.report.DryRun = r.dry; r.dry {
		r.report.Found = []gc.DryRunDeletion{}
	} else if o.Store, o.StoreError = r.store(ctx, cfg, metadata, log); errors.Is(o.StoreError, blob.ErrWrongStore) {
		return o.StoreError // not only the store, but also the database may be the wrong one
	}
	r.report.Progress, err = gc.Collect(ctx, o)
	r.report.Complete = err == nil
	if err != nil && ctx.Err() != nil {
		err = errInterrupted
	}
	r.progress.Clear()
	return errors.Join(r.err, r.format.Print(r.out, r.report, r.summary), err)
}

// store opens the blob store.
func (r *gcRun) store(ctx context.Context, cfg *config.Config, metadata *db.DB, log *slog.Logger) (blob.Store, error) {
	store, err := backend.OpenStore(ctx, cfg.Storage, metadata, log, nil)
	if err != nil {
		return nil, err // a nil *storeid.Store would make a non-nil blob.Store
	}
	return store, nil
}

// logger returns a logger that writes through the progress line, so that log messages and
// progress don't mix. If log.level is info, it logs only warnings and errors, since the
// progress line shows the rest.
func (r *gcRun) logger(cfg config.Log) (*slog.Logger, error) {
	if cfg.Level == "info" {
		cfg.Level = "warn"
	}
	if cfg.Format == "auto" && r.progress.OnTerminal() {
		cfg.Format = "text"
	}
	return command.NewLogger(r.progress, cfg)
}

// found reports a manifest or blob that a dry run would delete. As text, it is printed at
// once; as JSON, it is listed in the report at the end.
func (r *gcRun) found(f gc.DryRunDeletion) {
	n := int(r.report.ManifestsDeleted + r.report.BlobsDeleted)
	if f.Kind == gc.ReviewOfManifests {
		r.report.ManifestsDeleted++
	} else {
		r.report.BlobsDeleted++
	}
	if r.limit > 0 && n >= r.limit || r.err != nil {
		return
	}
	if *r.format == command.JSON {
		r.report.Found = append(r.report.Found, f)
		return
	}
	const row = "%-8s  %10s  %-20s  %s\n"
	r.progress.Clear()
	if n == 0 {
		_, r.err = fmt.Fprintf(r.out, row, "KIND", "SIZE", "WHY", "WHAT")
	}
	what := f.Digest.String()
	if f.Repository != "" {
		what = f.Repository + "@" + what
	}
	if r.err == nil {
		_, r.err = fmt.Fprintf(r.out, row, f.Kind, command.Size(f.Size), f.Event, what)
	}
}

func (r *gcRun) summary(w io.Writer) error {
	if r.dry {
		return r.drySummary(w)
	}
	p := r.report.Progress
	_, err := fmt.Fprintf(w, "Reviewed %s, deleted %s; reviewed %s, deleted %s.\nDeleted %s from the store: reclaimed %s.\n",
		command.Count(p.ManifestsReviewed, "manifest"), humanize.Comma(p.ManifestsDeleted),
		command.Count(p.BlobsReviewed, "blob"), humanize.Comma(p.BlobsDeleted), command.Count(p.Objects, "object"), command.Size(p.Bytes))
	if err == nil && p.Failed > 0 {
		_, err = fmt.Fprintf(w, "The store failed to delete %s: servers try them again, and \"purser gc status\" shows them.\n", command.Count(p.Failed, "object"))
	}
	if err == nil && p.SecondSweeps > 0 {
		_, err = fmt.Fprintf(w, "To be deleted once more after http.max_request_time, in case a request wrote late: %s.\n", command.Count(p.SecondSweeps, "object"))
	}
	if err == nil && p.Kept > 0 {
		_, err = fmt.Fprintf(w, "Kept in the store until gc.keep_doomed is over, or a day after a repair: %s (%s).\n", command.Count(p.Kept, "object"), command.Size(p.KeptBytes))
	}
	if err == nil && p.Paused {
		_, err = fmt.Fprintln(w, "A backup is running. Until it ends, nothing is deleted from the store: servers do it afterwards.")
	}
	if err == nil && r.report.Complete && !p.Paused {
		_, err = fmt.Fprintln(w, "Nothing is left to do now. What lost its last reference may wait for its delay: see \"purser gc status\".")
	}
	return err
}

func (r *gcRun) drySummary(w io.Writer) error {
	p := r.report.Progress
	if hidden := p.ManifestsDeleted + p.BlobsDeleted - int64(r.limit); r.limit > 0 && hidden > 0 {
		if _, err := fmt.Fprintf(w, "… and %s more: --limit 0 lists all.\n", humanize.Comma(hidden)); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "A run would delete %s of %s reviewed, and %s (%s) of %s.\n"+
		"A dry run can't tell what comes after: deleting manifests queues their blobs, children and\n"+
		"referrers for reviews of their own, after their delays. It doesn't delete pending deletions either.\n",
		command.Count(p.ManifestsDeleted, "manifest"), humanize.Comma(p.ManifestsReviewed),
		command.Count(p.BlobsDeleted, "blob"), command.Size(p.Bytes), humanize.Comma(p.BlobsReviewed))
	return err
}
