package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/pgsession"
)

// risky are settings of PostgreSQL that endanger data, or the registry's work, if they are off
// and that a session can't set.
var risky = []struct{ name, level, why string }{
	{"fsync", levelError, "a crash of the machine may destroy the whole database"},
	{"full_page_writes", levelError, "a crash of the machine may damage tables"},
	{"autovacuum", levelError, "tables grow without end, and queries become slow"},
	{"track_counts", levelError, "autovacuum does nothing without it"},
	{"track_activities", levelWarning, "nobody can see what holds a lock"},
}

// examineSettings looks at settings of PostgreSQL, at the role, and at what wears a server down.
func (d *doctor) examineSettings(ctx context.Context) error {
	for _, s := range risky {
		var value string
		if err := d.db.Pool.QueryRow(ctx, "SELECT current_setting($1)", s.name).Scan(&value); err != nil {
			return err
		}
		if value == "off" {
			d.find(s.level, s.name, "set "+s.name+" = on in PostgreSQL's configuration, or for the role or database that has it off", "it is off, so %s", s.why)
		}
	}
	if err := d.examineDeadlocks(ctx); err != nil {
		return err
	}
	var buffers, role string
	var standby, super bool
	var age int64
	err := d.db.Pool.QueryRow(ctx, `
		SELECT current_setting('shared_buffers'), pg_is_in_recovery(),
			(SELECT rolsuper FROM pg_roles WHERE rolname = current_user), current_user::text,
			(SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database())`).
		Scan(&buffers, &standby, &super, &role, &age)
	if err != nil {
		return err
	}
	if standby {
		d.find(levelError, "database.main", "name the primary server; with several hosts in the DSN add target_session_attrs=read-write", "the server is a standby, on which nothing can be written")
	}
	own := d.cfg.Database.Main != ""
	if own && super {
		d.find(levelNote, "role "+role, "give the registry a role that isn't a superuser and owns its database", "it is a superuser, and Purser needs no superuser")
	}
	if own && buffers == "128MB" {
		d.find(levelNote, "shared_buffers", "set it to about a quarter of the server's memory", "it has PostgreSQL's small default, 128MB")
	}
	if age > 1_000_000_000 {
		d.find(levelWarning, "autovacuum", "look for old transactions and slots, and run VACUUM (FREEZE)", "the oldest transaction id is %d transactions old; at 2 billion PostgreSQL refuses to write", age)
	}
	return d.examineHolders(ctx)
}

// longDeadlock is the deadlock_timeout from which on the doctor warns. PostgreSQL's default is 1 s.
const longDeadlock = 10 * time.Second

// examineDeadlocks looks at deadlock_timeout. Only a superuser may set it, so Purser's sessions keep
// what they find.
func (d *doctor) examineDeadlocks(ctx context.Context) error {
	var millis int64
	var by string
	err := d.db.Pool.QueryRow(ctx, `
		SELECT setting::bigint, CASE source
			WHEN 'user' THEN 'ALTER ROLE ' || quote_ident(current_user::text) || ' RESET deadlock_timeout'
			WHEN 'database' THEN 'ALTER DATABASE ' || quote_ident(current_database()::text) || ' RESET deadlock_timeout'
			WHEN 'database user' THEN 'ALTER ROLE ' || quote_ident(current_user::text) || ' IN DATABASE ' || quote_ident(current_database()::text) || ' RESET deadlock_timeout'
			ELSE 'set deadlock_timeout = 1s in PostgreSQL''s configuration' END
		FROM pg_settings WHERE name = 'deadlock_timeout'`).Scan(&millis, &by)
	if err != nil {
		return err
	}
	if lasts := time.Duration(millis) * time.Millisecond; lasts >= longDeadlock {
		d.find(levelWarning, "deadlock_timeout", by, "it is %s, so requests that block each other wait so long, or until the time limit of their statements, before one of them is repeated", lasts)
	}
	return nil
}

// examineHolders looks for what keeps PostgreSQL from removing old rows and WAL.
func (d *doctor) examineHolders(ctx context.Context) error {
	rows, err := d.db.Pool.Query(ctx, `
		SELECT pid, COALESCE(application_name, ''), COALESCE(state, 'unknown'), extract(epoch FROM now() - xact_start)::bigint FROM pg_stat_activity
		WHERE xact_start < now() - interval '1 hour' AND datname = current_database() ORDER BY xact_start LIMIT 5`)
	if err != nil {
		return err
	}
	var pid, seconds int64
	var name, state string
	_, err = pgx.ForEachRow(rows, []any{&pid, &name, &state, &seconds}, func() error {
		d.find(levelWarning, fmt.Sprintf("session %d (%s)", pid, strings.TrimSpace(name)), fmt.Sprintf("end it if it isn't a backup: SELECT pg_terminate_backend(%d)", pid),
			"it is %s in a transaction of %s; meanwhile no deleted row can be removed, and pulls aren't counted beyond it", state, time.Duration(seconds)*time.Second)
		return nil
	})
	if err != nil {
		return err
	}
	rows, err = d.db.Pool.Query(ctx, `
		SELECT slot_name::text, pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, restart_lsn)::bigint
		FROM pg_replication_slots WHERE NOT active AND restart_lsn IS NOT NULL`)
	if err != nil {
		return err
	}
	var bytes int64
	_, err = pgx.ForEachRow(rows, []any{&name, &bytes}, func() error {
		if bytes > 1<<30 {
			d.find(levelWarning, "replication slot "+name, "start what reads it, or SELECT pg_drop_replication_slot('"+name+"')",
				"nobody reads it, and it keeps %d GiB of WAL, until the disk is full", bytes>>30)
		}
		return nil
	})
	return err
}

