package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/oci"
)

func auditCommand(src *command.Source) *cobra.Command {
	cmd := command.Group("audit", "Read the audit log: who did what", auditListCommand(src), auditExportCommand(src))
	cmd.Long = "Read the audit log: who did what, from where. TARGET is a namespace (app) or a repository (app/web);\n" +
		"without one it is all that you may read: the namespaces that you maintain, or the whole registry. Deleted ones keep their entries."
	return addServer(cmd)
}

// logView is an audit log entry in the API's format.
type logView api.LogEntry

func (e logView) row() []string {
	who, what := e.IP, e.Repository
	if e.Performer != nil {
		who = e.Performer.Name + " " + e.IP
	}
	if what == "" {
		what = e.Namespace
	}
	if e.Tag != "" {
		what += ":" + e.Tag
	}
	digest := ""
	if !e.Digest.IsZero() {
		digest = short(e.Digest.String())
	}
	return []string{clock(&e.Time), string(e.Kind), strings.TrimSpace(who), what, digest, e.why()}
}

// why returns why the entry's event happened, for the table: the reason that a policy or a
// person gave, then the ids of the policy and the pruning run. For an entry that stands for
// several pulls, it adds their number.
func (e logView) why() string {
	var parts []string
	if reason := api.LogEntry(e).Reason(); reason != "" {
		parts = append(parts, reason)
	}
	if e.Pulls > 1 {
		parts = append(parts, humanize.Comma(int64(e.Pulls))+" pulls")
	}
	policy, run := api.LogEntry(e).IDs()
	for _, p := range []struct{ name, id string }{{"policy", policy}, {"run", run}} {
		if p.id != "" {
			parts = append(parts, p.name+" "+p.id)
		}
	}
	return strings.Join(parts, ", ")
}

// logFlags are the flags that select entries of the audit log.
type logFlags struct {
	from, to, actor, address, tag, digest, policy, run string
	kinds                                              []string
	target                                             *targetFlags
}

func addLogFlags(cmd *cobra.Command) *logFlags {
	f := &logFlags{target: addTarget(cmd, false)}
	textFlag(cmd, &f.from, "from", "", "from this `TIME` on: 2026-03-05, 2026-03-05T07:00:00Z, or an age like 90m or 12h", checkMoment)
	textFlag(cmd, &f.to, "to", "", "before this `TIME`", checkMoment)
	cmd.Flags().Var(listFlag{&f.kinds, checkKind}, "kind", "only entries of these `KIND`s, such as push_repo,delete_tag")
	textFlag(cmd, &f.actor, "actor", "", "only what this `ACCOUNT` did", notEmpty)
	textFlag(cmd, &f.address, "address", "", "only what came from this `ADDRESS`, or from a network such as 192.0.2.0/24", notEmpty)
	textFlag(cmd, &f.tag, "tag", "", "only entries about this `TAG`", oci.ValidateTag)
	textFlag(cmd, &f.digest, "digest", "", "only entries about this `DIGEST`, which may be short: of the TARGET, a repository, or as REPOSITORY@DIGEST", checkShortDigest)
	textFlag(cmd, &f.policy, "policy", "", "only what the policy with this `UUID` did, or with the only one that begins so", checkUUID)
	textFlag(cmd, &f.run, "run", "", "only what the run with this `UUID` did, or with the only one that begins so", checkUUID)
	return f
}

// moment converts an age such as 90m, which counts back from now, to a time in RFC 3339.
// Any other text is returned unchanged.
func moment(text string) string {
	if age, err := time.ParseDuration(text); err == nil && age > 0 {
		return time.Now().Add(-age).UTC().Format(time.RFC3339)
	}
	return text
}

// part returns the part of the audit log that the flags and the arguments select: of the namespace or
// repository that the first argument names, or of the whole registry if there is no argument.
func (f *logFlags) part(ctx context.Context, c *api.Client, args []string) (part api.LogExport, err error) {
	part.LogFilter = api.LogFilter{
		From: moment(f.from), To: moment(f.to), Kinds: f.kinds, Actor: f.actor, Address: f.address, Tag: f.tag, Policy: f.policy, Run: f.run,
	}
	if len(args) > 0 || f.target.repository {
		at, _, _, err := f.target.at(args, 0)
		if err != nil {
			return part, err
		}
		part.LogAt = api.LogAt(at)
	}
	if part.Digest, err = f.wholeDigest(ctx, c, part.Repository); err != nil {
		return part, err
	}
	whole := part
	for _, id := range []struct {
		flag, text string
		of         func(api.LogEntry) string
		value      *string
	}{{"--policy", f.policy, policyOf, &whole.Policy}, {"--run", f.run, runOf, &whole.Run}} {
		if id.text == "" {
			continue
		}
		if *id.value, err = identifyInLog(ctx, c, id.flag, id.text, part, id.of); err != nil {
			return part, err
		}
	}
	return whole, nil
}

