// Package browse lists and describes what a registry has, for the management API, the pages and
// the commands: namespaces, repositories, tags, manifests and their sizes. It only reads, and takes
// no locks.
//
//   - What depends on who asks takes a [Viewer], and shows only what the viewer may read. What is
//     hidden from the viewer is answered as if it didn't exist.
//   - A page of a list costs about the same in a large registry as in a small one: its query reads a
//     bounded number of rows, in the order of an index. So a page whose filter no index supports may
//     have fewer items than were asked for, although there is a next page.
//   - A page begins after an item and not at a number, so items that are made or deleted between two
//     requests shift no page.
//   - It reads the database and not the caches of package catalog, so that an operator sees the result
//     of a change at once, whichever process has made it.
//   - What its methods return may be out of date when it arrives. Whoever changes something by it
//     looks again under the locks of package catalog.
package browse

import (
	"strings"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
)

// Browser lists and describes what a registry has. Its methods may be called concurrently.
type Browser struct {
	db         *db.DB
	catalog    *catalog.Catalog
	ranked     int // maxRanked
	references int // maxSizedReferences
}

// New makes a browser of what the catalog keeps.
func New(c *catalog.Catalog) *Browser {
	return &Browser{db: c.DB(), catalog: c, ranked: maxRanked, references: maxSizedReferences}
}

// repository identifies a repository's row.
type repository struct {
	namespace, id int64
}

const (
	// maxScan is the number of names that the query for one page of a list reads if no
	// database index supports the list's filter. The page then has those of these names that
	// the filter selects.
	maxScan = 20_000
	// defaultLinks is the default maximum number of links from repositories to blobs that are read for
	// the exact size of a repository or namespace.
	defaultLinks = 50_000
	// afterNames sorts behind every name of a repository or a tag.
	afterNames = "\x7f"
)

// NameFilter selects the names that meet both conditions. An empty string is no condition.
type NameFilter struct{ Prefix, Contains string }

func (f NameFilter) selects(name string) bool {
	return strings.HasPrefix(name, f.Prefix) && strings.Contains(name, f.Contains)
}

// pick selects one page of a list from `found`, the items that a query has read. Of the items
// for which `selects` is true, it leaves out the first `skip` and returns up to n of the
// others as `page`. `bound` is the LIMIT of the query: if len(found) equals it, the database
// may have further items. `next` is the item after which the query for the next page must
// begin, nil if there is no next page. If `selects` is false for most items, the page may have
// fewer than n items, even none, although there is a next page.
func pick[T any](found []T, selects func(T) bool, skip, n, bound int) (page []T, next *T) {
	for i := range found {
		switch {
		case !selects(found[i]):
		case skip > 0:
			skip--
		case len(page) == n:
			return page, &found[i-1]
		default:
			page = append(page, found[i])
		}
	}
	if len(found) == bound {
		next = &found[len(found)-1]
	}
	return page, next
}

// bound returns the LIMIT of the query for a page of n items that leaves out the first `skip`
// items. If `all` is true, the list's filter selects every row that the query reads, so
// skip+n+1 rows suffice. Otherwise the query reads at least maxScan rows.
func bound(skip, n int, all bool) int {
	if all {
		return skip + n + 1
	}
	return max(maxScan, skip+n+1)
}
