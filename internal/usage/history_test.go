package usage_test

import (
	"testing"

	"github.com/purser-registry/purser/internal/usage"
)

// phase runs slices until the pass is in the phase.
func (b bundle) phase(m *usage.Meter, want string) {
	b.t.Helper()
	for range 1000 {
		var phase string
		if err := b.db.Pool.QueryRow(b.t.Context(), "SELECT phase FROM usage_state").Scan(&phase); err != nil {
			b.t.Fatal(err)
		}
		if phase == want {
			return
		}
		if _, err := m.Step(b.t.Context()); err != nil {
			b.t.Fatal(err)
		}
	}
	b.t.Fatal("never", want)
}

func (b bundle) numbers(sql string, out ...any) {
	b.t.Helper()
	if err := b.db.Pool.QueryRow(b.t.Context(), sql).Scan(out...); err != nil {
		b.t.Fatal(err)
	}
}

// TestEachBlobOnce: links end and begin between the two phases of a pass. No blob comes or goes: the
// registry has the same bytes throughout, each blob once.
func TestEachBlobOnce(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{
		"the last links are deleted": "DELETE FROM repository_blobs",
		"all get links":              "INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest) SELECT 1, 1, digest FROM blobs ON CONFLICT DO NOTHING",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.exec("INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest) SELECT 1, 1, digest FROM blobs ORDER BY digest LIMIT 30")
			m := b.meter(7)
			b.phase(m, "blobs")
			b.exec(change)
			b.phase(m, "idle")
			var bytes, blobs, wantBytes, wantBlobs int64
			b.numbers("SELECT bytes, blobs FROM usage_registry JOIN usage_state ON published = usage_registry.pass", &bytes, &blobs)
			b.numbers("SELECT sum(size)::bigint, count(*) FROM blobs", &wantBytes, &wantBlobs)
			if bytes != wantBytes || blobs != wantBlobs {
				t.Errorf("the registry has %d bytes of %d blobs, want %d of %d", bytes, blobs, wantBytes, wantBlobs)
			}
		})
	}
}

// TestClockWasAhead: a pass ended while the database's clock was a year ahead. When it is right again, sizes
// are measured again within a day.
func TestClockWasAhead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	m := b.meter(7)
	b.pass(m)
	b.exec("UPDATE usage_state SET next_at = now() + interval '365 days', measured_at = now() + interval '364 days', measured_from = now() + interval '364 days'")
	if more, err := m.Step(t.Context()); !more || err != nil {
		t.Errorf("nothing is measured for a year: %t, %v", more, err)
	}
}

// TestEmptied: a namespace whose content was deleted stores nothing from that day on.
func TestEmptied(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec("INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest) SELECT 1, 1, digest FROM blobs")
	m := b.meter(7)
	b.pass(m)
	b.exec("UPDATE usage_days SET day = day - 3")
	b.exec("DELETE FROM repository_blobs")
	b.pass(m)
	var bytes int64
	b.numbers("SELECT bytes FROM usage_days WHERE namespace_id = 1 ORDER BY day DESC LIMIT 1", &bytes)
	if bytes != 0 {
		t.Errorf("the history says that the empty namespace stores %d bytes today", bytes)
	}
}

// TestAtRest: a namespace that hasn't changed for longer than days are kept has still what it stores.
func TestAtRest(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec("INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest) SELECT 1, 1, digest FROM blobs")
	m := b.meter(7)
	b.pass(m)
	b.exec("UPDATE usage_days SET day = day - 401")
	b.pass(m)
	b.exec("UPDATE usage_days SET day = day - 1")
	b.pass(m)
	var past int
	b.numbers("SELECT count(*) FROM usage_days WHERE namespace_id = 1 AND day <= (now() AT TIME ZONE 'UTC')::date - 1", &past)
	if past == 0 {
		t.Error("the history begins today, though the namespace has stored the same for 402 days")
	}
}

// TestOldDays: days that are too old go, and those of the future, also if there are more of them than a slice has.
// Of each namespace the last of the old ones stays.
func TestOldDays(t *testing.T) {
	t.Parallel()
	b := setup(t)
	m := b.meter(3)
	b.exec("INSERT INTO usage_days SELECT n.id, current_date - 500 - d, 1, 1 FROM top_level_namespaces n, generate_series(1, 5) d")
	b.exec("INSERT INTO usage_days SELECT n.id, current_date + 100 + d, 1, 1 FROM top_level_namespaces n, generate_series(1, 5) d")
	b.exec("INSERT INTO usage_registry_days SELECT current_date + 100 + d, 1, 1, 1 FROM generate_series(-700, 5) d")
	b.pass(m)
	var old, last, namespaces, registry int
	b.numbers("SELECT count(*), count(*) FILTER (WHERE day = current_date - 501), (SELECT count(*) FROM top_level_namespaces) FROM usage_days WHERE day NOT BETWEEN current_date - 400 AND current_date", &old, &last, &namespaces)
	if old != namespaces || last != namespaces {
		t.Errorf("%d days that are too old or to come are left, %d of them the last old ones of their namespaces; want %d", old, last, namespaces)
	}
	b.numbers("SELECT count(*) FROM usage_registry_days WHERE day NOT BETWEEN current_date - 400 AND current_date", &registry)
	if registry != 0 {
		t.Errorf("%d days of the registry are left that are too old or to come", registry)
	}
}
