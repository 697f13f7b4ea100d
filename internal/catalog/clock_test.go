package catalog_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/worker"
)

// TestClockSetMeanwhile: a worker was told that it may delete, and then the database's clock is set.
// The trash, tags with an expiration date and uploads stay, although they seem old by that clock.
func TestClockSetMeanwhile(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	why := fmt.Errorf("set meanwhile: %w", worker.ErrRest)
	var asked []time.Time
	b := bundle{catalogtest.WithTrash(t, dbtest.DSN(t), time.Hour, func(o *catalog.Options) {
		o.CheckTime = func(_ context.Context, now time.Time) error {
			asked = append(asked, now)
			return why
		}
	})}
	b.Fill(t, "acme/app")
	b.Fill(t, "acme/old")
	b.Fill(t, "zoo/app")
	b.Begun(t, "acme/app")
	for _, err := range []error{b.Trash.DeleteRepository(ctx, "acme/old"), b.Trash.DeleteNamespace(ctx, "zoo")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	b.ExpireTrash(t)
	b.Exec(t, "UPDATE tags SET expires_at = now() - interval '1 s' WHERE name = 'also'")
	b.Exec(t, "UPDATE uploads SET updated_at = now() - interval '60 days'")
	left := func() string {
		return fmt.Sprint(len(b.Trashed(t)), b.Count(t, "SELECT count(*) FROM tags WHERE expires_at IS NOT NULL"), b.Rows(t, "uploads"))
	}
	before := left()
	_, purged := b.Trash.PurgeExpired(ctx)
	_, expired := b.ExpireTags(ctx)
	_, reaped := b.ReapUploads(ctx, time.Hour, 10)
	for what, err := range map[string]error{"purge": purged, "expire": expired, "reap": reaped} {
		if !errors.Is(err, worker.ErrRest) {
			t.Errorf("%s: %v, want a rest", what, err)
		}
	}
	if after := left(); after != before {
		t.Errorf("in the trash, with a date, uploads: %s, before %s", after, before)
	}
	now := time.Now()
	for _, at := range asked {
		if d := now.Sub(at); d.Abs() > time.Hour {
			t.Errorf("the clock was asked for %v", at)
		}
	}
	why = nil
	_, purged = b.Trash.PurgeExpired(ctx)
	_, expired = b.ExpireTags(ctx)
	_, reaped = b.ReapUploads(ctx, time.Hour, 10)
	if err := errors.Join(purged, expired, reaped); err != nil || len(b.Trashed(t)) != 0 || b.Rows(t, "uploads") != 0 {
		t.Errorf("with a right clock: %v, left %s", err, left())
	}
}

// TestPushTimes: tags are in the order of their pushes, and none looks older than it is, while the
// clock is behind, and after it was ahead, whether or not anybody has noticed.
func TestPushTimes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	payload := catalogtest.Image(t, b.Push(t, "acme/app", "config"), nil, nil)
	push := func(tag string) (before, stamp, after time.Time) {
		t.Helper()
		now := func() (at time.Time) {
			if err := b.DB.Pool.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&at); err != nil {
				t.Fatal(err)
			}
			return at
		}
		before = now()
		b.Put(t, "acme/app", payload, tag)
		err := b.DB.Pool.QueryRow(t.Context(), "SELECT COALESCE(updated_at, created_at) FROM tags WHERE name = $1", tag).Scan(&stamp)
		if err != nil {
			t.Fatal(err)
		}
		return before, stamp, now()
	}
	right := func(tag string) {
		t.Helper()
		if before, stamp, after := push(tag); stamp.Before(before) || stamp.After(after) {
			t.Errorf("%s was pushed between %v and %v, and says %v", tag, before, after, stamp)
		}
	}
	var last time.Time
	later := func(tag string, least time.Duration) {
		t.Helper()
		before, stamp, _ := push(tag)
		if !stamp.After(last) || stamp.Sub(before) < least {
			t.Errorf("%s says %v, the push before it %v; now it is %v", tag, stamp, last, before)
		}
		last = stamp
	}
	right("v1") // nobody has looked at the clock
	b.Exec(t, "INSERT INTO clock (seen_at, boot, up, trusted_at) VALUES (now() - interval '10 s', '', 0, now() - interval '10 s')")
	right("v2")
	right("v1")
	// The clock was 30 days ahead when v1 was pushed, and nobody has noticed.
	b.Exec(t, "UPDATE tags SET updated_at = now() + interval '30 days' WHERE name = 'v1'")
	last = time.Now().Add(30*24*time.Hour - time.Minute)
	later("v3", 29*24*time.Hour)
	later("v2", 29*24*time.Hour)
	// The clock is 60 days behind, and nobody has noticed.
	b.Exec(t, "UPDATE clock SET trusted_at = now() + interval '60 days'")
	last = time.Now()
	later("v3", 59*24*time.Hour)
	b.Exec(t, "UPDATE clock SET doubt = 'it was set', seen_at = now()")
	later("v2", 59*24*time.Hour)
	later("v10", 59*24*time.Hour)
	// It was 60 days ahead when these were pushed, and is right now.
	b.Exec(t, "UPDATE clock SET trusted_at = now()")
	later("v9", 59*24*time.Hour)
	b.Exec(t, "UPDATE clock SET doubt = NULL, confirmed_to = now() + interval '60 days'")
	later("v3", 59*24*time.Hour)
	b.Exec(t, "UPDATE clock SET confirmed_to = now()")
	b.Exec(t, "DELETE FROM tags")
	right("v1")
}

