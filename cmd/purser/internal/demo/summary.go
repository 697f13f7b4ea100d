package demo

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/dustin/go-humanize"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	storecheck "github.com/purser-registry/purser/internal/check"
	"github.com/purser-registry/purser/internal/worker"
)

func number(n int64) string { return humanize.Comma(n) }

// table prints rows of equal length as a table.
func (l *line) table(rows [][]string) error {
	w := tabwriter.NewWriter(l, 0, 8, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, "  "+strings.Join(row, "\t")) //nolint:errcheck // Flush returns it
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	return nil
}

// summarize prints what was stored, what was deleted and what is left.
func (t *tour) summarize(ctx context.Context) error {
	byPolicy, err := t.pruned(ctx)
	if err != nil {
		return err
	}
	garbage, err := t.garbage(ctx)
	if err != nil {
		return err
	}
	left, err := t.contents(ctx)
	if err != nil {
		return err
	}
	var tags int64
	pruned := [][]string{}
	for _, p := range t.policies {
		tags += byPolicy[p.id]
		pruned = append(pruned, []string{p.repository, number(byPolicy[p.id]), p.text})
	}
	row := func(name string, c contents) []string {
		return []string{name, number(c.tags), number(c.manifests), number(c.objects), command.Size(c.bytes), number(c.bytes)}
	}
	gone := garbage.LastHour
	if err := t.line.say("\nTags that policies have deleted:\n"); err != nil {
		return err
	}
	if err := t.line.table(pruned); err != nil {
		return err
	}
	if err := t.line.say("\n"); err != nil {
		return err
	}
	return t.line.table([][]string{
		{"", "TAGS", "MANIFESTS", "BLOBS", "SIZE", "BYTES"},
		row("stored", t.most),
		row("deleted", contents{tags: tags, manifests: gone.Manifests, objects: gone.Objects, bytes: gone.Bytes}),
		row("left", left),
	})
}

// check lets the registry compare its database with its store and read every blob. It returns a
// command.ExitCode if the check finds anything.
func (t *tour) check(ctx context.Context) error {
	var run struct {
		ID       string                  `json:"id"`
		State    string                  `json:"state"`
		Error    string                  `json:"error"`
		Findings []storecheck.Finding    `json:"findings"`
		Total    int64                   `json:"findings_total"`
		Summary  *storecheck.CheckReport `json:"summary"`
	}
	err := t.api.Post(ctx, api.Path("check"), map[string]bool{"deep": true}, &run)
	for err == nil && run.State == "running" {
		if err = worker.Sleep(ctx, watchEvery/5); err == nil {
			err = t.api.Get(ctx, api.Path("check", run.ID), nil, &run)
		}
	}
	switch {
	case err != nil:
		return err
	case run.State != "succeeded" || run.Summary == nil:
		return fmt.Errorf("the check is %s: %s", run.State, run.Error)
	}
	s := run.Summary
	compared := fmt.Sprintf("\nThe check has compared %s (%s) with %s and read all of them", command.Count(s.Objects, "object"),
		command.Size(s.ObjectBytes), command.Count(s.Blobs, "blob"))
	// The tour writes no objects any more, so objects without an owner are a problem although
	// they are young.
	if !s.Remaining() && s.Young == 0 {
		return t.line.say("%s: all is well.\n", compared)
	}
	if err := t.line.say("%s: not all is well. Problems: %d, and objects that nothing owns: %d\n", compared, run.Total, s.Young); err != nil {
		return err
	}
	const most = 10
	for _, f := range run.Findings[:min(len(run.Findings), most)] {
		if err := t.line.say("  %s  %s  %s %s\n", f.Problem, f.Key, f.Digest, f.Detail); err != nil {
			return err
		}
	}
	return command.ExitCode(command.ExitFindings)
}