func policyOf(e api.LogEntry) string {
	id, _ := e.IDs()
	return id
}

func runOf(e api.LogEntry) string {
	_, id := e.IDs()
	return id
}

// wholeDigest returns the value of --digest, which may be short if a repository is known: that of the
// value, or else `repository`.
func (f *logFlags) wholeDigest(ctx context.Context, c *api.Client, repository string) (string, error) {
	of, digest := command.SplitDigest(f.digest)
	if repository == "" {
		repository = of
	}
	if _, err := oci.ParseDigest(digest); f.digest == "" || of == "" && err == nil {
		return digest, nil
	}
	if repository == "" {
		return "", command.Usagef("--digest: %q is short: name the repository as TARGET or write REPOSITORY@%[1]s, or give the whole digest", digest)
	}
	d, err := findDigest(ctx, c, "--digest", repository, f.digest)
	return d.String(), err
}

func auditListCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "list [TARGET]", Short: "List entries, the newest first", Args: cobra.MaximumNArgs(1)}
	listing, flags := command.AddListing(cmd), addLogFlags(cmd)
	command.AllowCSV(cmd, listing.Format)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		part, err := flags.part(cmd.Context(), c, args) // only once, so that an age means the same moment for all pages
		if err != nil {
			return err
		}
		list, more, err := listLog(cmd.Context(), c, part, listing.Limit)
		if err != nil {
			return err
		}
		return command.PrintList(cmd, listing, list, more, func(e api.LogEntry) string { return logView(e).row()[3] }, func(w io.Writer) error {
			if *listing.Format == command.CSV {
				return writeLogCSV(w, list)
			}
			rows := make([][]string, len(list))
			for i, e := range list {
				rows[i] = logView(e).row()
			}
			return table(w, []string{"TIME", "KIND", "WHO", "WHAT", "DIGEST", "WHY"}, rows, more)
		})
	})
	return cmd
}

// writeLogCSV writes entries in the form of an export.
func writeLogCSV(w io.Writer, list []api.LogEntry) error {
	write, err := audit.CSV(w)
	for i := 0; err == nil && i < len(list); i++ {
		err = write(list[i].Entry())
	}
	if err != nil {
		return fmt.Errorf("printing CSV: %w", err)
	}
	return nil
}

// listLog lists the log of a place, or of all that the account may read if none is given.
func listLog(ctx context.Context, c *api.Client, part api.LogExport, limit int) (list []api.LogEntry, more bool, err error) {
	if part.LogAt == (api.LogAt{}) {
		return api.List(ctx, c, api.ListMaintainedLogs, api.MaintainedLogs{LogFilter: part.LogFilter}, limit)
	}
	return api.List(ctx, c, api.ListLogs, api.LogQuery{LogExport: part}, limit)
}

// openLog begins an export of what listLog lists.
func openLog(ctx context.Context, c *api.Client, part api.LogExport, form api.LogForm) (io.ReadCloser, error) {
	if part.LogAt == (api.LogAt{}) {
		return api.ExportMaintainedLogs.Open(ctx, c, api.MaintainedLogDownload{LogFilter: part.LogFilter, LogForm: form})
	}
	return api.ExportLogs.Open(ctx, c, api.LogDownload{LogExport: part, LogForm: form})
}

func auditExportCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "export [TARGET]", Short: "Write all entries as lines of JSON or as CSV, the newest first", Args: cobra.MaximumNArgs(1),
		Example: "  purser audit export --from 2026-03-01 --to 2026-04-01 > march.jsonl\n" +
			"  purser audit export acme --format csv > acme.csv",
	}
	flags, form := addLogFlags(cmd), ""
	textFlag(cmd, &form, "format", "jsonl", "write lines of JSON (jsonl) or a table with the columns' names first (csv): `FORMAT`", checkChoice("jsonl", "csv"))
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		part, err := flags.part(cmd.Context(), c, args)
		if err != nil {
			return err
		}
		body, err := openLog(cmd.Context(), c, part, api.LogForm{Format: form})
		if err != nil {
			return err
		}
		defer body.Close() //nolint:errcheck // only read
		out := bufio.NewWriter(cmd.OutOrStdout())
		if _, err = io.Copy(out, body); err != nil {
			// The entries that arrived are printed even if the export fails, so that the
			// user sees where it ended.
			err = fmt.Errorf("the export is not complete: %w", err)
		}
		return errors.Join(err, out.Flush())
	})
	return cmd
}
