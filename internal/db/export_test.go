package db

import (
	"context"
	"io/fs"
	"strings"
	"testing/fstest"
	"time"

	"github.com/pressly/goose/v3"
)

// Alone lets tests call the function alone. `loss` is the time after which PostgreSQL releases
// the migration lock of a stalled process.
func Alone(ctx context.Context, dsn string, loss time.Duration, fn func(ctx context.Context) error) error {
	return alone(ctx, dsn, loss, MigrateOptions{}.waits, fn)
}

// MigrateBy migrates as a next version would whose last migration is `sql`.
func MigrateBy(ctx context.Context, dsn, sql string, o MigrateOptions) error {
	files := fstest.MapFS{"migrations/99999_next.sql": {Data: []byte("-- +goose Up\n" + sql)}}
	if err := eachMigration(func(name, text string) { files[name] = &fstest.MapFile{Data: []byte(text)} }); err != nil {
		return err
	}
	p, done, err := provider(dsn, files, "migrations", goose.DefaultTablename, map[string]string{"purser.partitions": "4"}, searchMigration(dsn, o.waits))
	if err != nil {
		return err
	}
	defer done()
	_, err = upTo(ctx, p, o.waits)
	return err
}

// TryLocks lets tests call the function tryLocks.
func TryLocks(ctx context.Context, tries int, waits func(what string), fn func() error) error {
	return tryLocks(ctx, tries, waits, fn)
}

// eachMigration calls fn with the name and the text of each migration of the main database.
func eachMigration(fn func(name, text string)) error {
	names, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		return err
	}
	for _, name := range names {
		text, err := migrations.ReadFile(name)
		if err != nil {
			return err
		}
		fn(name, string(text))
	}
	return nil
}

// WaitingMigrations returns the names of the migrations that may wait for a lock without limit.
func WaitingMigrations() (list []string, err error) {
	err = eachMigration(func(name, text string) {
		if !strings.Contains(text, "\nSET LOCAL lock_timeout = '500ms';\n") {
			list = append(list, name)
		}
	})
	return list, err
}

// SharesWaiting returns how many clients wait for a connection of the pool.
func SharesWaiting(p *Pool) int {
	p.shares.mu.Lock()
	defer p.shares.mu.Unlock()
	return len(p.shares.known) + len(p.shares.strangers)
}

// SharesHeld returns of how many clients the pool knows that they have connections or wait.
func SharesHeld(p *Pool) int {
	p.shares.mu.Lock()
	defer p.shares.mu.Unlock()
	return len(p.shares.clients)
}
