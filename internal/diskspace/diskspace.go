// Package diskspace keeps what the registry's disks had free, and says when they will be full.
//
// Each server notes once an hour how large its disks are and what they have free (table disk_space);
// servers that share a disk write one row. The forecast is a straight line through what was used in
// the last seven days. It says nothing before there is a day of it, and nothing of other disks: rows
// count only if the disk has the same path and size as now.
package diskspace

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/clock"
	"github.com/purser-registry/purser/internal/db"
)

const (
	// past is the time by which the forecast is made, and leastPast how much of it there must be.
	past      = 7 * 24 * time.Hour
	leastPast = 24 * time.Hour
	// kept is for how long rows are kept.
	kept = 30 * 24 * time.Hour
	// farthest is the latest moment that a forecast names.
	farthest = 365 * 24 * time.Hour
)

// Disk is what a disk has, and when it will be full.
type Disk struct {
	Of      string `json:"of" doc:"What is kept there: blobs, or database" example:"blobs"`
	Path    string `json:"path"`
	Size    int64  `json:"size_bytes"`
	Free    int64  `json:"free_bytes"`
	Reserve int64  `json:"reserve_bytes" doc:"What pushes leave free (storage.reserve)"`
	// PerDay is by how much the use grew each day; negative: it shrank. Nil: it isn't known yet.
	PerDay *int64 `json:"used_per_day_bytes,omitempty" doc:"By how much the use of the disk grew each day in the last seven days. Absent before there is a day of measurements"`
	// Full is when the reserve will be reached. Nil: not within a year, or it isn't known yet.
	Full *time.Time `json:"full_at,omitempty" doc:"When pushes will be refused if the use goes on growing so. Absent if that isn't within a year"`
}

// name is the name of a disk in the table.
func name(d blob.Disk) string { return strings.TrimPrefix(d.Of, "the ") }

// Note stores what the disks have free now, at most once an hour. Disks that can't be asked are left
// out.
func Note(ctx context.Context, q db.Querier, disks blob.Disks) error {
	for _, d := range disks {
		s, err := blob.SpaceOf(d.Path)
		if err != nil {
			continue // the metrics tell
		}
		if _, err := q.Exec(ctx, `
			INSERT INTO disk_space (disk, path, measured_at, size, free) VALUES ($1, $2, date_trunc('hour', now(), 'UTC'), $3, $4)
			ON CONFLICT DO NOTHING`, name(d), d.Path, s.Size, s.Free); err != nil {
			return fmt.Errorf("noting what the disk of %s has free: %w", d.Of, err)
		}
	}
	return nil
}

// Forget deletes what disks had free more than 30 days ago. `check` is clock.Guard.CheckTime, or nil: if
// it returns an error, Forget deletes nothing and returns that error.
func Forget(ctx context.Context, d *db.DB, check func(ctx context.Context, now time.Time) error) error {
	err := d.Tx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "DELETE FROM disk_space WHERE measured_at < now() - $1::interval", kept); err != nil {
			return err
		}
		return clock.CheckTx(ctx, tx, check)
	})
	if err != nil {
		return fmt.Errorf("forgetting what disks had free: %w", err)
	}
	return nil
}

// Forecast returns what the disks have free, and when they will be full. Disks that can't be asked are
// left out.
func Forecast(ctx context.Context, q db.Querier, disks blob.Disks) ([]Disk, error) {
	list := []Disk{}
	for _, d := range disks {
		space, err := blob.SpaceOf(d.Path)
		if err != nil {
			continue
		}
		s := Disk{Of: name(d), Path: d.Path, Size: space.Size, Free: space.Free, Reserve: d.Leave(space)}
		var now time.Time
		var slope *float64 // bytes a second
		if err := q.QueryRow(ctx, `
			SELECT now(), CASE WHEN max(measured_at) - min(measured_at) >= $4::interval THEN regr_slope(size - free, extract(epoch FROM measured_at)) END
			FROM disk_space WHERE disk = $1 AND path = $2 AND size = $3 AND measured_at BETWEEN now() - $5::interval AND now()`,
			s.Of, s.Path, s.Size, leastPast, past).Scan(&now, &slope); err != nil {
			return nil, fmt.Errorf("reading what the disk of %s had free: %w", d.Of, err)
		}
		if slope != nil {
			s.predict(now, *slope)
		}
		list = append(list, s)
	}
	return list, nil
}

// predict sets what follows from the bytes by which the use grows each second.
func (s *Disk) predict(now time.Time, slope float64) {
	perDay := int64(slope * (24 * time.Hour).Seconds())
	s.PerDay = &perDay
	if slope <= 0 {
		return
	}
	seconds := float64(max(s.Free-s.Reserve, 0)) / slope
	if seconds > farthest.Seconds() {
		return
	}
	full := now.Add(time.Duration(seconds * float64(time.Second))).UTC()
	s.Full = &full
}
