package operate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/backup"
	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
)

const targetText = "TARGET is a directory, or s3://BUCKET/PREFIX. A bucket is reached by the settings of storage.s3, with\n" +
	"which blobs are kept in S3, or by the flags --s3-… and the AWS_… variables.\n"

// targetFlags are the flags about a bucket of backups.
type targetFlags struct{ s3 backend.S3Access }

func (t *targetFlags) add(f *pflag.FlagSet) {
	f.StringVar(&t.s3.Endpoint, "s3-endpoint", "", "`URL` of the S3 service of TARGET (default: that of storage.s3)")
	f.StringVar(&t.s3.Region, "s3-region", "", "`REGION` of TARGET's bucket (default: that of storage.s3)")
	f.StringVar(&t.s3.CAFile, "s3-ca-file", "", "check the certificate of --s3-endpoint by this PEM `FILE` (default: the system's authorities)")
	f.BoolVar(&t.s3.PathStyle, "s3-path-style", false, "name TARGET's bucket in the path, not in the host (default: as storage.s3)")
}

func (t *targetFlags) open(ctx context.Context, text string, cfg *config.Config) (backup.Target, error) {
	target, err := backend.BackupTarget(ctx, text, cfg.Storage, t.s3)
	if err != nil {
		return nil, command.Usagef("TARGET: %w", err)
	}
	return backup.LeaveRoom(target, backend.Disks(cfg)), nil
}

func backupCommand(src *command.Source) *cobra.Command {
	var t targetFlags
	blobs := string(backup.Copy)
	keep, deep, newPlace := 0, false, false
	cmd := &cobra.Command{
		Use:   "backup TARGET",
		Short: "Back up the database and the blobs, while the registry serves",
		Long: "Back up the registry while it serves: the database as it is at one moment, and all blobs that it needs\n" +
			"then. Blobs that an earlier backup in TARGET has aren't copied again. Until the end of the backup,\n" +
			"garbage collection deletes nothing from the blob store.\n\n" + targetText +
			"\nA backup that fails or is interrupted leaves the blobs that it has copied, with which the next one goes\n" +
			"on. One that was killed also leaves its part of the database, and is never restored. The exit code is 4\n" +
			"if the store lacks blobs or has damaged ones: the backup is complete without them. It is 3 if TARGET\n" +
			"doesn't have the backup which the database knows there, since its volume may not be mounted; if the\n" +
			"backups there are lost, --new-place begins anew.",
		Example:     "  purser backup /srv/backup\n  purser backup --keep 14 s3://backups/purser",
		Args:        cobra.ExactArgs(1),
		Annotations: map[string]string{command.TakesArguments: "yes"},
	}
	out := command.AddFormat(cmd)
	t.add(cmd.Flags())
	cmd.Flags().StringVar(&blobs, "blobs", blobs, "`copy` the blobs, or only write a list of them: reference")
	cmd.Flags().Var(command.Number(&keep, 0, 1_000_000), "keep", "keep the `N` newest complete backups in TARGET, and delete older ones; 0: keep all")
	cmd.Flags().BoolVar(&deep, "deep", false, "also read the copies of blobs that TARGET has, and copy damaged ones again")
	cmd.Flags().BoolVar(&newPlace, "new-place", false, "begin anew in TARGET, since the backups that the database knows there are lost")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		which := backup.Which(blobs)
		if which != backup.Copy && which != backup.Reference {
			return command.Usagef("--blobs: %q isn't possible: use copy or reference", blobs)
		}
		if deep && which != backup.Copy {
			return command.Usagef("--deep reads the copies of blobs, and --blobs %s makes none", blobs)
		}
		return withDSN(src, cmd, func(ctx context.Context, cfg *config.Config, dsn string) error {
			target, err := t.open(ctx, args[0], cfg)
			if err != nil {
				return err
			}
			return runBackup(cmd, cfg, dsn, backup.Options{Target: target, Blobs: which, Keep: keep, Deep: deep, NewPlace: newPlace}, *out)
		})
	}
	cmd.AddCommand(backupListCommand(src), backupVerifyCommand(src))
	return cmd
}