// TestMendPushTimes: tags of the future are pushed now, in their order, and what is pushed afterwards
// isn't of the future either.
func TestMendPushTimes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, path := range []string{"acme/app", "acme/other"} {
		payload := catalogtest.Image(t, b.Push(t, path, "config"), nil, nil)
		for _, tag := range []string{"old", "a", "c", "b", "same"} {
			b.Put(t, path, payload, tag)
		}
	}
	b.Exec(t, `
		UPDATE tags SET created_at = CASE name WHEN 'a' THEN now() + interval '9 years' ELSE created_at END,
			updated_at = now() + CASE name WHEN 'c' THEN interval '8 years' WHEN 'b' THEN interval '10 years' WHEN 'same' THEN interval '10 years' END
		WHERE name <> 'old' AND repository_id = (SELECT id FROM repositories WHERE path = 'acme/app')`)
	const order = `
		SELECT string_agg(name, ' ' ORDER BY COALESCE(t.updated_at, t.created_at), name) FROM tags t JOIN repositories r ON r.id = t.repository_id
		WHERE r.path = $1`
	tags := func(path string) (names string) {
		t.Helper()
		if err := b.DB.Pool.QueryRow(t.Context(), order, path).Scan(&names); err != nil {
			t.Fatal(err)
		}
		return names
	}
	if have := tags("acme/app"); have != "old c a b same" {
		t.Fatalf("before: %s", have)
	}
	for i, want := range []int64{4, 0} {
		if n, err := b.MendPushTimes(t.Context()); n != want || err != nil {
			t.Errorf("look %d mended %d tags, want %d (%v)", i, n, want, err)
		}
	}
	b.Put(t, "acme/app", catalogtest.Image(t, b.Push(t, "acme/app", "config"), nil, nil), "new")
	if have := tags("acme/app"); have != "old c a b same new" {
		t.Errorf("afterwards: %s", have)
	}
	if have := tags("acme/other"); have != "old a c b same" {
		t.Errorf("another repository: %s", have)
	}
	for what, sql := range map[string]string{
		"tags of the future":               "SELECT count(*) FROM tags WHERE COALESCE(updated_at, created_at) > clock_timestamp()",
		"tags made after they were pushed": "SELECT count(*) FROM tags WHERE created_at > updated_at",
		"tags pushed at another moment than b": `SELECT count(*) FROM tags s JOIN tags b USING (repository_id)
			WHERE s.name = 'same' AND b.name = 'b' AND s.repository_id = (SELECT id FROM repositories WHERE path = 'acme/app')
				AND COALESCE(s.updated_at, s.created_at) <> COALESCE(b.updated_at, b.created_at)`,
	} {
		if n := b.Count(t, sql); n != 0 {
			t.Errorf("%d %s", n, what)
		}
	}
}

