package catalog

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Home says which namespace and repository an upload belongs to, by the ids of their rows: those that
// had the names in the upload's URL when the upload began, or when its state was last saved. 0: there
// was none, so the upload belongs to one that is made later. When the namespace or the repository is
// deleted, the upload ends: it doesn't pass to another one that gets the same name.
//
// An upload that belongs to none passes to whatever is made under its name first, by anybody. It gives its
// uploader no right there: each request on it needs the right to push to what has the name now. It tells
// nothing to others either, since they lack its URL. Nor is a wrong namespace charged: the next request that
// stores bytes puts the namespace into the upload's row, and its quota counts all bytes of the upload. An
// upload without bytes has nothing to count, and its row doesn't say where it belongs. So its URL stays good
// even when what was made under the name is deleted and made once more, with the same consequences.
//
// Each statement that reads or changes an upload compares these ids with those that the names have
// now. The comparison stands in each of them, since PostgreSQL starts an executor for each call of a
// SQL function with subqueries.
type Home struct{ Namespace, Repository int64 }

// Home returns the namespace and repository that have the names in the path now.
func (c *Catalog) Home(ctx context.Context, path string) (h Home, err error) {
	err = c.db.Pool.QueryRow(ctx, `
		SELECT COALESCE((SELECT id FROM live_namespaces WHERE name = split_part($1::text, '/', 1)), 0),
			COALESCE((SELECT id FROM live_repositories WHERE path = $1::text), 0)`, path).Scan(&h.Namespace, &h.Repository)
	if err != nil {
		return h, fmt.Errorf("looking where uploads to %s belong: %w", path, err)
	}
	return h, nil
}

// KnownHome is like Home, but answers from the cache if that has the repository. Then `cached` is true,
// and another process may have deleted the repository within the last second.
func (c *Catalog) KnownHome(ctx context.Context, path string) (h Home, cached bool, err error) {
	fresh := c.cache.fresh(ctx)
	gen := c.cache.content(path)
	if r, ok := get(c.cache, fresh, c.cache.repositories, pathKey(path), gen); ok {
		return Home{r.namespace, r.id}, true, nil
	}
	if h, err = c.Home(ctx, path); err == nil && h.Repository != 0 {
		keep(c.cache, c.cache.repositories, pathKey(path), repository{h.Namespace, h.Repository}, gen)
	}
	return h, false, err
}

// Earlier returns the homes of uploads whose URLs may be used now: h itself, and those without a
// repository or namespace, since both may have been made after an upload began.
func (h Home) Earlier() []Home {
	list := []Home{h}
	if h.Repository != 0 {
		list = append(list, Home{Namespace: h.Namespace})
	}
	if h.Namespace != 0 {
		list = append(list, Home{})
	}
	return list
}

// UploadID names an upload: the id of its row, and the home that its URL gives it.
type UploadID struct {
	ID   uuid.UUID
	Home Home
}

// UploadID returns the upload's name.
func (u Upload) UploadID() UploadID { return UploadID{u.ID, u.Home} }

// UploadSecret returns the secret of 32 bytes with which the upload ids in URLs are encrypted.
// All processes on this database share it. The first call creates it.
func (c *Catalog) UploadSecret(ctx context.Context) ([]byte, error) {
	fresh := make([]byte, 32)
	rand.Read(fresh) //nolint:errcheck // it never fails
	b := new(pgx.Batch)
	b.Queue("INSERT INTO settings (name, value) VALUES ('uploads_secret', $1) ON CONFLICT (name) DO NOTHING", hex.EncodeToString(fresh))
	var text string
	b.Queue("SELECT value FROM settings WHERE name = 'uploads_secret'").QueryRow(func(row pgx.Row) error { return row.Scan(&text) })
	if err := c.db.Pool.SendBatch(ctx, b).Close(); err != nil {
		return nil, fmt.Errorf("reading the secret of uploads' URLs: %w", err)
	}
	secret, err := hex.DecodeString(text)
	if err != nil || len(secret) != len(fresh) {
		return nil, fmt.Errorf("the secret of uploads' URLs (settings, uploads_secret) is damaged: it is not %d bytes in hexadecimal; delete the row, and uploads in progress begin again", len(fresh))
	}
	return secret, nil
}