func runBackup(cmd *cobra.Command, cfg *config.Config, dsn string, o backup.Options, out command.Format) error {
	ctx := byCommand(cmd.Context(), cmd)
	metadata, err := openForCheck(ctx, cmd, cfg, dsn)
	if err != nil {
		return err
	}
	defer metadata.Close()
	progress := command.NewProgressLine(cmd.ErrOrStderr())
	if o.Log, err = command.NewLogger(progress, cfg.Log); err != nil {
		return err
	}
	store, identity, err := ownStore(ctx, cmd, cfg, dsn)
	if err != nil {
		return err
	}
	entry := audit.Entry{Kind: audit.RunBackup, Detail: map[string]any{"target": o.Target.Place(), "blobs": o.Blobs}}
	if err := audit.New(metadata).Append(ctx, entry); err != nil {
		return err
	}
	o.Main, o.Stats, o.Store, o.Identity, o.Place = dsn, backend.StatsDSN(cfg, dsn), store, identity, backend.StorageOf(cfg.Storage).Place()
	o.Purser = command.ReadBuild().Version
	o.Progress = func(p backup.Progress) { tellBackup(progress, p) }
	r, err := backup.Run(ctx, o)
	progress.Clear()
	if errors.Is(err, backup.ErrNotThere) {
		return errors.Join(noteAbsence(ctx, metadata, o.Target.Place(), err), command.Refuse(err.Error()))
	}
	if r.Manifest != nil {
		noteBackup(ctx, cmd, metadata, o.Target.Place(), r.Manifest, o.Deep)
		if printErr := out.Print(cmd.OutOrStdout(), newBackupReport(r), func(w io.Writer) error { return writeBackup(w, r, o) }); printErr != nil {
			return errors.Join(err, printErr)
		}
	}
	if err == nil && r.Blobs.Missing > 0 {
		return command.ExitCode(command.ExitFindings)
	}
	return err
}

// tellBackup shows the progress of a backup, a restore or a verification.
func tellBackup(line *command.ProgressLine, p backup.Progress) {
	if !line.Due() {
		return
	}
	var parts []string
	if p.Rows > 0 {
		parts = append(parts, command.Count(p.Rows, "row"))
	}
	if p.Total > 0 {
		parts = append(parts, fmt.Sprintf("%s of %s", humanize.Comma(p.Objects), humanize.Comma(p.Total)))
	}
	if p.Bytes > 0 {
		parts = append(parts, command.Size(p.Bytes))
	}
	m := command.Measured{Step: p.Step, Text: strings.Join(parts, ", "), Share: command.Share(p.Objects, p.Total), Bytes: p.Bytes, Count: p.Objects, Unit: "object"}
	if p.Total == 0 {
		m.Count, m.Unit = p.Rows, "row"
	}
	line.Measure(m)
}

// backupReport is a backup as JSON.
type backupReport struct {
	ID           string         `json:"id"`
	Complete     bool           `json:"complete"`
	Purser       string         `json:"purser,omitempty"`
	Snapshot     time.Time      `json:"snapshot,omitzero"`
	Seconds      float64        `json:"seconds,omitempty"`
	Rows         int64          `json:"rows"`
	Bytes        int64          `json:"bytes"` // of the database's part
	Blobs        backup.Which   `json:"blobs,omitempty"`
	Objects      int64          `json:"objects"`
	ObjectBytes  int64          `json:"object_bytes"`
	Copied       int64          `json:"copied"`
	CopiedBytes  int64          `json:"copied_bytes"`
	Missing      int64          `json:"missing"`
	FirstMissing []string       `json:"first_missing,omitempty"`
	Lost         int64          `json:"lost,omitempty"` // blobs that were marked as lost before
	Store        string         `json:"store,omitempty"`
	Pruned       *backup.Pruned `json:"pruned,omitempty"`
	Problem      string         `json:"problem,omitempty"`
}

