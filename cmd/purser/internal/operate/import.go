package operate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/registryimport"
)

func importCommand(src *command.Source, more []*cobra.Command) *cobra.Command {
	o := registryimport.Options{Parallel: 4}
	cmd := &cobra.Command{
		Use:   "import [DIRECTORY]",
		Short: "Take over the storage of another registry, without copying it",
		Long: "Take over the images that Docker's registry (distribution) or zot has stored in Purser's blob store, a\n" +
			"directory or a bucket. No blob is copied, and nothing of the other registry is changed, so it can go on\n" +
			"to serve pulls. DIRECTORY is its root directory, relative to the blob store; without it, the blob store\n" +
			"itself. Purser may serve meanwhile.\n\n" +
			"Run it again to go on after an interruption, or to fetch what was pushed to the other registry since: a\n" +
			"tag that differs is taken from the registry to which it was pushed last. What is broken is named and\n" +
			"skipped.\n\n" +
			"When the other registry is stopped for good, --finish makes all of its files Purser's own, also those of\n" +
			"images that were skipped or left out. Only then does garbage collection delete the files that are no\n" +
			"longer in use, and \"purser check --repair\" the others. This can't be undone. It looks first whether\n" +
			"the other registry got tags since the last import, names what was skipped, and asks.\n\n" +
			"The exit code is 0 when all was imported, 1 after an error, and 4 when something was skipped.\n\n" +
			"\"import harbor\" and \"import quay\" make what these products have besides images, by their APIs. A DIRECTORY\n" +
			"of such a name is ./harbor or ./quay.",
		Example: "  purser import --dry-run\n  purser import --untagged --to old\n  purser import --finish",
		Args:    cobra.MaximumNArgs(1),

		Annotations: map[string]string{command.TakesArguments: "yes"},
	}
	cmd.AddCommand(more...)
	out := command.AddFormat(cmd)
	f := cmd.Flags()
	f.Lookup("output").Usage = "print `FORMAT`: text, or json with one skipped thing per line and a summary last"
	f.BoolVar(&o.DryRun, "dry-run", false, "say what would be imported, and change nothing")
	f.BoolVar(&o.Untagged, "untagged", false, "import manifests too that have no tag and to which nothing refers")
	f.StringVar(&o.To, "to", "", "put `PREFIX`/ in front of the names of repositories")
	f.Var(command.Number(&o.Parallel, 1, 64), "parallel", "import `N` repositories at the same time")
	named := f.String("repositories", "", "import only the repositories in whose name this `REGEXP` is found")
	addOwnSettings(cmd)
	finish := f.Bool("finish", false, "end all imports: the other registries are stopped, and their files belong to Purser")
	yes, force := command.AddYes(cmd), f.Bool("force", false, "with --finish: also if the other registry has what Purser hasn't, or can't be looked at")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if *named != "" {
			if o.Repositories, err = regexp.Compile(*named); err != nil {
				return command.Usagef("--repositories: %w", err)
			}
		}
		if *finish && (len(args) > 0 || o.DryRun || o.Untagged || o.To != "" || o.Repositories != nil) {
			return command.Usagef("--finish ends all imports, and takes no other flags or arguments")
		}
		if !*finish && (*yes || *force) {
			return command.Usagef("--yes and --force are for --finish")
		}
		o.To = strings.Trim(o.To, "/")
		return withDSN(src, cmd, func(ctx context.Context, cfg *config.Config, dsn string) error {
			metadata, err := openForCheck(ctx, cmd, cfg, dsn)
			if err != nil {
				return err
			}
			defer metadata.Close()
			o.Catalog = catalog.New(catalog.Options{DB: metadata, CacheOff: true, MaxRequest: cfg.HTTP.MaxRequestTime,
				SparseIndexes: cfg.Manifests.SparseIndexes})
			o.Sparse = cfg.Manifests.SparseIndexes
			if *finish {
				if err := requireSameSettings(ctx, src, cmd, cfg, metadata); err != nil {
					return err
				}
				f := &finisher{cmd, cfg, dsn, metadata, o, *out, *yes, *force}
				return f.run(byCommand(ctx, cmd))
			}
			if len(args) > 0 {
				if o.Dir, err = directoryInStore(args[0], cfg.Storage); err != nil {
					return err
				}
			}
			return runImport(byCommand(ctx, cmd), cmd, cfg, dsn, metadata, o, *out)
		})
	}
	return cmd
}

// directoryInStore returns a directory that the user names as a path relative to the blob store. It
// may be absolute if the blob store is a directory.
func directoryInStore(dir string, cfg config.Storage) (string, error) {
	if store := backend.StorageOf(cfg).Directory(); filepath.IsAbs(dir) && store != "" {
		root, err := filepath.Abs(store)
		if err != nil {
			return "", err
		}
		relative, err := filepath.Rel(root, dir)
		if err != nil || relative != "." && !filepath.IsLocal(relative) {
			return "", command.Usagef("%s isn't in the blob store, which is %s: set storage.filesystem.path to the other registry's directory, "+
				"so that Purser keeps its objects beside it, or use \"purser copy\"", dir, root)
		}
		dir = relative
	}
	dir = filepath.ToSlash(filepath.Clean(dir))
	switch {
	case dir == ".":
		return "", nil
	case !filepath.IsLocal(dir):
		return "", command.Usagef("%s isn't a directory below the blob store", dir)
	}
	return dir, nil
}

