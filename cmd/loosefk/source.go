package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/pflag"

	"github.com/purser-registry/purser/internal/pgsession"
	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/contrib/cli"
	"github.com/purser-registry/purser/loosefk/contrib/redislock"
)

// source opens the databases and definitions that flags name. Where a flag isn't given, an
// environment variable names them.
type source struct {
	env         func(string) string
	log         *slog.Logger
	definitions string
	databases   []string // name=DSN
	mapFile     string
	schema      string
	redis       string
	tuning      *cli.Tuning
}

const defaultDefinitions = "config/loose_foreign_keys.yml"

func newSource(env func(string) string, stderr io.Writer) *source {
	return &source{env: env, log: slog.New(slog.NewTextHandler(stderr, nil)), tuning: &cli.Tuning{Getenv: env}}
}

func (s *source) addFlags(f *pflag.FlagSet) {
	f.StringVar(&s.definitions, "definitions", "", "file of definitions ($LOOSEFK_DEFINITIONS; default "+defaultDefinitions+")")
	f.StringArrayVar(&s.databases, "database", nil, "a database as name=DSN; repeat it for each ($LOOSEFK_DATABASE_URL for one called main)")
	f.StringVar(&s.mapFile, "map", "", "YAML file that says which tables are in which database: \"name: [table, 'pattern_*']\" ($LOOSEFK_MAP)")
	f.StringVar(&s.schema, "schema", "", "schema of tables that are named without one ($LOOSEFK_SCHEMA; default public)")
	f.StringVar(&s.redis, "redis", "", "URL of a Redis to take locks in instead of PostgreSQL ($LOOSEFK_REDIS)")
}

// value returns the value of a flag or, if it is empty, of an environment variable.
func (s *source) value(flag, variable string) string {
	if flag != "" {
		return flag
	}
	return s.env(variable)
}

// open implements cli.Env.Open. It reads the definitions and makes the connection pools,
// which connect at first use.
func (s *source) open(ctx context.Context) (*cli.App, error) {
	app := &cli.App{File: s.value(s.definitions, "LOOSEFK_DEFINITIONS")}
	app.File = cmp.Or(app.File, defaultDefinitions)
	var err error
	if app.Options, err = s.tuning.Options(); err != nil {
		return nil, err
	}
	app.Options.Log = s.log
	app.Definitions, err = loosefk.Load(app.File)
	switch {
	case errors.Is(err, fs.ErrNotExist) && s.value(s.definitions, "LOOSEFK_DEFINITIONS") == "":
		// The file of definitions doesn't exist yet: convert creates it.
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: name the file with --definitions or LOOSEFK_DEFINITIONS", err)
	case err != nil:
		return nil, err
	}
	var closers []func()
	app.Close = func() {
		for _, fn := range slices.Backward(closers) {
			fn()
		}
	}
	if app.Databases, err = s.connect(ctx, &closers); err == nil {
		err = s.spread(app)
	}
	if err == nil {
		app.Options.Lock, err = s.lock(&closers)
	}
	if err != nil {
		app.Close()
		return nil, err
	}
	return app, nil
}

// idleInTransaction is how long this process may stall within a transaction before
// PostgreSQL ends the transaction and the connection.
const idleInTransaction = time.Minute

// poolConns is the number of connections in each database's pool: one for a lock, two for
// work and one for metrics.
const poolConns = 4

func (s *source) connect(ctx context.Context, closers *[]func()) (loosefk.Databases, error) {
	given := s.databases
	if url := s.env("LOOSEFK_DATABASE_URL"); len(given) == 0 && url != "" {
		given = []string{"main=" + url}
	}
	if len(given) == 0 {
		return nil, errors.New("no database is given: add --database main=postgres://…, or set LOOSEFK_DATABASE_URL")
	}
	var dbs loosefk.Databases
	for _, g := range given {
		name, dsn, ok := strings.Cut(g, "=")
		// The first "=" may be part of the DSN, if somebody gave a DSN without a name.
		if !ok || name == "" || strings.ContainsAny(name, ":/ ") {
			return nil, errors.New("--database: want name=DSN, such as main=postgres://user@host/db")
		}
		cfg, err := pgxpool.ParseConfig(dsn)
		if err != nil {
			return nil, fmt.Errorf("database %s: %w", name, err) // the error contains no password
		}
		if !strings.Contains(dsn, "pool_max_conns") {
			cfg.MaxConns = poolConns
		}
		if cfg.ConnConfig.RuntimeParams["application_name"] == "" {
			cfg.ConnConfig.RuntimeParams["application_name"] = "loosefk"
		}
		// Don't prepare statements, unless the DSN says so: behind a connection pooler that
		// runs the transactions of one connection in different sessions, prepared
		// statements would be lost.
		if !strings.Contains(dsn, "default_query_exec_mode") {
			cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
		}
		// Set no statement timeout, since queries of a command may take a long time. A DSN
		// can set statement_timeout.
		pgsession.Apply(&cfg.ConnConfig.Config, pgsession.Limits{Idle: idleInTransaction})
		if !strings.Contains(dsn, "pool_ping_timeout") {
			cfg.PingTimeout = pgsession.PingTimeout
		}
		pool, err := pgxpool.NewWithConfig(ctx, cfg)
		if err != nil {
			return nil, fmt.Errorf("database %s: %w", name, err)
		}
		*closers = append(*closers, pool.Close)
		dbs = append(dbs, loosefk.Database{Name: name, Pool: pool, Schema: loosefk.Schema(s.value(s.schema, "LOOSEFK_SCHEMA"))})
	}
	return dbs, nil
}

// spread assigns tables to databases as the file --map says. If there is only one database,
// all tables are still in it; then the map only says which foreign keys will cross
// databases.
func (s *source) spread(app *cli.App) error {
	file := s.value(s.mapFile, "LOOSEFK_MAP")
	if file == "" {
		if len(app.Databases) > 1 {
			return errors.New("there are several databases: say which tables are in which with --map")
		}
		return nil
	}
	var err error
	if app.Map, err = loosefk.LoadMap(file); err != nil || len(app.Databases) == 1 {
		return err
	}
	for _, m := range app.Map {
		i := slices.IndexFunc(app.Databases, func(d loosefk.Database) bool { return d.Name == m.Name })
		if i < 0 {
			return fmt.Errorf("%s names a database %s: give --database %[2]s=DSN", file, m.Name)
		}
		app.Databases[i].Tables = m.Tables
	}
	for _, d := range app.Databases {
		if !slices.ContainsFunc(app.Map, func(m loosefk.Database) bool { return m.Name == d.Name }) {
			return fmt.Errorf("%s doesn't say which tables are in database %s", file, d.Name)
		}
	}
	return nil
}

func (s *source) lock(closers *[]func()) (loosefk.Lock, error) {
	url := s.value(s.redis, "LOOSEFK_REDIS")
	if url == "" {
		return nil, nil
	}
	lock, err := redislock.Open(url)
	if err != nil {
		return nil, err
	}
	*closers = append(*closers, func() { lock.Client.Close() }) //nolint:errcheck // the process ends, and the lock expires by itself
	return lock, nil
}