// examineConnections compares the connections that replicas may open with those that PostgreSQL
// allows, and looks for a pooler in between.
func (d *doctor) examineConnections(ctx context.Context) error {
	room, err := d.db.Room(ctx)
	if err != nil {
		return err
	}
	replicas := 1
	var known bool
	if err := d.db.Pool.QueryRow(ctx, "SELECT to_regclass('servers') IS NOT NULL").Scan(&known); err != nil {
		return err
	}
	if known {
		servers, err := backend.Servers(ctx, d.db)
		if err != nil {
			return err
		}
		replicas = max(len(servers), 1)
	}
	each := backend.OpenedConns(d.cfg)
	if need := each * replicas; room.Connections < need {
		d.find(levelWarning, room.Of, "raise the limit in PostgreSQL, or lower database.max_conns or gc.workers",
			"it allows %d connections, and %d replicas may open %d each: requests fail when there is none left", room.Connections, replicas, each)
	}
	conn, err := d.db.Pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	var pid uint32
	if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		return err
	}
	if pid != conn.Conn().PgConn().PID() {
		d.find(levelNote, "database.main", "connect to PostgreSQL directly, or keep the pooler in session mode with room for all connections (docs/configuration.md)", "there is a connection pooler in between, which brings no advantage: each process has a pool of its own")
	}
	return nil
}

// examineClock compares this machine's clock with the database's.
func (d *doctor) examineClock(ctx context.Context) error {
	var theirs time.Time
	before := time.Now()
	if err := d.db.Pool.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&theirs); err != nil {
		return err
	}
	after := time.Now()
	early, late := before.Sub(theirs), theirs.Sub(after) // of the database's clock
	apart := max(early, late)
	if apart < 2*time.Second {
		return nil
	}
	level := levelWarning
	if apart > 30*time.Second {
		level = levelError
	}
	d.find(level, "clock", "synchronize both clocks, by NTP", "this machine and the database's server are %s apart: S3 refuses requests, tokens are refused or live too long, and the audit log's times are wrong", apart.Round(time.Millisecond))
	return nil
}

// examineSchema compares the schema with what this program needs. complete says that all tables of
// the metadata are there. The statistics' database may be away.
func (d *doctor) examineSchema(ctx context.Context) (complete bool, err error) {
	list, err := backend.Migrations(ctx, d.cfg, d.dsn)
	if err != nil && list == nil {
		return false, err
	}
	d.statsAway = err != nil
	away := backend.ExplainDatabase(d.cfg, err)
	switch err := backend.ForCommand(backend.SchemaComplete(list)); {
	case errors.Is(err, db.ErrNewerSchema):
		d.find(levelError, "schema", "run the newer version on all machines; to go back, restore a backup that the older version has made", "%v", err)
		return false, nil
	case err != nil:
		d.find(levelError, "schema", `run "purser migrate up", or start the server with database.migrate: true`, "%v", err)
		return false, away
	}
	return true, away
}

