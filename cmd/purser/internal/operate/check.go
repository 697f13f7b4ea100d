package operate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	storecheck "github.com/purser-registry/purser/internal/check"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
)

func checkCommand(src *command.Source) *cobra.Command {
	var o storecheck.Options
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Compare the database with the blob store",
		Long: "Compare the database with the blob store: blobs whose object is missing or has the wrong size,\n" +
			"objects that nothing owns and, with --deep, blobs whose content isn't what their digest says.\n" +
			"Manifests that declare other sizes than are stored are reported as a note.\n" +
			"Registries may run meanwhile. Nothing is changed unless --repair is given.\n\n" +
			"The exit code is 0 when all is well, 1 after an error or if a part of the store couldn't be read,\n" +
			"and 4 when something is left to be done.",
		Args: cobra.NoArgs,
	}
	out := command.AddFormat(cmd)
	cmd.Flags().Lookup("output").Usage = "print `FORMAT`: text, or json with one finding per line and a summary last"
	cmd.Flags().BoolVar(&o.Deep, "deep", false, "read every blob and compare its content with its digest")
	cmd.Flags().BoolVar(&o.Repair, "repair", false, "mark lost blobs, so that clients push them again, and delete objects that nothing owns")
	addOwnSettings(cmd)
	cmd.Flags().BoolVar(&o.Force, "force", false, "repair even if more than half of what was compared is wrong")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return withDSN(src, cmd, func(ctx context.Context, cfg *config.Config, dsn string) error {
			metadata, err := openForCheck(ctx, cmd, cfg, dsn)
			if err != nil {
				return err
			}
			defer metadata.Close()
			if o.Repair {
				if err := requireSameSettings(ctx, src, cmd, cfg, metadata); err != nil {
					return err
				}
			}
			o.Catalog = catalog.New(catalog.Options{DB: metadata, CacheOff: true, MaxRequest: cfg.HTTP.MaxRequestTime})
			o.KeepDoomed = cfg.GC.KeepDoomed
			if o.Store, o.Tree, err = storeForCheck(ctx, cmd, cfg.Storage, metadata, o.Repair); err != nil {
				return err
			}
			entry := audit.Entry{Kind: audit.RunCheck, Detail: map[string]any{"deep": o.Deep, "repair": o.Repair, "force": o.Force}}
			if err := audit.New(metadata).Append(byCommand(ctx, cmd), entry); err != nil {
				return err
			}
			return runCheck(ctx, cmd.OutOrStdout(), cmd.ErrOrStderr(), *out, o)
		})
	}
	return cmd
}

// storeForCheck opens the blob store for a check. If `repair` is set, it returns an error
// unless the database is bound to this store. Otherwise it accepts another store with a
// warning, since a check without repairs changes nothing. It also returns the store as a Tree.
func storeForCheck(ctx context.Context, cmd *cobra.Command, cfg config.Storage, metadata *db.DB, repair bool) (blob.Store, blob.Tree, error) {
	log, err := command.NewLogger(cmd.ErrOrStderr(), config.Log{Level: "error", Format: "text"})
	if err != nil {
		return nil, nil, err
	}
	// With Existing, a wrong path is an error. Without it, a new, empty store would be made
	// there.
	raw, err := backend.TryStore(ctx, cfg, blob.DirOptions{Path: cfg.Filesystem.Path, Existing: true})
	if err != nil {
		return nil, nil, err
	}
	tree, _ := raw.(blob.Tree)
	store, err := backend.IdentifiedStore(cfg, metadata, raw, log)
	if err != nil {
		return nil, nil, err
	}
	if repair {
		return store, tree, store.Establish(ctx)
	}
	if s, err := store.Show(ctx); err != nil {
		return nil, nil, err
	} else if !s.Same() && s.Store+s.Database != "" {
		fmt.Fprintf(cmd.ErrOrStderr(), "This store isn't the database's: \"purser store show\" tells more. What is found below says nothing about the registry.\n") //nolint:errcheck
	}
	return raw, tree, nil
}

// openForCheck opens a pool on the metadata database. Options.Replica stays empty, since
// triggers don't notify the replica that is named there, but the caches of all servers must
// learn of a repair's changes.
func openForCheck(ctx context.Context, cmd *cobra.Command, cfg *config.Config, dsn string) (*db.DB, error) {
	if err := backend.ForCommand(backend.CheckMetadata(ctx, dsn)); err != nil {
		return nil, err
	}
	log, err := command.NewLogger(cmd.ErrOrStderr(), cfg.Log)
	if err != nil {
		return nil, err
	}
	return db.Open(ctx, db.Options{DSN: dsn, MaxConns: checkConns, ApplicationName: "purser check", Log: log})
}

// checkConns is the size of the pool that openForCheck opens. Each list that the check
// compares keeps a connection for itself; the rest serves the other queries of the check.
const checkConns = 8