// TestPushWhileTimesAreMended: a push that has begun goes behind the tags of the future. So the mending
// waits for it, and mends its tag too.
func TestPushWhileTimesAreMended(t *testing.T) {
	t.Parallel()
	b := setup(t)
	payload := catalogtest.Image(t, b.Push(t, "acme/app", "config"), nil, nil)
	b.Put(t, "acme/app", payload, "a")
	b.Exec(t, "UPDATE tags SET updated_at = now() + interval '9 years'")
	push, watch := b.Session(t), b.Session(t)
	push.Exec(t, "BEGIN")
	push.Exec(t, "SELECT FROM repositories WHERE path = 'acme/app' FOR KEY SHARE")
	push.Exec(t, `INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id, created_at)
		SELECT top_level_namespace_id, repository_id, 'b', manifest_id, purser_push_time(top_level_namespace_id, repository_id) FROM tags`)
	mended := make(chan error, 1)
	go func() {
		_, err := b.MendPushTimes(t.Context())
		mended <- err
	}()
	push.Blocks(t, watch, 1)
	push.Exec(t, "COMMIT")
	if err := <-mended; err != nil {
		t.Fatal(err)
	}
	if n := b.Count(t, "SELECT count(*) FROM tags WHERE COALESCE(updated_at, created_at) > clock_timestamp()"); n != 0 {
		t.Errorf("%d tags are of the future", n)
	}
}

// TestDatesWhileTheClockIsBehind: dates that are made while the clock is behind are counted from the
// time at which it was trusted, so they aren't over when it is right again.
func TestDatesWhileTheClockIsBehind(t *testing.T) {
	t.Parallel()
	b := bundle{catalogtest.WithTrash(t, dbtest.DSN(t), 24*time.Hour)}
	b.Fill(t, "acme/app")
	b.Fill(t, "zoo/app")
	b.Exec(t, "INSERT INTO clock (seen_at, boot, up, trusted_at) VALUES (now(), '', 0, now() + interval '2 days')")
	for _, err := range []error{b.Trash.DeleteRepository(t.Context(), "acme/app"), b.Trash.DeleteNamespace(t.Context(), "zoo")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	n := b.Count(t, `
		SELECT count(*) FROM (SELECT purge_after FROM repositories UNION ALL SELECT purge_after FROM top_level_namespaces) d
		WHERE purge_after BETWEEN now() + interval '71 hours' AND now() + interval '73 hours'`)
	if n != 2 {
		t.Errorf("%d of 2 are in the trash for a day after the trusted time", n)
	}
}

// TestImportedFromTheFuture: the clock of the registry that an import reads was ahead. Neither what
// it brings nor what is pushed afterwards is of the future.
func TestImportedFromTheFuture(t *testing.T) {
	t.Parallel()
	b := setup(t)
	payload := catalogtest.Image(t, b.Push(t, "acme/app", "config"), nil, nil)
	m, err := oci.ParseManifest("", payload)
	if err != nil {
		t.Fatal(err)
	}
	future, past := time.Now().AddDate(10, 0, 0), time.Now().AddDate(-1, 0, 0)
	err = b.PutManifest(t.Context(), catalog.NewManifest{
		Repository: "acme/app", Digest: oci.Compute(oci.SHA256, payload), Manifest: m, Payload: payload, Tags: []string{"old", "wrong"},
		Imported: &catalog.Imported{Manifest: future, Tags: map[string]time.Time{"old": past, "wrong": future}},
	})
	if err != nil {
		t.Fatal(err)
	}
	b.Put(t, "acme/app", payload, "new")
	for what, sql := range map[string]string{
		"tags of the future":      "SELECT count(*) FROM tags WHERE COALESCE(updated_at, created_at) > now()",
		"manifests of the future": "SELECT count(*) FROM manifests WHERE created_at > now()",
		"tags that seem newer than the last push": `SELECT count(*) FROM tags t JOIN tags new ON new.name = 'new'
			WHERE t.name <> 'new' AND COALESCE(t.updated_at, t.created_at) >= COALESCE(new.updated_at, new.created_at)`,
		"tags without their time at the other registry": "SELECT count(*) FROM tags WHERE name = 'old' AND created_at > now() - interval '360 days'",
	} {
		if n := b.Count(t, sql); n != 0 {
			t.Errorf("%d %s", n, what)
		}
	}
}
