package operate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/catalog"
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
	since   []string // tags that the other registry may have got after the last complete import began
	absent  int64    // other tags, which were skipped, deleted here or left out
	unseen  error    // why the storages, or some of them, couldn't be looked at; nil: they were
}

// maxNamedTags limits how many tags a refusal or a question names.
const maxNamedTags = 10

// run makes the files of other registries Purser's own.
func (f *finisher) run(ctx context.Context) error {
	list, _, _, err := f.opt.Catalog.Imports(ctx)
	if err != nil {
		return err
	}
	var open []catalog.Import
	var sources []string
	for _, m := range list {
		if m.Finished.IsZero() {
			open = append(open, m)
			sources = append(sources, cmp.Or(m.Source, "/"))
		}
	}
	if len(open) == 0 {
		return command.Refuse("no import is unfinished")
	}
	places := strings.Join(sources, ", ")
	left := f.look(ctx, open)
	if left.unseen != nil && !f.force {
		return fmt.Errorf("looking whether the other registry has what Purser hasn't: %w; --force ends the imports without this look", left.unseen)
	}
	if n := len(left.since); n > 0 && !f.force {
		return command.Refuse(fmt.Sprintf("the registry below %s got %s since it was imported, or in the %v before that, since clocks may differ; so it may still be in use: %s. Stop it and import again; --force ends the imports without them",
			places, command.Count(int64(n), "tag"), f.cfg.Clock.Tolerance, named(left.since)))
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
	result := map[string]any{"finished": sources, "objects": objects, "bytes": bytes, "skipped": left.skipped, "absent": left.absent,
		"not_imported": len(left.since), "looked": left.unseen == nil}
	return f.out.Print(f.cmd.OutOrStdout(), result, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "Finished: the files below %s belong to Purser.\n%s (%s) that no image uses any more will be deleted.\n"+
			"What was never imported is deleted by \"purser check --repair\".\n", places, command.Count(objects, "object"), command.Size(bytes))
		return err
	})
}

// question says what the end of the imports means.
func (l leftover) question(places string) string {
	text := "From now on the files below " + places + " belong to Purser: garbage collection deletes those that no image uses, and \"purser check --repair\" those that were never imported"
	if n := len(l.since); n > 0 {
		text += ", such as those of " + command.Count(int64(n), "tag") + " that the other registry got since (" + named(l.since) + ")"
	}
	if l.skipped > 0 {
		text += ", such as those of " + command.Count(l.skipped, "skipped thing") + ", named above"
	}
	if l.absent > 0 {
		text += fmt.Sprintf(", or of %s that Purser hasn't (skipped, left out or deleted here)", command.Count(l.absent, "tag"))
	}
	if l.unseen != nil {
		text += ". There may be more, which couldn't be looked at (" + l.unseen.Error() + ")"
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

// earlier is an import, as the audit log has it.
type earlier struct {
	Directory    string `json:"directory"`
	To           string `json:"to"`
	Untagged     bool   `json:"untagged"`
	Repositories string `json:"repositories,omitempty"`
	// Complete is when the import began, in the entry that says that it has come to its end. Entries of
	// beginnings have none.
	Complete time.Time `json:"complete,omitzero"`

	pattern *regexp.Regexp // of Repositories; nil: all
}

// has says whether the import looked at a repository.
func (e earlier) has(repository string) bool {
	return e.pattern == nil || e.pattern.MatchString(repository)
}

// look repeats imports of the storages without changing anything, and names what they skip. Of the
// imports of a directory it repeats the last complete one of each choice of repositories. A storage of
// which the audit log has no complete import is looked at as a whole.
func (f *finisher) look(ctx context.Context, open []catalog.Import) (left leftover) {
	raw, _, err := ownStore(ctx, f.cmd, f.cfg, f.dsn)
	if err != nil {
		left.unseen = err
		return left
	}
	store, ok := raw.(registryimport.Store)
	if !ok {
		left.unseen = errors.New("the files of this blob store can't be listed")
		return left
	}
	began := open[0].Begun // the oldest
	complete, err := f.complete(ctx, began)
	if err != nil {
		left.unseen = err
		return left
	}
	seen := map[string]bool{} // sources
	line := command.NewProgressLine(f.cmd.ErrOrStderr())
	defer line.Clear()
	repeat := func(e earlier) {
		o := f.opt
		o.Store, o.DryRun, o.Dir, o.To, o.Untagged, o.Repositories = store, true, e.Directory, e.To, e.Untagged, e.pattern
		o.Skipped = func(s registryimport.Skip) {
			left.skipped++
			fmt.Fprintln(line, describeSkip(s)) //nolint:errcheck // the question counts it
		}
		o.Progress = func(r registryimport.Report) { tellImport(line, "comparing", r) }
		o.Differs = func(repository, tag string, pushed time.Time) {
			if mayBeLater(pushed, lastOf(complete, e, repository), f.cfg.Clock.Tolerance) {
				left.since = append(left.since, command.Printable(repository+":"+tag))
			} else {
				left.absent++
			}
		}
		r, err := registryimport.Run(ctx, o)
		left.unseen = errors.Join(left.unseen, err)
		seen[r.Source] = true
	}
	for i, e := range complete { // the newest first
		if !slices.ContainsFunc(complete[:i], func(newer earlier) bool {
			return newer.Directory == e.Directory && newer.Repositories == e.Repositories
		}) {
			repeat(e)
		}
	}
	for _, m := range open {
		if !seen[m.Source] {
			dir := strings.TrimSuffix(m.Source, "/")
			if m.Format == "distribution" {
				dir = strings.TrimSuffix(strings.TrimSuffix(dir, "docker/registry/v2"), "/")
			}
			repeat(earlier{Directory: dir, Complete: m.Begun})
		}
	}
	return left
}

// mayBeLater says whether the other registry may have got a tag after an import began. `pushed` is by the
// clock of the storage, and `began` by that of the database; the setting clock.tolerance says how far
// clocks may differ.
func mayBeLater(pushed, began time.Time, tolerance time.Duration) bool {
	return pushed.After(began.Add(-tolerance))
}

// lastOf returns when the last complete import began that had a repository of the directory of e.
func lastOf(complete []earlier, e earlier, repository string) time.Time {
	last := e.Complete
	for _, other := range complete {
		if other.Directory == e.Directory && other.has(repository) && other.Complete.After(last) {
			last = other.Complete
		}
	}
	return last
}

// complete returns the imports since `began` that came to their end, the newest first. The audit log has
// them as long as audit.retention says.
func (f *finisher) complete(ctx context.Context, began time.Time) (list []earlier, err error) {
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
			if e.Repositories != "" {
				if e.pattern, err = regexp.Compile(e.Repositories); err != nil {
					return nil, fmt.Errorf("the entry %d of the audit log: %w", entry.ID, err)
				}
			}
			if !e.Complete.IsZero() {
				list = append(list, e)
			}
		}
		if cursor = next; next == "" {
			return list, nil
		}
	}
}
