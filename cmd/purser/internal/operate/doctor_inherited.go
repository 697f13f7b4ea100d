package operate

import (
	"context"
	"errors"
	"slices"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/pgsession"
)

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