func runImport(ctx context.Context, cmd *cobra.Command, cfg *config.Config, dsn string, metadata *db.DB, o registryimport.Options, out command.Format) error {
	raw, _, err := ownStore(ctx, cmd, cfg, dsn)
	if err != nil {
		return err
	}
	store, ok := raw.(registryimport.Store)
	if !ok {
		return errors.New("the files of this blob store can't be listed")
	}
	o.Store = store
	line := command.NewProgressLine(cmd.ErrOrStderr())
	if o.Log, err = command.NewLogger(line, cfg.Log); err != nil {
		return err
	}
	began := earlier{Directory: o.Dir, To: o.To, Untagged: o.Untagged}
	if o.Repositories != nil {
		began.Repositories = o.Repositories.String()
	}
	if !o.DryRun {
		if err := audit.New(metadata).Append(ctx, audit.Entry{Kind: audit.RunImport, Detail: began}); err != nil {
			return err
		}
		if err := metadata.Pool.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&began.Complete); err != nil {
			return err
		}
	}
	lines := json.NewEncoder(cmd.OutOrStdout())
	lines.SetEscapeHTML(false)
	var printErr error
	o.Skipped = func(s registryimport.Skip) {
		if out == command.JSON {
			printErr = errors.Join(printErr, lines.Encode(map[string]any{"skipped": s}))
			return
		}
		fmt.Fprintln(line, describeSkip(s)) //nolint:errcheck // the summary counts it
	}
	o.Progress = func(r registryimport.Report) { tellImport(line, "importing", r) }
	r, err := registryimport.Run(ctx, o)
	if err == nil && !o.DryRun {
		err = audit.New(metadata).Append(ctx, audit.Entry{Kind: audit.RunImport, Detail: began})
	}
	line.Clear()
	if errors.Is(err, catalog.ErrImportFinished) {
		err = fmt.Errorf("%w, so it can't be imported again; \"purser copy\" mirrors a registry over its API", err)
	}
	if out == command.JSON {
		printErr = errors.Join(printErr, lines.Encode(map[string]any{"summary": importSummary{r, err == nil, r.Took.Seconds()}}))
	} else if r.Format != "" {
		printErr = writeImport(cmd.OutOrStdout(), r, o, err == nil)
	}
	switch {
	case err != nil || printErr != nil:
		return errors.Join(err, printErr)
	case r.Skipped > 0:
		return command.ExitCode(command.ExitFindings)
	}
	return nil
}

// tellImport shows how far an import, or a look at what it would do, has come: with the time left, as soon as the
// repositories are counted.
func tellImport(line *command.ProgressLine, step string, r registryimport.Report) {
	if !line.Due() {
		return
	}
	line.Measure(importMeasured(step, r))
}

func importMeasured(step string, r registryimport.Report) command.Measured {
	m := command.Measured{Step: step, Count: r.Manifests, Unit: "manifest"}
	of := repositories(r.Repositories)
	if r.Whole > 0 {
		of = humanize.Comma(r.Repositories) + " of " + repositories(r.Whole)
		m.Share = min(1, r.Parts/float64(r.Whole)) // some may have been added since they were counted
	}
	m.Text = fmt.Sprintf("%s, %s, %s, %s skipped", of, command.Count(r.Tags, "tag"), command.Count(r.Manifests, "manifest"), humanize.Comma(r.Skipped))
	return m
}

// importSummary is the last line of an import's JSON output.
type importSummary struct {
	registryimport.Report
	Complete bool    `json:"complete"`
	Seconds  float64 `json:"seconds"`
}

// repositories returns a number of repositories as text.
func repositories(n int64) string {
	if n == 1 {
		return "1 repository"
	}
	return humanize.Comma(n) + " repositories"
}

func describeSkip(s registryimport.Skip) string {
	text := s.Repository
	if s.Tag != "" {
		text += ":" + s.Tag
	} else if !s.Digest.IsZero() {
		text += "@" + s.Digest.String()
	}
	return "skipped " + command.Printable(text+": "+s.Reason)
}

// writeImport prints the result of an import, and what comes next.
func writeImport(w io.Writer, r registryimport.Report, o registryimport.Options, complete bool) error {
	var b strings.Builder
	verb := "Imported"
	if o.DryRun {
		verb = "Would import"
	}
	if !complete {
		b.WriteString("Stopped early; run it again to go on. ")
	}
	fmt.Fprintf(&b, "%s %s and %s of %s, with %s (%s), in %s.\n", verb, command.Count(r.Tags, "tag"), command.Count(r.Manifests, "manifest"),
		repositories(r.Repositories), command.Count(r.Blobs, "blob"), command.Size(r.Bytes), r.Took.Round(time.Millisecond))
	if r.UpToDate > 0 {
		fmt.Fprintf(&b, "Up to date already: %s.\n", command.Count(r.UpToDate, "tag"))
	}
	if r.Newer > 0 {
		fmt.Fprintf(&b, "Left as they are in Purser, to which they were pushed later: %s.\n", command.Count(r.Newer, "tag"))
	}
	if r.Untagged > 0 {
		fmt.Fprintf(&b, "Left out, since they have no tag: %s. --untagged imports them.\n", command.Count(r.Untagged, "manifest"))
	}
	if r.Skipped > 0 {
		fmt.Fprintf(&b, "Skipped, as named above: %s.\n", command.Count(r.Skipped, "thing"))
	}
	if o.Untagged && !o.DryRun {
		b.WriteString("Garbage collection deletes manifests without a tag, unless a policy keeps them (untagged in docs/auto-prune.md).\n")
	}
	if complete && !o.DryRun {
		b.WriteString("The files still belong to the other registry. Don't delete anything in it, and don't run its garbage\n" +
			"collection. When it is stopped for good: purser import --finish\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