// runCheck runs the check with the options `o`, and prints its findings and their summary.
func runCheck(ctx context.Context, stdout, stderr io.Writer, f command.Format, o storecheck.Options) error {
	lines := json.NewEncoder(stdout)
	lines.SetEscapeHTML(false)
	var printErr error
	examples := make(map[storecheck.Problem][]storecheck.Finding)
	o.Found = func(found storecheck.Finding) {
		if f == command.JSON {
			printErr = errors.Join(printErr, lines.Encode(map[string]any{"finding": found}))
		} else if len(examples[found.Problem]) < maxExamples {
			examples[found.Problem] = append(examples[found.Problem], found)
		}
	}
	line := command.NewProgressLine(stderr)
	o.Progress = func(p storecheck.Progress) { showCheck(line, p) }
	report, err := storecheck.Run(ctx, o)
	line.Clear()
	if errors.Is(err, storecheck.ErrImplausible) {
		err = fmt.Errorf("%w; --force repairs it all the same", err)
	}
	if f == command.JSON {
		printErr = errors.Join(printErr, lines.Encode(map[string]any{"summary": checkSummary{
			CheckReport: report, Complete: err == nil, Remaining: report.Remaining(), Seconds: report.Took.Seconds(),
		}}))
	} else {
		printErr = writeCheck(stdout, o, report, examples, err == nil || errors.Is(err, storecheck.ErrIncomplete))
	}
	switch {
	case err != nil || printErr != nil:
		return errors.Join(err, printErr)
	case report.Remaining():
		return command.ExitCode(command.ExitFindings)
	}
	return nil
}

// checkSummary is the last line of a check's JSON output.
type checkSummary struct {
	storecheck.CheckReport
	Complete  bool    `json:"complete"`
	Remaining bool    `json:"remaining"` // problems are left that need somebody
	Seconds   float64 `json:"seconds"`
}

// maxExamples limits how many findings of each kind the text output shows.
const maxExamples = 10

func showCheck(line *command.ProgressLine, p storecheck.Progress) {
	if !line.Due() {
		return
	}
	text := command.Count(p.Objects, "object") + ", " + command.Count(p.Blobs, "blob")
	if p.HashedBytes > 0 {
		text += ", " + command.Size(p.HashedBytes) + " read"
	}
	m := command.Measured{Share: p.Share, Bytes: p.HashedBytes, Count: p.Objects, Unit: "object"}
	if p.Manifests > 0 {
		text += ", " + command.Count(p.Manifests, "manifest")
		m.Step, m.Share, m.Bytes, m.Count, m.Unit = "comparing manifests", 0, 0, p.Manifests, "manifest" // they come after all keys
	}
	m.Text = text + ", " + command.Count(p.Findings, "finding")
	line.Measure(m)
}

// advice has the texts about each kind of problem: `what` stands behind the number of
// findings, `todo` says what to do about them, and `done` says what a repair has done.
var advice = map[storecheck.Problem]struct{ what, todo, done string }{
	storecheck.Shared: {"with more than one owner row",
		"This should never be, and nothing repairs it: one owner may delete what the other one uses. Please report it.", ""},
	storecheck.Missing: {"missing from the store",
		"Pulls of them fail. Bring the objects back if you can (a volume, a backup). If not, --repair marks them as lost.", doneLost},
	storecheck.WrongSize: {"of the wrong size in the store",
		"Pulls of them fail. Restore the objects from a backup if you can. If not, --repair marks them as lost.", doneLost},
	storecheck.Damaged: {"whose content is not what their digest says",
		"Clients refuse what they pull. Restore the objects from a backup if you can. If not, --repair marks them as lost.", doneLost},
	storecheck.Unreadable: {"that can't be read",
		"Nothing was changed: find out why the store can't read them, then check again.", ""},
	storecheck.Hidden: {"in the store that can't be read",
		"What is there was compared with nothing, so the check is incomplete: let the user that runs Purser read it\n" +
			"(see chown and chmod), or bring it back, then check again.", ""},
	storecheck.Lost: {"marked as lost, and not pushed since",
		"Push an image with each of them again, to any repository, under a tag that is new there: many clients don't push\n" +
			"what has its tag already. All repositories that had the blob have it again. Or delete those images.", ""},
	storecheck.Recovered: {"marked as lost, but in the store with the right content",
		"With --repair they are served again.", "They are served again."},
	storecheck.Unowned: {"in the store that nothing owns",
		"They only take space. With --repair they are deleted.", doneDoomed},
	storecheck.UnownedUpload: {"in the store that nothing owns",
		"Their parts only take space. With --repair they are deleted.", doneDoomed},
	storecheck.QuotaUsage: {"with numbers that differ from what their namespaces have",
		"Somebody has changed rows by hand. With --repair the content is counted again.", "The content was counted again."},
	storecheck.CopiedSize: {"whose size is another in the rows of manifests",
		"Somebody has changed rows by hand; previews and policies by bytes add up wrong sizes. With --repair the sizes are copied again.",
		"The sizes were copied again."},
	storecheck.DeclaredSize: {"declaring other sizes than are stored",
		"This is a note: they are served as they were pushed, Purser reports and adds up the stored sizes, and --repair\n" +
			"changes nothing. Some clients refuse to pull such images: build and push them again.", ""},
}

