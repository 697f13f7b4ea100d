package diskspace

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/worker"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// forecast returns the forecast of one disk.
func forecast(t *testing.T, d *db.DB, disk blob.Disk) Disk {
	t.Helper()
	list, err := Forecast(t.Context(), d.Pool, blob.Disks{disk})
	if err != nil || len(list) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	return list[0]
}

// Rows of an hour are written once, whoever writes them. Old ones go, unless the clock isn't fit for that.
func TestNote(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	disks := blob.Disks{{Of: "the blobs", Path: t.TempDir()}, {Of: "the database", Path: t.TempDir()}, {Of: "the moon", Path: "/nowhere/at/all"}}
	if _, err := d.Pool.Exec(t.Context(), "INSERT INTO disk_space VALUES ('blobs', '/old', now() - interval '31 days', 1, 1), ('blobs', '/old', now() - interval '29 days', 1, 1)"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []error{worker.ErrRest, nil, nil} {
		if err := Note(t.Context(), d.Pool, disks); err != nil {
			t.Fatal(err)
		}
		err := Forget(t.Context(), d, func(context.Context, time.Time) error { return want })
		var old int
		if err := d.Pool.QueryRow(t.Context(), "SELECT count(*) FROM disk_space WHERE path = '/old'").Scan(&old); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(err, want) || (old == 2) != (want != nil) {
			t.Errorf("forgetting: %v, want %v; %d old rows are left", err, want, old)
		}
	}
	var rows, plausible int
	if err := d.Pool.QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE free > 0 AND size >= free AND measured_at > now() - interval '2 hours')
		FROM disk_space`).Scan(&rows, &plausible); err != nil {
		t.Fatal(err)
	}
	// A test that crosses the hour writes each disk twice.
	if rows-plausible != 1 || plausible != 2 && plausible != 4 {
		t.Errorf("%d rows, %d of them of now; want 3 and 2", rows, plausible)
	}
}

// The forecast is right for a disk that fills, and silent where nothing can be known.
func TestForecast(t *testing.T) {
	t.Parallel()
	disk := blob.Disk{Of: "the blobs", Path: t.TempDir()}
	space, err := blob.SpaceOf(disk.Path)
	if err != nil {
		t.Fatal(err)
	}
	const gib = 1 << 30
	disk.Reserve = space.Free - 10*gib // 10 GiB are left
	for _, tt := range []struct {
		name    string
		hours   int   // of measurements until now
		perHour int64 // by which the use grew
		path    string
		size    int64
		known   bool
		full    time.Duration // from now; 0: never
	}{
		{name: "a GiB an hour", hours: 100, perHour: gib, known: true, full: 10 * time.Hour},
		{name: "more than a week of measurements", hours: 500, perHour: gib / 10, known: true, full: 100 * time.Hour},
		{name: "too few measurements", hours: 20, perHour: gib},
		{name: "it shrinks", hours: 100, perHour: -gib, known: true},
		{name: "nothing changes", hours: 100, known: true},
		{name: "later than in a year", hours: 100, perHour: gib / 10_000, known: true},
		{name: "another path", hours: 100, perHour: gib, path: "/elsewhere"},
		{name: "another size", hours: 100, perHour: gib, size: space.Size + 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := dbtest.New(t)
			path, size := disk.Path, space.Size
			if tt.path != "" {
				path = tt.path
			}
			if tt.size != 0 {
				size = tt.size
			}
			if _, err := d.Pool.Exec(t.Context(), `INSERT INTO disk_space (disk, path, measured_at, size, free)
				SELECT 'blobs', $1, now() - make_interval(hours => h), $2::bigint, $3::bigint + h * $4::bigint FROM generate_series(0, $5) h
				UNION ALL SELECT 'blobs', $1, now() + interval '60 days', $2::bigint, 0`, path, size, space.Free, tt.perHour, tt.hours); err != nil {
				t.Fatal(err)
			}
			s := forecast(t, d, disk)
			if (s.PerDay != nil) != tt.known || tt.known && (*s.PerDay-24*tt.perHour > 1024 || 24*tt.perHour-*s.PerDay > 1024) {
				t.Errorf("the use grows by %v a day, want %d (known: %v)", s.PerDay, 24*tt.perHour, tt.known)
			}
			if (s.Full != nil) != (tt.full > 0) {
				t.Fatalf("full at %v, want in %v", s.Full, tt.full)
			}
			// Other programs may write to the disk meanwhile.
			if tt.full > 0 && (time.Until(*s.Full)-tt.full).Abs() > tt.full/4 {
				t.Errorf("full in %v, want in %v", time.Until(*s.Full), tt.full)
			}
		})
	}
}

// A disk whose reserve is reached is full now.
func TestFullNow(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := Disk{Free: 5, Reserve: 10}
	if s.predict(now, 1); s.Full == nil || !s.Full.Equal(now) {
		t.Errorf("full at %v", s.Full)
	}
	s = Disk{Free: 86400 + 10, Reserve: 10}
	if s.predict(now, 1); s.Full == nil || !s.Full.Equal(now.Add(24*time.Hour)) || *s.PerDay != 86400 {
		t.Errorf("full at %v, %v a day", s.Full, s.PerDay)
	}
}
