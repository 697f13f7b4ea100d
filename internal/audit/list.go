package audit

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// Filter selects the entries that match all its fields. A field with its zero value
// matches every entry.
type Filter struct {
	From, To time.Time // To is exclusive
	Kinds    []Kind    // any of these
	Actor    string
	// Namespace includes all its repositories.
	Namespace string
	// NamespaceID, with Namespace or Repository, leaves out the entries of other namespaces that
	// have had the name before. Born is when the namespace was made, of which no entry is older.
	NamespaceID int64
	Born        time.Time
	// Among, unless it is nil, leaves out the entries of all namespaces but these, and those of no
	// namespace. It is for a filter without Namespace, Repository and RepositoryID.
	Among []NamespaceIs
	// Repository is a repository's path. It also matches the entries of a deleted
	// repository that had the same path.
	Repository string
	// RepositoryID matches the entries of one repository, and not those of others that have had
	// the path before. Entries lose the id when the repository is deleted.
	RepositoryID int64
	Tag          string
	Digest       oci.Digest
	Policy, Run  uuid.UUID
	// Address is that of the client: one, or all of a network.
	Address netip.Prefix
}

// ErrCursor is returned for a cursor that List can't have issued.
var ErrCursor = errors.New("the cursor is not valid: begin again without one")

// Log reads the audit log. It also writes entries of events that change no data, such as
// the start of a check.
type Log struct {
	db *db.DB
}

// New makes a log on a database.
func New(d *db.DB) *Log { return &Log{d} }

// Append writes entries for events that don't change the database, in a transaction of
// their own.
func (l *Log) Append(ctx context.Context, entries ...Entry) error {
	return Append(ctx, l.db.Pool, entries...)
}

// Bounds of a page of the listing.
const (
	DefaultPage = 100
	shortPage   = 10
	MaxPage     = 1000
	// scanned is how many entries List examines at most for one page of the listing, if no
	// index serves the filter.
	scanned = 20_000
)

// List returns one page of the listing of entries that the filter `f` selects: up to `n`
// entries, newest first, after `cursor`. An empty cursor begins with the newest entry.
// `next` is the cursor of the following page, or "" if there is none. n is by default
// DefaultPage and at most MaxPage. A page whose entries are long has fewer.
//
// A cursor encodes the time and id of the last entry examined. The listing is sorted by
// these, so entries that are written between two calls don't shift the pages: no entry is
// listed twice, and no entry that existed when its page was read is left out.
//
// List examines a bounded number of entries per page. If no index serves the filter, a page
// may have fewer than n entries, or none, although there is a next page. There are indexes
// for time, run, namespace, repository, and all kinds but pulls. List returns ErrCursor if
// it can't have issued the cursor.
func (l *Log) List(ctx context.Context, f Filter, cursor string, n int) (entries []Entry, next string, err error) {
	if n <= 0 {
		n = DefaultPage
	}
	return l.list(ctx, f, cursor, min(n, MaxPage), scanned)
}

func (l *Log) list(ctx context.Context, f Filter, cursor string, n, bound int) ([]Entry, string, error) {
	after, err := parseCursor(cursor)
	if err != nil {
		return nil, "", err
	}
	limit := shortPage + 1 // three statements, whatever n is: each is prepared once
	switch {
	case n > DefaultPage:
		limit = MaxPage + 1
	case n > shortPage:
		limit = DefaultPage + 1
	}
	sql, args := f.query(after, limit, bound)
	rows, err := l.db.Pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, "", fmt.Errorf("listing the audit log: %w", err)
	}
	entries, next, err := page(rows, n)
	if err != nil {
		return nil, "", fmt.Errorf("listing the audit log: %w", err)
	}
	return entries, next, nil
}

// page returns up to `n` of the selected entries in `rows`, and the cursor of the next page of the
// listing. The page ends earlier with db.PageBytes. The cursor is "" if rows has all entries that
// are left.
func page(rows pgx.Rows, n int) (entries []Entry, next string, err error) {
	defer rows.Close()
	entries = []Entry{}
	for bytes := 0; rows.Next(); {
		for _, value := range rows.RawValues() {
			bytes += len(value)
		}
		r, err := scanRow(rows)
		if err != nil {
			return nil, "", err
		}
		if r.selected && (len(entries) == n || len(entries) > 0 && bytes > db.PageBytes) {
			return entries, next, nil
		}
		next = place{r.Time, r.ID}.String()
		if r.selected {
			entries = append(entries, r.Entry)
		}
		if r.last {
			return entries, next, nil
		}
	}
	return entries, "", rows.Err()
}