func reportOf(m *backup.Manifest) backupReport {
	return backupReport{
		ID: m.ID, Complete: true, Purser: m.Purser, Snapshot: m.Snapshot, Seconds: m.Finished.Sub(m.Began).Seconds(), Rows: m.Rows(), Bytes: m.Bytes(),
		Blobs: m.Blobs.Which, Objects: m.Blobs.Count, ObjectBytes: m.Blobs.Bytes, Copied: m.Blobs.Copied, CopiedBytes: m.Blobs.CopiedBytes,
		Missing: m.Blobs.Missing, FirstMissing: m.Blobs.FirstMissing, Lost: m.Lost.Count, Store: m.Store,
	}
}

func newBackupReport(r backup.Result) backupReport {
	b := reportOf(r.Manifest)
	b.Pruned = &r.Pruned
	return b
}

func writeBackup(w io.Writer, r backup.Result, o backup.Options) error {
	m := r.Manifest
	text := fmt.Sprintf("Backup %s is complete, after %s. It has the registry as it was at %s.\nDatabase: %s in %s.\n",
		m.ID, m.Finished.Sub(m.Began).Round(time.Millisecond), m.Snapshot.Format(time.RFC3339), command.Count(m.Rows(), "row"), command.Size(m.Bytes()))
	switch m.Blobs.Which {
	case backup.Copy:
		text += fmt.Sprintf("Blobs: %s (%s), of which %s (%s) were copied now.\n", command.Count(m.Blobs.Count, "object"), command.Size(m.Blobs.Bytes),
			humanize.Comma(m.Blobs.Copied), command.Size(m.Blobs.CopiedBytes))
	case backup.Reference:
		text += fmt.Sprintf("Blobs: %s (%s) in the blob store, which weren't copied. Back up the store too, and see gc.keep_doomed.\n",
			command.Count(m.Blobs.Count, "object"), command.Size(m.Blobs.Bytes))
	}
	if m.Blobs.Missing > 0 {
		text += fmt.Sprintf("\nThe store lacks %s, or has other bytes, so the backup lacks them too: \"purser check --deep\" shows which blobs they are.\n", command.Count(m.Blobs.Missing, "object"))
		for i, key := range m.Blobs.FirstMissing {
			if i == maxExamples {
				text += "  …\n"
				break
			}
			text += "  " + key + "\n"
		}
	}
	if m.Lost.Count > 0 {
		text += fmt.Sprintf("Lost before: %s. \"purser store restore\" brings back what earlier backups have copied.\n", command.Count(m.Lost.Count, "blob"))
	}
	if p := r.Pruned; o.Keep > 0 {
		text += fmt.Sprintf("Deleted: %s, and %s (%s) that no other backup needs.\n", command.Count(int64(p.Backups), "old backup"), command.Count(p.Objects, "object"), command.Size(p.Bytes))
		if p.Waiting {
			text += "Objects of old backups stay for now: a backup there was interrupted, or runs, since less than a day, or is damaged.\n"
		}
	}
	_, err := io.WriteString(w, text)
	return err
}

// loadForTarget reads the configuration for a command that needs only the target.
func loadForTarget(src *command.Source, cmd *cobra.Command, t *targetFlags, text string) (*config.Config, backup.Target, error) {
	cfg, err := src.LoadAndTell(cmd)
	if err != nil {
		return nil, nil, err
	}
	target, err := t.open(cmd.Context(), text, cfg)
	return cfg, target, err
}

