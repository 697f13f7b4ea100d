package operate

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/registryimport"
)

// finisher ends imports, after a look at what the other registries have that Purser hasn't.
type finisher struct {
	cmd        *cobra.Command
	cfg        *config.Config
	dsn        string
	metadata   *db.DB
	opt        registryimport.Options // Catalog, Sparse and Parallel
	out        command.Format
	yes, force bool
}

// leftover is what Purser hasn't of the storages that were imported.
type leftover struct {
	skipped int64
	since   []string // tags that the other registry got after the last import
	absent  int64    // other tags, which were deleted here or left out
}

// maxNamedTags limits how many tags a refusal names.
const maxNamedTags = 10

// run makes the files of other registries Purser's own.
func (f *finisher) run(ctx context.Context) error {
	list, _, _, err := f.opt.Catalog.Imports(ctx)
	if err != nil {
		return err
	}
	var sources []string
	var began time.Time // of the oldest that isn't finished
	for _, m := range list {
		if m.Finished.IsZero() {
			sources = append(sources, cmp.Or(m.Source, "/"))
			if began.IsZero() || m.Begun.Before(began) {
				began = m.Begun
			}
		}
	}
	if len(sources) == 0 {
		return command.Refuse("no import is unfinished")
	}
	places := strings.Join(sources, ", ")
	left, err := f.look(ctx, began)
	if err != nil && !f.force {
		return fmt.Errorf("looking whether the other registry has what Purser hasn't: %w; --force ends the imports without this look", err)
	}
	if n := len(left.since); n > 0 && !f.force {
		return command.Refuse(fmt.Sprintf("the registry below %s got %s since it was imported, so it is still in use: %s. Stop it and import again; --force ends the imports without them",
			places, command.Count(int64(n), "tag"), named(left.since)))
	}
	if err := command.Confirm(f.cmd, f.yes, "%s", left.question(places)); err != nil {
		return err
	}
	objects, bytes, err := f.opt.Catalog.FinishImports(ctx)
	if err != nil {
		return err
	}
	entry := audit.Entry{Kind: audit.FinishImport, Detail: map[string]any{"sources": sources, "objects": objects, "bytes": bytes}}
	if err := audit.New(f.metadata).Append(ctx, entry); err != nil {
		return err
	}
	result := map[string]any{"finished": sources, "objects": objects, "bytes": bytes, "skipped": left.skipped, "absent": left.absent, "not_imported": int64(len(left.since))}
	return f.out.Print(f.cmd.OutOrStdout(), result, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "Finished: the files below %s belong to Purser.\n%s (%s) that no image uses any more will be deleted.\n"+
			"What was never imported is deleted by \"purser check --repair\".\n", places, command.Count(objects, "object"), command.Size(bytes))
		return err
	})
}

// question says what the end of the imports means.
func (l leftover) question(places string) string {
	text := "From now on the files below " + places + " belong to Purser: garbage collection deletes those that no image uses, and \"purser check --repair\" those that were never imported"
	if l.skipped > 0 {
		text += ", such as those of " + command.Count(l.skipped, "skipped thing") + ", named above"
	}
	if l.absent > 0 {
		text += fmt.Sprintf(", or of %s that Purser hasn't (skipped, left out or deleted here)", command.Count(l.absent, "tag"))
	}
	return text + ". The other registry can't use them any more. This can't be undone. Go on?"
}

// named names some tags.
func named(tags []string) string {
	if more := len(tags) - maxNamedTags; more > 0 {
		return strings.Join(tags[:maxNamedTags], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(tags, ", ")
}

// earlier is what the audit log has of an import.
type earlier struct {
	Directory    string `json:"directory"`
	To           string `json:"to"`
	Untagged     bool   `json:"untagged"`
	Repositories string `json:"repositories"`
}

// look repeats each of the imports since `began` without changing anything. It names what it skips.
func (f *finisher) look(ctx context.Context, began time.Time) (left leftover, err error) {
	raw, _, err := ownStore(ctx, f.cmd, f.cfg, f.dsn)
	if err != nil {
		return left, err
	}
	store, ok := raw.(registryimport.Store)
	if !ok {
		return left, fmt.Errorf("the files of this blob store can't be listed")
	}
	last, err := f.earlier(ctx, began)
	if err != nil {
		return left, err
	}
	for e, at := range last {
		o := f.opt
		o.Store, o.DryRun, o.Dir, o.To, o.Untagged = store, true, e.Directory, e.To, e.Untagged
		if e.Repositories != "" {
			if o.Repositories, err = regexp.Compile(e.Repositories); err != nil {
				return left, err
			}
		}
		o.Skipped = func(s registryimport.Skip) {
			left.skipped++
			fmt.Fprintln(f.cmd.ErrOrStderr(), describeSkip(s)) //nolint:errcheck // the question counts it
		}
		o.Differs = func(repository, tag string, pushed time.Time) {
			if pushed.After(at) {
				left.since = append(left.since, command.Printable(repository+":"+tag))
			} else {
				left.absent++
			}
		}
		if _, err := registryimport.Run(ctx, o); err != nil {
			return left, err
		}
	}
	return left, nil
}

// earlier returns the imports since `began` with the time of the last one of each kind. An entry is
// written shortly before its import begins.
func (f *finisher) earlier(ctx context.Context, began time.Time) (map[earlier]time.Time, error) {
	last := map[earlier]time.Time{}
	for cursor := ""; ; {
		entries, next, err := audit.New(f.metadata).List(ctx, audit.Filter{Kinds: []audit.Kind{audit.RunImport}, From: began.Add(-time.Hour)}, cursor, 100)
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			var e earlier
			if raw, ok := entry.Detail.(json.RawMessage); !ok || json.Unmarshal(raw, &e) != nil {
				return nil, fmt.Errorf("the entry %d of the audit log can't be read", entry.ID)
			}
			if entry.Time.After(last[e]) {
				last[e] = entry.Time
			}
		}
		if next == "" {
			break
		}
		cursor = next
	}
	if len(last) == 0 {
		return nil, fmt.Errorf("the audit log has the imports no more (audit.retention)")
	}
	return last, nil
}
