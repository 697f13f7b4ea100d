// Package trash deletes repositories and namespaces. Those that it keeps in the trash can be brought
// back, until they are purged.
//
// Deleting a repository or namespace into the trash changes its row only: the row gets a name that
// nobody can ask for, and is marked. Everything below the row stays as it is, with its ids: tags,
// manifests, policies, rules, grants, robots, statistics. Bringing it back gives the row its name
// again.
//
//   - A push has locked the repository's row and its namespace's row with KEY SHARE (package catalog).
//     The deletion locks the row FOR UPDATE, so it waits for pushes in flight; a push that comes
//     later finds the mark and is refused, and then makes a new, empty repository of that name.
//   - All code finds repositories and namespaces by the views live_repositories and
//     live_namespaces, or says why it doesn't. A test checks this of every statement.
//   - Garbage collection deletes no manifest of a repository in the trash: reviews are postponed
//     (package gc). Manifests keep their blobs, as always.
//   - Purging deletes the row, which starts what deletion without a trash starts. Restoring and
//     purging both lock the row first, so one of them finds that the other has won.
//   - What is in the trash counts for the namespace's quota until it is purged. So restoring needs
//     no look at the quota.
//   - A repository keeps its namespace's id, by which its content is partitioned. So it comes back
//     in its namespace only.
package trash

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// Options configure a Can.
type Options struct {
	Catalog *catalog.Catalog // required
	// Background is the pool for what no client waits for: see catalog.Options. Default the catalog's
	// database.
	Background *db.DB
	// Keep is how long a deleted repository or namespace can be brought back. 0: not at all.
	Keep time.Duration
	// CheckTime returns an error while what is old at a time that the database has given mustn't be
	// deleted for its age (clock.Guard.CheckTime). Nil: it may.
	CheckTime func(ctx context.Context, now time.Time) error
}

// Can is the trash of a registry. Its methods may be called concurrently, by any number of processes
// on one database.
type Can struct {
	db      *db.DB
	catalog *catalog.Catalog
	opt     Options
}

// New makes the trash of the catalog's registry.
func New(o Options) *Can {
	o.Background = cmp.Or(o.Background, o.Catalog.DB())
	return &Can{db: o.Catalog.DB(), catalog: o.Catalog, opt: o}
}

// keyKind is the first part of an id in the trash.
type keyKind string

const (
	repositoryKey keyKind = "repository"
	namespaceKey  keyKind = "namespace"
)

// key identifies something in the trash by the id of its row.
type key struct {
	kind keyKind
	id   int64
}

func (k key) String() string { return fmt.Sprintf("%s-%d", k.kind, k.id) }

// parseKey is the inverse of String. Error: NAME_UNKNOWN.
func parseKey(id string) (key, error) {
	kind, number, _ := strings.Cut(id, "-")
	n, err := strconv.ParseInt(number, 10, 64)
	k := key{keyKind(kind), n}
	if err != nil || k.String() != id || k.kind != repositoryKey && k.kind != namespaceKey {
		return k, Unknown(id)
	}
	return k, nil
}

// Unknown returns the client's error for an id that isn't in the trash.
func Unknown(id string) error {
	return oci.Errorf(oci.NameUnknown, "%.80s is not in the trash: it was restored or purged, or was never there", id).
		WithDetail(map[string]string{"id": id})
}

// conflict returns the client's error for something that can't be restored as it is.
func conflict(name, why string) error {
	return oci.Errorf(oci.Denied, "%s can't be restored: %s", name, why).WithStatus(http.StatusConflict).
		WithDetail(map[string]any{"conflicts": []Conflict{{Name: name, Why: why}}})
}