func backupListCommand(src *command.Source) *cobra.Command {
	var t targetFlags
	cmd := &cobra.Command{
		Use:   "list TARGET",
		Short: "List the backups in a directory or bucket",
		Long:  "List the backups in TARGET, oldest first.\n\n" + targetText,
		Args:  cobra.ExactArgs(1),
	}
	listing := command.AddListing(cmd)
	t.add(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		_, target, err := loadForTarget(src, cmd, &t, args[0])
		if err != nil {
			return err
		}
		all, err := backup.List(cmd.Context(), target)
		if err != nil {
			return err
		}
		list, skipped := []backupReport{}, 0
		for _, e := range all {
			r := backupReport{ID: e.ID, Problem: "incomplete"}
			if e.Manifest != nil {
				r = reportOf(e.Manifest)
			} else if e.Err != nil {
				r.Problem = e.Err.Error()
			}
			list = append(list, r)
		}
		if listing.Limit > 0 && len(list) > listing.Limit { // the newest, which are the last
			skipped = len(list) - listing.Limit
			list = list[skipped:]
		}
		return command.PrintList(cmd, listing, list, skipped > 0, func(r backupReport) string { return r.ID }, func(w io.Writer) error {
			if err := writeBackups(w, list); err != nil || skipped == 0 {
				return err
			}
			_, err := fmt.Fprintln(w, "Older ones: --limit 0 lists all.")
			return err
		})
	}
	return cmd
}

func writeBackups(w io.Writer, list []backupReport) error {
	rows := make([][]string, len(list))
	for i, r := range list {
		if !r.Complete {
			rows[i] = []string{r.ID, "", "", "", "", "", "", "", r.Problem}
			continue
		}
		state := "complete"
		if r.Missing > 0 {
			state = fmt.Sprintf("complete without %s that the store lacked", command.Count(r.Missing, "object"))
		}
		rows[i] = []string{r.ID, r.Snapshot.Local().Format(time.DateTime), humanize.Comma(r.Rows), command.Size(r.Bytes),
			string(r.Blobs), humanize.Comma(r.Objects), command.Size(r.ObjectBytes), command.Size(r.CopiedBytes), state}
	}
	return command.Table(w, []string{"ID", "SNAPSHOT", "ROWS", "DATABASE", "BLOBS", "OBJECTS", "SIZE", "NEW", "STATE"}, rows)
}

func backupVerifyCommand(src *command.Source) *cobra.Command {
	var t targetFlags
	id, deep := "", false
	cmd := &cobra.Command{
		Use:   "verify TARGET",
		Short: "Verify that a backup can be restored",
		Long: "Read all files of a backup's database and compare their hashes, and look for all of its blobs. A backup\n" +
			"that has no copies of the blobs needs those in the configured blob store. If the registry's database can\n" +
			"be reached, the result is noted there, for metrics and \"purser doctor\"; as the time of the last\n" +
			"verification only if the copies of blobs were read too (--deep).\n\n" + targetText +
			"\nThe exit code is 1 if the backup is damaged, 4 if it lacks blobs, and, without --backup, 3 if TARGET doesn't\n" +
			"have the backup which the database knows there.",
		Args: cobra.ExactArgs(1),
	}
	out := command.AddFormat(cmd)
	t.add(cmd.Flags())
	cmd.Flags().StringVar(&id, "backup", "", "verify the backup with this `ID` (default: the newest)")
	cmd.Flags().BoolVar(&deep, "deep", false, "also read all blobs of the backup, and compare them with their digests")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg, target, err := loadForTarget(src, cmd, &t, args[0])
		if err != nil {
			return err
		}
		m, err := findKnown(cmd, cfg, target, id)
		if err != nil {
			return err
		}
		progress := command.NewProgressLine(cmd.ErrOrStderr())
		o := backup.VerifyOptions{Target: target, Manifest: m, Deep: deep, Progress: func(p backup.Progress) { tellBackup(progress, p) }}
		if m.Blobs.Which == backup.Reference {
			if o.Store, err = backend.TryStore(cmd.Context(), cfg.Storage, blob.DirOptions{Path: cfg.Storage.Filesystem.Path, Existing: true}); err != nil {
				return err
			}
		}
		v, err := backup.Verify(cmd.Context(), o)
		progress.Clear()
		noteVerification(cmd, cfg, o, v, err)
		if err != nil {
			return err
		}
		if err := out.Print(cmd.OutOrStdout(), v, func(w io.Writer) error { return writeVerification(w, m, v) }); err != nil {
			return err
		}
		if v.Missing > 0 {
			return command.ExitCode(command.ExitFindings)
		}
		return nil
	}
	return cmd
}