// row is an entry that the listing's query returned. `selected` says that the filter
// selects the entry. `last` marks the last entry that the query may examine for a page; the
// query returns this entry even if the filter doesn't select it, since the next page's
// cursor is made from it.
type row struct {
	Entry
	selected, last bool
}

func scanRow(r pgx.CollectableRow) (out row, err error) {
	e := &out.Entry
	var digest, detail []byte
	var first *time.Time
	err = r.Scan(&e.ID, &e.Time, &e.Kind, &e.Actor, &e.Address, &e.UserAgent, &e.RequestID, &e.Namespace,
		&e.Repository, &e.RepositoryID, &e.Tag, &digest, &e.Policy, &e.Run, &detail, &e.CountedBy,
		&e.Pulls, &first, &out.selected, &out.last)
	if err != nil {
		return out, err
	}
	if digest != nil {
		if e.Digest, err = oci.DigestFromBytes(digest); err != nil {
			return out, err
		}
	}
	e.Time, e.Detail = e.Time.UTC(), raw(detail)
	if first != nil {
		e.FirstTime = first.UTC()
	}
	if e.Kind != PullRepo {
		e.Pulls = 0
	}
	return out, nil
}

// maxKinds is the largest number of kinds for which a query uses one index scan per kind. If
// a filter has more kinds, the query checks the kind of each entry that it reads.
const maxKinds = 8

// entryColumns are the columns of an entry, in the order in which scanRow takes them.
const entryColumns = `id, time, kind, COALESCE(actor, ''), COALESCE(address, ''), COALESCE(user_agent, ''),
		COALESCE(request_id, ''), COALESCE(namespace, ''), COALESCE(repository, ''), COALESCE(repository_id, 0),
		COALESCE(tag, ''), digest, COALESCE(policy, '00000000-0000-0000-0000-000000000000'),
		COALESCE(run, '00000000-0000-0000-0000-000000000000'), detail, COALESCE(counted_by, ''), pulls, first_time`

// query returns the SELECT statement, with its arguments, that finds up to `limit` entries
// after the place `after` in the listing (nil: from the newest). Its index scans return
// entries in the listing's order. If the filter has conditions that no index serves, each
// index scan returns up to `bound` entries, and the statement checks these conditions on
// them; otherwise each returns up to `limit` entries. No step sorts or reads everything
// first, so PostgreSQL stops at the last entry of the page. The limits are literals in the
// SQL text, so that the planner knows how few rows are wanted.
func (f Filter) query(after *place, limit, bound int) (sql string, args []any) {
	arg := func(v any) string {
		args = append(args, v)
		return fmt.Sprintf("$%d", len(args))
	}
	sources, all, rest := f.conditions(after, arg)
	if f.readsAmong() {
		return f.among(limit, bound, all, rest, arg), args
	}
	most := limit
	if len(rest) > 0 {
		most = bound
	}
	for i, source := range sources { // each is sorted by its index, so that they are merged and not sorted again
		where := strings.Join(append([]string{source}, all...), " AND ")
		sources[i] = fmt.Sprintf("(SELECT * FROM auditlog WHERE %s ORDER BY time DESC, id DESC LIMIT %d)", where, most)
	}
	from := "(" + strings.Join(sources, " UNION ALL ") + ")"
	if len(rest) == 0 {
		return fmt.Sprintf(`SELECT %s, true, false FROM %s a ORDER BY time DESC, id DESC LIMIT %d`,
			entryColumns, from, limit), args
	}
	return fmt.Sprintf(`
		SELECT %s, selected, nth = %d FROM (
			SELECT *, COALESCE(%s, false) AS selected, row_number() OVER (ORDER BY time DESC, id DESC) AS nth
			FROM %s a ORDER BY time DESC, id DESC LIMIT %d) scanned
		WHERE selected OR nth = %d
		ORDER BY time DESC, id DESC LIMIT %d`,
		entryColumns, bound, strings.Join(rest, " AND "), from, bound, bound, limit), args
}