const (
	doneLost = "They are marked as lost: clients are told that there are no such blobs, so the next push of an image\n" +
		"with them, under a tag that is new there, restores them in all repositories."
	doneDoomed = "A running registry deletes them when a day and gc.keep_doomed are over. Until then a mistake can be undone."
)

// things names, in the singular, the kind of object that a problem's findings are about.
func things(p storecheck.Problem) string {
	switch p {
	case storecheck.Shared:
		return "key"
	case storecheck.Unowned:
		return "object"
	case storecheck.Hidden:
		return "place"
	case storecheck.UnownedUpload:
		return "unfinished multipart upload"
	case storecheck.DeclaredSize:
		return "manifest"
	case storecheck.QuotaUsage:
		return "quota"
	default:
		return "blob"
	}
}

// writeCheck prints the result of a check as text: what was compared, what is wrong, and
// what to do about it.
func writeCheck(w io.Writer, o storecheck.Options, r storecheck.CheckReport, examples map[storecheck.Problem][]storecheck.Finding, complete bool) error {
	var b strings.Builder
	began := "Compared"
	if !complete {
		began = "Stopped early. Compared"
	}
	fmt.Fprintf(&b, "%s %s (%s) with %s in %s.\n", began,
		command.Count(r.Objects, "object"), command.Size(r.ObjectBytes), command.Count(r.Blobs, "blob"), r.Took.Round(time.Millisecond))
	if r.Hashed > 0 {
		fmt.Fprintf(&b, "Read and hashed %s: %s, %s/s.\n", command.Count(r.Hashed, "blob"), command.Size(r.HashedBytes),
			command.Size(int64(float64(r.HashedBytes)/max(r.Took.Seconds(), 1e-3))))
	}
	if r.Young > 0 {
		fmt.Fprintf(&b, "Without an owner, but so young that a request may still be writing them: %s.\n", command.Count(r.Young, "object"))
	}
	if r.Kept > 0 {
		fmt.Fprintf(&b, "Without an owner, but younger than gc.keep_doomed, so that a newer state of the database may know them: %s (%s).\n",
			command.Count(r.Kept, "object"), command.Size(r.KeptBytes))
	}
	if r.Doomed > 0 {
		fmt.Fprintf(&b, "Deleted from the database, and waiting to be deleted from the store: %s (%s).\n", command.Count(r.Doomed, "object"), command.Size(r.DoomedBytes))
	}
	if r.UnreadableManifests > 0 {
		fmt.Fprintf(&b, "Skipped, since they can't be read as manifests: %s.\n", command.Count(r.UnreadableManifests, "manifest"))
	}
	well, all := complete, "All is well"
	for _, p := range storecheck.Problems {
		if t := r.Problems[p]; t != nil {
			well, all = well && p.Note(), "\nOtherwise all is well"
			writeProblem(&b, p, *t, examples[p])
		}
	}
	switch {
	case !well:
	case o.Deep:
		b.WriteString(all + ".\n")
	default:
		b.WriteString(all + ". Contents were not read: --deep does that.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func writeProblem(b *strings.Builder, p storecheck.Problem, t storecheck.Tally, examples []storecheck.Finding) {
	a := advice[p]
	fmt.Fprintf(b, "\n%s %s", command.Count(t.Count, things(p)), a.what)
	if t.Bytes > 0 {
		fmt.Fprintf(b, " (%s)", command.Size(t.Bytes))
	}
	b.WriteString(":\n")
	for _, f := range examples {
		fmt.Fprintf(b, "  %s\n", describe(f))
	}
	if more := t.Count - int64(len(examples)); more > 0 {
		fmt.Fprintf(b, "  … and %s more: -o json lists all\n", humanize.Comma(more))
	}
	if t.Repaired == t.Count {
		fmt.Fprintf(b, "%s\n", a.done)
		return
	}
	if t.Repaired > 0 {
		fmt.Fprintf(b, "Of %s: %s\n", humanize.Comma(t.Repaired), a.done)
	}
	fmt.Fprintf(b, "%s\n", a.todo)
}

// describe formats a finding as one line.
func describe(f storecheck.Finding) string {
	text := f.Key
	if !f.Digest.IsZero() {
		text = f.Digest.String()
		if f.Key != "" {
			text += "  object " + f.Key
		}
	}
	if f.Size > 0 {
		text += "  " + command.Size(f.Size)
	}
	if len(f.Repositories) > 0 {
		text += "  in " + strings.Join(f.Repositories, ", ")
	}
	if f.Detail != "" {
		text += "  (" + f.Detail + ")"
	}
	return text
}