func writeVerification(w io.Writer, m *backup.Manifest, v backup.Verification) error {
	text := fmt.Sprintf("Backup %s is intact: %s, %s.\n", m.ID, command.Count(v.Rows, "row"), command.Count(v.Objects, "object"))
	if !v.Deep && v.Objects > 0 {
		where, reads := "there", "--deep"
		if m.Blobs.Which == backup.Reference {
			where, reads = "in the blob store", `"purser check --deep"`
		}
		text = fmt.Sprintf("The database's part of backup %s is intact (%s), and all of its %s are %s with their sizes. Their bytes\n"+
			"weren't read: %s does that.\n", m.ID, command.Count(v.Rows, "row"), command.Count(v.Objects, "object"), where, reads)
	}
	if v.Missing > 0 {
		text = fmt.Sprintf("The database's part of backup %s is intact (%s), but %s of %s are missing or damaged:\n", m.ID, command.Count(v.Rows, "row"),
			humanize.Comma(v.Missing), command.Count(v.Objects, "object"))
		for _, key := range v.FirstMissing[:min(len(v.FirstMissing), maxExamples)] {
			text += "  " + key + "\n"
		}
		if m.Blobs.Which == backup.Copy {
			text += "If the registry has them, \"purser backup --deep\" copies them again. \"purser restore\" restores all others.\n"
		}
	}
	_, err := io.WriteString(w, text)
	return err
}

func restoreCommand(src *command.Source) *cobra.Command {
	var t targetFlags
	var o backup.RestoreOptions
	id := ""
	cmd := &cobra.Command{
		Use:   "restore TARGET",
		Short: "Restore a backup into an empty registry",
		Long: "Restore a backup of \"purser backup\" into the database and the blob store of the configuration, which must\n" +
			"be empty. With --keep-store the blob store keeps what it has, and must be the one of the registry that\n" +
			"was backed up: so is a backup restored that has no copies of the blobs, or when only the database was lost.\n" +
			"Two registries must never run on one blob store: make sure that the old one doesn't.\n\n" + targetText +
			"\nThe whole backup is read and compared with its hashes first. Blobs that it lacks, or whose bytes are damaged,\n" +
			"are marked as lost, so that clients push them again, and all others are restored; with --strict nothing is\n" +
			"restored then. A restore that was interrupted goes on when it is run again in the same way; until it has\n" +
			"ended, no server starts on the database.\n\n" +
			"The exit code is 4 if blobs are marked as lost, now or since before the backup, and 1 if the backup couldn't be restored.",
		Args: cobra.ExactArgs(1),
	}
	out := command.AddFormat(cmd)
	t.add(cmd.Flags())
	cmd.Flags().StringVar(&id, "backup", "", "restore the backup with this `ID` (default: the newest complete one)")
	cmd.Flags().BoolVar(&o.Keep, "keep-store", false, "restore the database alone, and use the blobs that the store has")
	cmd.Flags().BoolVar(&o.Strict, "strict", false, "restore nothing if the backup lacks blobs or has damaged ones")
	cmd.Flags().BoolVar(&o.Force, "force", false, "restore although more than half of the blobs are missing or damaged")
	cmd.Flags().StringVar(&o.From, "from", "", "with --keep-store: take the store away from the database whose store has this `ID`")
	cmd.Flags().BoolVar(&o.NewIdentity, "new-identity", false, "give database and store a new identity, to run beside the registry that was backed up")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		// The backup is looked for first, so that a wrong TARGET doesn't create a database.
		_, target, err := loadForTarget(src, cmd, &t, args[0])
		if err != nil {
			return err
		}
		if o.Manifest, err = backup.Find(cmd.Context(), target, id); err != nil {
			return err
		}
		o.Target = target
		if o.Manifest.Blobs.Which == backup.Reference && !o.Keep {
			return command.Refuse(fmt.Sprintf("backup %s has no copies of the blobs: restore the blob store, or use the registry's own, and add --keep-store", o.Manifest.ID))
		}
		return withAnyDSN(src, cmd, false, func(ctx context.Context, cfg *config.Config, dsn string) error {
			return runRestore(cmd, cfg, dsn, o, *out)
		})
	}
	return cmd
}

