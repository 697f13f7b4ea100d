package operate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/clock"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
)

// Levels of findings.
const (
	levelError   = "error"   // data or the service are in danger, or something doesn't work
	levelWarning = "warning" // something will go wrong if nothing changes
	levelNote    = "note"    // something could be better
)

// finding is something that the doctor would change.
type finding struct {
	Level  string `json:"level"` // error, warning or note
	About  string `json:"about"` // what it is about: a setting, a table, a part of the system
	Text   string `json:"text"`  // what is so, and why it matters
	Remedy string `json:"remedy"`
}

// doctor looks at a configuration and at what runs by it. It changes nothing.
type doctor struct {
	cfg      *config.Config
	dsn      string
	db       *db.DB
	findings []finding
	looked   []string // what it has looked at
}

func (d *doctor) find(level, about, remedy, text string, args ...any) {
	d.findings = append(d.findings, finding{level, about, fmt.Sprintf(text, args...), remedy})
}

// look runs an examination. If it fails, that is a finding itself.
func (d *doctor) look(what string, examine func() error) {
	d.looked = append(d.looked, what)
	if err := examine(); err != nil {
		d.find(levelError, what, "mend the cause, then run \"purser doctor\" again", "it couldn't be examined: %v", err)
	}
}

// report is the result in JSON.
type report struct {
	Findings []finding `json:"findings"`
	Looked   []string  `json:"looked_at"`
}

func doctorCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look at the configuration and the running system, and say what should change",
		Long: "Look at the configuration, this machine, the database, the blob store and the background work, and say\n" +
			"what should change, why, and how. Nothing is changed. Run it where the server runs, with its\n" +
			"configuration, whether the server runs or not. The exit code is 4 if there are errors or warnings.",
		Args: cobra.NoArgs,
	}
	out := command.AddFormat(cmd)
	command.AddServeFlags(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		d := &doctor{}
		if err := withDSN(src, cmd, func(ctx context.Context, cfg *config.Config, dsn string) error {
			d.cfg, d.dsn = cfg, dsn
			return d.examine(ctx, cmd)
		}); err != nil {
			return err
		}
		slices.SortStableFunc(d.findings, func(a, b finding) int { return rankOf(a.Level) - rankOf(b.Level) })
		r := report{Findings: slices.Clip(append([]finding{}, d.findings...)), Looked: d.looked}
		if err := out.Print(cmd.OutOrStdout(), r, func(w io.Writer) error { return writeReport(w, r) }); err != nil {
			return err
		}
		if slices.ContainsFunc(r.Findings, func(f finding) bool { return f.Level != levelNote }) {
			return command.ExitCode(command.ExitFindings)
		}
		return nil
	}
	return cmd
}

func rankOf(level string) int {
	return slices.Index([]string{levelError, levelWarning, levelNote}, level)
}

func writeReport(w io.Writer, r report) error {
	var text strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&text, "%-8s %s: %s\n         → %s\n", f.Level, f.About, f.Text, f.Remedy)
	}
	if len(r.Findings) == 0 {
		text.WriteString("All is well.\n")
	}
	fmt.Fprintf(&text, "Looked at: %s.\n", strings.Join(r.Looked, ", "))
	_, err := io.WriteString(w, text.String())
	return err
}

// examine looks at everything. It returns an error if the database can't be used at all; other
// failures are findings.
func (d *doctor) examine(ctx context.Context, cmd *cobra.Command) error {
	d.look("the configuration", func() error { return d.examineConfiguration(ctx) })
	d.look("this machine", d.examineMachine)
	log, err := command.NewLogger(cmd.ErrOrStderr(), d.cfg.Log)
	if err != nil {
		return err
	}
	d.db, err = db.Open(ctx, db.Options{DSN: d.dsn, MaxConns: doctorConns, ApplicationName: "purser doctor", Log: log})
	if err != nil {
		return err
	}
	defer d.db.Close()
	usable := false
	d.look("what its sessions inherit", func() (err error) {
		usable, err = d.examineInherited(ctx)
		return err
	})
	if !usable {
		return nil
	}
	d.look("PostgreSQL's settings", func() error { return d.examineSettings(ctx) })
	d.look("its connections", func() error { return d.examineConnections(ctx) })
	d.look("the clocks", func() error { return d.examineClock(ctx) })
	complete := false
	d.look("the schema", func() (err error) {
		complete, err = d.examineSchema(ctx)
		return err
	})
	if !complete {
		return nil // the rest needs tables that may be missing
	}
	d.look("the servers' settings", func() error { return d.examineServers(ctx) })
	d.look("the planner's statistics", func() error { return d.examineStatistics(ctx) })
	d.look("the blob store", func() error { return d.examineStore(ctx, log) })
	d.look("backups", func() error { return d.examineBackups(ctx) })
	d.look("the background work", func() error {
		c := catalog.New(catalog.Options{DB: d.db, CacheOff: true, Log: log})
		clocks, err := backend.NewClock(d.cfg, clock.Options{DB: d.db, Log: log})
		if err != nil {
			return err
		}
		return errors.Join(d.examineRest(ctx, clocks), d.examinePolicies(ctx), d.examineCollection(ctx, backend.NewCollector(d.cfg, c, d.db, d.db, clocks, nil)), d.examineTasks(ctx))
	})
	keys, err := backend.OpenLooseKeys(ctx, d.cfg, d.dsn, log)
	if err != nil {
		return err
	}
	defer keys.Close()
	d.look("loose foreign keys", func() error { return d.examineLooseKeys(ctx, keys) })
	d.look("pull statistics", func() error { return d.examinePulls(ctx, keys.Stats) })
	return nil
}

// doctorConns is how many connections the doctor opens at most.
const doctorConns = 3