// conditions translates the filter to SQL. Each element of `sources` is the condition of
// one index scan, and `all` are further ones of each of these; `rest` are the conditions to check on
// each entry that these scans return. `arg` stores a value as the statement's next argument and
// returns its placeholder, such as "$1".
func (f Filter) conditions(after *place, arg func(any) string) (sources, all, rest []string) {
	if after != nil { // partitions are pruned by the first of the two conditions
		moment := arg(after.time)
		all = append(all, "time <= "+moment, fmt.Sprintf("(time, id) < (%s, %s)", moment, arg(after.id)))
	}
	if !f.From.IsZero() {
		all = append(all, "time >= "+arg(f.From))
	}
	if !f.To.IsZero() {
		all = append(all, "time < "+arg(f.To))
	}
	namespace := f.Namespace
	if namespace == "" {
		namespace, _, _ = strings.Cut(f.Repository, "/")
	}
	if f.NamespaceID != 0 {
		all = append(all, "namespace_id = "+arg(f.NamespaceID))
		if !f.Born.IsZero() {
			all = append(all, "time >= "+arg(f.Born.Add(-clocks)))
		}
	}
	kinds := slices.Compact(slices.Sorted(slices.Values(f.Kinds)))
	byKind := false
	switch {
	case f.Run != uuid.Nil:
		sources = []string{"run = " + arg(f.Run)}
		if f.RepositoryID != 0 {
			rest = append(rest, "repository_id = "+arg(f.RepositoryID))
		}
		if namespace != "" {
			rest = append(rest, "namespace = "+arg(namespace))
		}
		if f.Among != nil {
			rest = append(rest, "EXISTS (SELECT FROM "+f.namespaces(arg)+" WHERE "+ofNamespace+")")
		}
	case f.Among != nil: // readsAmong
	case f.RepositoryID != 0:
		sources = []string{"repository_id = " + arg(f.RepositoryID)}
		if f.Namespace != "" {
			rest = append(rest, "namespace = "+arg(f.Namespace))
		}
	case namespace != "":
		sources = []string{"namespace = " + arg(namespace)}
	case len(kinds) > 0 && len(kinds) <= maxKinds && !slices.Contains(kinds, PullRepo):
		byKind = true
		for _, k := range kinds { // that index leaves pulls out
			sources = append(sources, "kind <> 'pull_repo' AND kind = "+arg(string(k)))
		}
	default:
		sources = []string{"true"}
	}
	if len(kinds) > 0 && !byKind {
		rest = append(rest, "kind = ANY ("+arg(kinds)+"::text[])")
	}
	return sources, all, append(rest, f.rest(arg)...)
}

// rest returns the SQL conditions of those fields of the filter that no index serves.
func (f Filter) rest(arg func(any) string) (list []string) {
	equal := func(column string, given bool, value any) {
		if given {
			list = append(list, column+" = "+arg(value))
		}
	}
	equal("actor", f.Actor != "", f.Actor)
	equal("repository", f.Repository != "", f.Repository)
	equal("tag", f.Tag != "", f.Tag)
	equal("digest", !f.Digest.IsZero(), f.Digest.Bytes())
	equal("policy", f.Policy != uuid.Nil, f.Policy)
	switch {
	case !f.Address.IsValid():
	case f.Address.IsSingleIP():
		equal("address", true, f.Address.Addr().String())
	default: // PostgreSQL doesn't read addresses with a zone, which are of no network here
		list = append(list, "CASE WHEN address ~ '^[0-9a-f.:]+$' THEN address::inet <<= "+arg(f.Address.Masked().String())+"::text::inet END")
	}
	return list
}

// place is the position of an entry in the listing, which is sorted by time and id.
type place struct {
	time time.Time
	id   int64
}

// String returns the place as a cursor.
func (p place) String() string {
	b := binary.BigEndian.AppendUint64([]byte{1}, uint64(p.time.UnixMicro()))
	return base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint64(b, uint64(p.id)))
}

func parseCursor(s string) (*place, error) {
	if s == "" {
		return nil, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(b) != 17 || b[0] != 1 {
		return nil, ErrCursor
	}
	return &place{time.UnixMicro(int64(binary.BigEndian.Uint64(b[1:]))), int64(binary.BigEndian.Uint64(b[9:]))}, nil
}

// Export writes the entries that the filter `f` selects to `w`, newest first, and returns how many
// it wrote. `form` makes what writes an entry: Lines or CSV. Export writes one page of the listing at
// a time, so it needs a bounded amount of memory and keeps no transaction open.
func (l *Log) Export(ctx context.Context, w io.Writer, f Filter, form Form) (n int64, err error) {
	out := bufio.NewWriter(w)
	write, err := form(out)
	if err != nil {
		return 0, fmt.Errorf("exporting the audit log: %w", err)
	}
	for cursor := ""; ; {
		entries, next, err := l.List(ctx, f, cursor, MaxPage)
		if err != nil {
			return n, err
		}
		for _, e := range entries {
			if err := write(e); err != nil {
				return n, fmt.Errorf("exporting the audit log: %w", err)
			}
		}
		if err := out.Flush(); err != nil {
			return n, fmt.Errorf("exporting the audit log: %w", err)
		}
		n += int64(len(entries))
		if cursor = next; cursor == "" {
			return n, nil
		}
	}
}