func runRestore(cmd *cobra.Command, cfg *config.Config, dsn string, o backup.RestoreOptions, out command.Format) error {
	ctx := byCommand(cmd.Context(), cmd)
	progress := command.NewProgressLine(cmd.ErrOrStderr())
	var err error
	if o.Log, err = command.NewLogger(progress, cfg.Log); err != nil {
		return err
	}
	o.Store, err = backend.TryStore(ctx, cfg.Storage, blob.DirOptions{Path: cfg.Storage.Filesystem.Path, Existing: o.Keep && !o.Force, Complete: o.Keep})
	if err != nil {
		return err
	}
	o.Store = blob.LeaveRoomBeside(o.Store, backend.Disks(cfg))
	o.Main, o.Stats, o.Place, o.Partitions = dsn, backend.StatsDSN(cfg, dsn), backend.StorageOf(cfg.Storage).Place(), cfg.Database.Partitions
	o.Progress = func(p backup.Progress) { tellBackup(progress, p) }
	o.Room = backend.DatabaseDisk(cfg).Room
	r, err := backup.Restore(ctx, o)
	progress.Clear()
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("interrupted: run \"purser restore\" again, and it goes on: %w", err)
		}
		return err
	}
	metadata, err := db.Open(ctx, db.Options{DSN: dsn, MaxConns: 1, ApplicationName: "purser restore", Log: o.Log})
	if err != nil {
		return err
	}
	defer metadata.Close()
	if !o.NewIdentity {
		noteBackup(ctx, cmd, metadata, o.Target.Place(), o.Manifest, false)
	}
	entry := audit.Entry{Kind: audit.RunRestore, Detail: map[string]any{"target": o.Target.Place(), "backup": r.ID, "lost": r.Lost}}
	if err := audit.New(metadata).Append(ctx, entry); err != nil {
		return err
	}
	if err := out.Print(cmd.OutOrStdout(), r, func(w io.Writer) error { return writeRestored(w, o, r) }); err != nil {
		return err
	}
	if r.Lost > 0 {
		return command.ExitCode(command.ExitFindings)
	}
	return nil
}

// writeLost says which blobs a restore has marked as lost.
func writeLost(r backup.Restored) string {
	text := fmt.Sprintf("\nLost: %s, which the backup lacks or has damaged. Clients are told that lost blobs don't exist. Push their\n"+
		"images again to bring them back; with crane or regctl under another tag, since they skip a tag that is there.\n", command.Count(r.Lost, "blob"))
	for _, l := range r.FirstLost[:min(len(r.FirstLost), maxExamples)] {
		text += fmt.Sprintf("  %s  %s  %s\n", l.Digest, command.Size(l.Size), strings.Join(l.Repositories, ", "))
	}
	if r.Lost > maxExamples {
		text += "  …\n"
	}
	return text + "\"purser check\" lists all of them, with the repositories that have them.\n"
}

func writeRestored(w io.Writer, o backup.RestoreOptions, r backup.Restored) error {
	text := fmt.Sprintf("Backup %s is restored: %s; the registry is as it was at %s.\n", r.ID, command.Count(r.Rows, "row"), o.Manifest.Snapshot.Format(time.RFC3339))
	if !o.Keep {
		text += fmt.Sprintf("Copied %s into the blob store at %s.\n", command.Count(r.Objects, "object"), o.Place)
	}
	if r.Lost > 0 {
		text += writeLost(r)
	}
	text += `
Next:
  purser check     compares the restored database with the blob store
  purser serve     starts the registry
Look at accounts, roles and tokens: what was revoked after the backup is valid again. What was pushed
after the backup has to be pushed again.
`
	if !o.NewIdentity {
		text += "The old registry must not run again on this blob store.\n"
	}
	_, err := io.WriteString(w, text)
	return err
}