// examineStatistics looks for tables about which the planner knows nothing.
func (d *doctor) examineStatistics(ctx context.Context) error {
	rows, err := d.db.Pool.Query(ctx, `
		SELECT relname::text FROM pg_stat_user_tables
		WHERE n_live_tup > 10000 AND last_analyze IS NULL AND last_autoanalyze IS NULL ORDER BY n_live_tup DESC LIMIT 20`)
	if err != nil {
		return err
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	if len(tables) > 0 {
		d.find(levelWarning, "statistics", "run ANALYZE", "PostgreSQL has never analyzed %s, so it may choose slow plans", strings.Join(tables, ", "))
		return nil
	}
	var missing int
	err = d.db.Pool.QueryRow(ctx, `
		SELECT count(*) FROM pg_statistic_ext e JOIN pg_class c ON c.oid = e.stxrelid
		WHERE c.reltuples > 10000 AND NOT EXISTS (
			SELECT FROM pg_stats_ext s WHERE s.statistics_schemaname = e.stxnamespace::regnamespace::text AND s.statistics_name = e.stxname)`).Scan(&missing)
	if err != nil {
		return err
	}
	if missing > 0 {
		d.find(levelWarning, "statistics", "run ANALYZE", "%d of the extended statistics were never built: with many small repositories, queries may read the whole of a large one", missing)
	}
	return nil
}

// examineServers compares the settings that the doctor was given with those of the servers.
func (d *doctor) examineServers(ctx context.Context) error {
	servers, err := backend.Servers(ctx, d.db)
	if err != nil {
		return err
	}
	for _, s := range servers {
		var decide, others []string
		for _, f := range d.cfg.Differences(s.Settings) {
			if f.Decides {
				decide = append(decide, f.String())
			} else {
				others = append(others, f.String())
			}
		}
		const remedy = "run this command with the server's configuration: --config FILE and the variables of its service; or restart the server if that has changed"
		if len(decide) > 0 {
			d.find(levelWarning, "configuration", remedy, "commands that delete or repair are refused, since %s has other settings: %s", s.Name(), strings.Join(decide, "; "))
		}
		if more := len(others) - maxDifferences; more > 0 {
			others = append(others[:maxDifferences], fmt.Sprintf("and %d more", more))
		}
		if len(others) > 0 {
			d.find(levelNote, "configuration", remedy, "what is said here is about this command's settings, and %s has others: %s", s.Name(), strings.Join(others, "; "))
		}
	}
	return nil
}

// maxDifferences limits how many settings a note names.
const maxDifferences = 10

// examineInherited looks at the settings that the role or the database imposes on sessions.
// usable says that Purser can work in the metadata's sessions; else each other examination of
// the database would fail with the same error.
func (d *doctor) examineInherited(ctx context.Context) (usable bool, err error) {
	usable = true
	dsns := slices.Compact([]string{d.dsn, backend.StatsDSN(d.cfg, d.dsn)})
	for i, dsn := range dsns {
		about := []string{"database.main", "database.stats"}[i]
		list, err := pgsession.Imposed(ctx, dsn)
		if i > 0 && err != nil && db.Unavailable(err) {
			continue // the statistics' server may be away
		}
		if err != nil {
			return false, pgsession.Explain(err, about)
		}
		refused, err := refusedSetting(ctx, dsn)
		if err != nil {
			return false, pgsession.Explain(err, about)
		}
		for _, e := range list {
			if e.Setting.Refused || e.Setting.Name == refused {
				usable = usable && i > 0
				d.find(levelError, about+": "+e.Setting.Name, e.Remedy, "%s imposes %s on Purser's sessions, so %s: Purser doesn't work with it", e.By, e.Value, e.Setting.Why)
				continue
			}
			d.find(levelNote, about+": "+e.Setting.Name, e.Remedy, "%s imposes %s on sessions, and Purser's set their own value instead, for otherwise %s", e.By, e.Value, e.Setting.Why)
		}
	}
	return usable, nil
}

// refusedSetting returns the name of the setting because of which Purser refuses a session of
// the database, or "".
func refusedSetting(ctx context.Context, dsn string) (string, error) {
	conn, done, err := db.Connect(ctx, dsn)
	if e, ok := errors.AsType[*pgsession.ImposedError](err); ok {
		return e.Setting.Name, nil
	}
	if err != nil {
		return "", err
	}
	defer done()
	return "", conn.Ping(ctx)
}

// examineRights looks for rights that the roles of the databases lack. visible says that the metadata's
// role may look into the schema, if there is one; else no table could be examined. Whether something can be
// written at all, other examinations say.
func (d *doctor) examineRights(ctx context.Context) (visible bool, err error) {
	r, err := d.db.Rights(ctx)
	if err != nil {
		return false, err
	}
	d.findLacks("database.main", r)
	visible = len(r.Lacks) == 0 || r.Lacks[0].Kind != "schema"
	stats, done := d.db, func() {}
	if dsn := backend.StatsDSN(d.cfg, d.dsn); dsn != d.dsn {
		if stats, err = db.Open(ctx, db.Options{DSN: dsn, MaxConns: 1, ApplicationName: "purser doctor", Log: d.log}); err != nil {
			return visible, err
		}
		done = stats.Close
	}
	defer done()
	if r, err = stats.StatsRights(ctx); err != nil {
		if db.Unavailable(err) { // the statistics' server may be away, which another examination says
			err = nil
		}
		return visible, err
	}
	d.findLacks("database.stats", r)
	return visible, nil
}

// findLacks makes a finding of what a role lacks.
func (d *doctor) findLacks(about string, r db.Rights) {
	lacks, ok := errors.AsType[*db.DeniedError](r.All())
	if !ok {
		return
	}
	d.denied = true
	d.find(levelError, about+": role "+r.Role, lacks.Remedy, "%s: what needs them fails, and clients get 503", lacks.What)
}
