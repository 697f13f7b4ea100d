package operate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
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
	cfg *config.Config
	log *slog.Logger
	dsn string
	db  *db.DB
	// statsAway says that the statistics' database can't be used.
	statsAway bool
	// denied says that a finding tells which rights a role lacks.
	denied   bool
	findings []finding
	looked   []string // what it has looked at
}

func (d *doctor) find(level, about, remedy, text string, args ...any) {
	d.findings = append(d.findings, finding{level, about, fmt.Sprintf(text, args...), remedy})
}

// look runs an examination. If it fails, that is a finding itself, unless the same error is one already, or
// the cause of it, that a role lacks rights.
func (d *doctor) look(what string, examine func() error) {
	d.looked = append(d.looked, what)
	err := examine()
	if err == nil || d.denied && db.Denied(err) || slices.ContainsFunc(d.findings, func(f finding) bool { return strings.Contains(f.Text, err.Error()) }) {
		return
	}
	d.find(levelError, what, "mend the cause, then run \"purser doctor\" again", "it couldn't be examined: %v", err)
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
		cfg, err := src.LoadAndTell(cmd)
		if err != nil {
			return err
		}
		log, err := command.NewLogger(cmd.ErrOrStderr(), cfg.Log)
		if err != nil {
			return err
		}
		d := &doctor{cfg: cfg, log: log}
		d.examine(cmd.Context())
		if err := cmd.Context().Err(); err != nil {
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

// examine looks at everything that it can: what is away or wrong is a finding, and the rest is examined
// all the same.
func (d *doctor) examine(ctx context.Context) {
	d.look("the configuration", func() error { return d.examineConfiguration(ctx) })
	d.look("this machine", d.examineMachine)
	complete := d.examineDatabase(ctx)
	if !complete {
		// Without tables, only whether these answer can be examined.
		d.look("the blob store", func() error { return d.tryStore(ctx) })
		d.lookAtRedis(ctx)
		if d.cfg.Autoprune.DefaultPolicy != "" {
			d.look("the default policy", func() error { return d.examineDefaultPolicy(ctx, nil) })
		}
	}
	a := d.cfg.Auth
	if a.Enabled && a.LDAP.URL != "" {
		d.look("the directory", func() error { return d.tryDirectory(ctx) })
	}
	if a.Enabled && a.OIDC.Issuer != "" {
		d.look("the OpenID Connect provider", func() error { return d.tryProvider(ctx) })
	}
}

// lookAtRedis tries Redis, if there is one, where the statistics can't be examined.
func (d *doctor) lookAtRedis(ctx context.Context) {
	if d.cfg.Redis.URL != "" {
		d.look("Redis", func() error { return d.tryRedis(ctx) })
	}
}

// examineDatabase looks at the database and at all that needs it. complete says that it has all tables,
// so that nothing was left out.
func (d *doctor) examineDatabase(ctx context.Context) (complete bool) {
	stop := func() {}
	defer func() { stop() }()
	opened := false
	d.look("the database", func() (err error) {
		if d.dsn, stop, err = findDSN(ctx, d.cfg, true, d.log); err != nil {
			return err
		}
		d.db, err = db.Open(ctx, db.Options{DSN: d.dsn, MaxConns: doctorConns, ApplicationName: "purser doctor", Log: d.log})
		opened = err == nil
		return err
	})
	if !opened {
		return false
	}
	defer d.db.Close()
	usable := false
	d.look("what its sessions inherit", func() (err error) {
		usable, err = d.examineInherited(ctx)
		return err
	})
	if !usable {
		return false
	}
	d.look("the rights of its role", func() (err error) {
		usable, err = d.examineRights(ctx)
		return err
	})
	if !usable {
		return false
	}
	d.look("PostgreSQL's settings", func() error { return d.examineSettings(ctx) })
	d.look("its connections", func() error { return d.examineConnections(ctx) })
	d.look("the clocks", func() error { return d.examineClock(ctx) })
	d.look("the schema", func() (err error) {
		complete, err = d.examineSchema(ctx)
		return err
	})
	if complete {
		d.examineContent(ctx)
	}
	return complete
}

// examineContent looks at what is in the tables, and at the work that it calls for.
func (d *doctor) examineContent(ctx context.Context) {
	d.look("the servers' settings", func() error { return d.examineServers(ctx) })
	d.look("the planner's statistics", func() error { return d.examineStatistics(ctx) })
	d.look("the blob store", func() error { return d.examineStore(ctx, d.log) })
	d.look("backups", func() error { return errors.Join(d.examineBackups(ctx), d.examineBackupPlaces(ctx)) })
	d.look("the background work", func() error {
		c := catalog.New(catalog.Options{DB: d.db, CacheOff: true, Log: d.log})
		clocks, err := backend.NewClock(d.cfg, clock.Options{DB: d.db, Log: d.log})
		if err != nil {
			return err
		}
		return errors.Join(d.examineRest(ctx, clocks), d.examinePolicies(ctx), d.examineDefaultPolicy(ctx, c), d.examineCollection(ctx, backend.NewCollector(d.cfg, c, d.db, d.db, clocks, nil)), d.examineTasks(ctx))
	})
	var keys *backend.LooseKeys
	if !d.statsAway {
		d.look("the databases of loose foreign keys", func() (err error) {
			keys, err = backend.OpenLooseKeys(ctx, d.cfg, d.dsn, d.log)
			return err
		})
	}
	if keys == nil {
		d.lookAtRedis(ctx)
		return
	}
	defer keys.Close()
	d.look("loose foreign keys", func() error { return d.examineLooseKeys(ctx, keys) })
	d.look("pull statistics", func() error { return d.examinePulls(ctx, keys.Stats) })
}

// doctorConns is how many connections the doctor opens at most.
const doctorConns = 3
