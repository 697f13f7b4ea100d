package hold

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
)

// A digest that a reporter found by a name, such as that of a tag, is stored with the name. If a
// later report says of this name that it couldn't be resolved, the digests that the reporter held
// under it stay held: a registry that refuses to tell, or a tag that is gone, must not end them.
//
// The names of a reporter may be longer together than any report: each difference may add some. So
// they are bounded, and a report reads only those that it touches, one digest's after the other.

const (
	maxNames = 100  // of an item; AnyName stands for more
	maxName  = 1024 // bytes
	// namesBytes is how many bytes the names of a digest may have on average, as in a report.
	namesBytes = 512
	// maxFirst is how many unresolved images a reporter shows.
	maxFirst = 20
)

func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("a name is empty")
	case len(name) > maxName:
		return fmt.Errorf("a name has more than %d bytes", maxName)
	case strings.ContainsAny(name, "\n\x00") || !utf8.ValidString(name):
		return errors.New("a name is no text of one line")
	}
	return nil
}

// checkNames returns an item's names in order, each once.
func checkNames(names []string) ([]string, error) {
	for _, name := range names {
		if err := checkName(name); err != nil {
			return nil, err
		}
	}
	return merge(names, nil), nil
}

// merge returns the names of both lists in order, each once, or AnyName if there are too many.
func merge(a, b []string) []string {
	names := slices.Concat(a, b)
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > maxNames || slices.Contains(names, AnyName) {
		return []string{AnyName}
	}
	return names
}

// compact joins the items of each digest. The items are in the order of their digests.
func compact(items []Item) []Item {
	out := items[:0]
	for _, item := range items {
		if last := len(out) - 1; last >= 0 && out[last].Digest == item.Digest {
			out[last].Names = merge(out[last].Names, item.Names)
			continue
		}
		out = append(out, item)
	}
	return out
}

// names is a set of unresolved names, each by itself.
type names map[string]string

func (t *reporting) unresolved() names {
	set := make(names, len(t.report.Unresolved))
	for _, u := range t.report.Unresolved {
		set[u.Name] = u.Name
	}
	return set
}

// any reports whether one of a digest's names is unresolved.
func (n names) any(of []string) bool {
	return slices.ContainsFunc(of, func(name string) bool { return n[name] != "" || name == AnyName && len(n) > 0 })
}

// stay returns the names of a digest that was held under the names `old` and is reported under
// `now`: those of the report, and the old ones that are unresolved. A difference keeps all.
func (n names) stay(old, now []string, all bool) []string {
	if all {
		return merge(now, old)
	}
	var stays []string
	for _, name := range old {
		if n.any([]string{name}) {
			stays = append(stays, cmp.Or(n[name], AnyName)) // of which the report has the bytes already
		}
	}
	return merge(now, stays)
}

// bytesOf returns how many bytes names have.
func bytesOf(names []string) (n int) {
	for _, name := range names {
		n += len(name)
	}
	return n
}

// mostNames is how many bytes the names of a reporter may have.
func (h *Holds) mostNames() int { return h.opt.MaxDigests * namesBytes }

func (h *Holds) tooLongNames(n int) error {
	return oci.Errorf(oci.Unsupported, "the names by which the reporter found its digests would have %d bytes or more, of which there may be %d: send the whole list with fewer names, or split the digests between several reporters",
		n, h.mostNames()).WithStatus(http.StatusRequestEntityTooLarge).WithDetail(map[string]int{"most_bytes": h.mostNames()})
}

// meet gives each item of the report the names that it has afterwards, and finds the holds that stay
// for their names. It returns by how many bytes the names that it has changed are longer than before.
func (t *reporting) meet(ctx context.Context, known map[oci.Digest]*stored) (grown int, err error) {
	unresolved, kept := t.unresolved(), 0
	err = t.storedNames(ctx, known, func(s *stored, names []string) error {
		if s.item == nil {
			s.kept = unresolved.any(names)
			return nil
		}
		now := unresolved.stay(names, s.item.Names, !t.report.Full)
		if s.renamed = !slices.Equal(now, names); s.renamed || s.usedBy != s.item.UsedBy { // it will be written
			s.item.Names = now
			kept += bytesOf(now)
			grown += bytesOf(now) - bytesOf(names)
		}
		if kept > t.h.mostNames() {
			return t.h.tooLongNames(kept)
		}
		return nil
	})
	return grown, err
}

// storedNames calls fn for those holds whose names the report touches: those that it lists and, if
// images of a whole list are unresolved, all. Holds that have been left out aren't among them.
func (t *reporting) storedNames(ctx context.Context, known map[oci.Digest]*stored, fn func(s *stored, names []string) error) error {
	read := func(sql string, args ...any) error {
		rows, err := t.tx.Query(ctx, sql, append([]any{t.id}, args...)...)
		if err != nil {
			return err
		}
		var raw []byte
		var names []string
		_, err = pgx.ForEachRow(rows, []any{&raw, &names}, func() error {
			d, err := oci.DigestFromBytes(raw)
			if s := known[d]; err == nil && s != nil {
				err = fn(s, names)
			}
			return err
		})
		return err
	}
	if t.report.readsAllNames() {
		return read("SELECT digest, names FROM holds WHERE reporter_id = $1 AND ends_at IS NULL")
	}
	for digests := range slices.Chunk(t.report.listed(), reportBatch) {
		err := read("SELECT h.digest, h.names FROM unnest($2::bytea[]) AS w (d) JOIN holds h ON h.digest = w.d AND h.reporter_id = $1 AND h.ends_at IS NULL", digests)
		if err != nil {
			return err
		}
	}
	return nil
}

// readsAllNames says whether any hold of the reporter may stay for its names.
func (r *Report) readsAllNames() bool { return r.Full && len(r.Unresolved) > 0 }

// listed returns the digests of the items.
func (r *Report) listed() [][]byte {
	list := make([][]byte, len(r.Items))
	for i, item := range r.Items {
		list[i] = item.Digest.Bytes()
	}
	return list
}

// checkNames returns an error if the report has made the names of the reporter longer than they may
// be. A reporter whose names are longer already may report what doesn't add to them.
func (t *reporting) checkNames(ctx context.Context, c changes) error {
	if c.grown <= 0 {
		return nil
	}
	var n int
	err := t.tx.QueryRow(ctx, "SELECT COALESCE(sum(octet_length(array_to_string(names, ''))), 0) FROM holds WHERE reporter_id = $1", t.id).Scan(&n)
	if err == nil && n > t.h.mostNames() {
		err = t.h.tooLongNames(n)
	}
	return err
}

const (
	// holdMemory is about how many bytes of memory a report takes for each hold that is stored.
	holdMemory = 256
	// nameMemory is the same for each name, in addition to its bytes.
	nameMemory = 24
)

// reserve takes memory from the lease of ctx for what a report reads of its reporter's holds: the
// holds, and the names that a difference keeps. A whole list has the names that stay itself. Neither
// the transaction of the report nor a report that has one of the places may wait for memory, so this
// comes before both. meet bounds the names again.
func (h *Holds) reserve(ctx context.Context, p Place, r Report) error {
	lease := limit.LeaseOf(ctx)
	if lease == nil {
		return nil
	}
	namespace, err := p.namespace(ctx, h.db.Pool, false)
	if err != nil {
		return err
	}
	var id, digests, names int64
	err = h.db.Pool.QueryRow(ctx, "SELECT id, digests FROM holdreporters WHERE namespace_id IS NOT DISTINCT FROM $1 AND name = $2", namespace, p.Reporter).
		Scan(&id, &digests)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err == nil && !r.Full {
		names, err = h.memoryOfNames(ctx, id, r)
	}
	if err != nil {
		return fmt.Errorf("looking how much reporter %s holds: %w", p, err)
	}
	_, err = lease.Take(ctx, digests*holdMemory+names)
	return err
}

// memoryOfNames returns how much memory the stored names of the digests take that a report lists.
func (h *Holds) memoryOfNames(ctx context.Context, reporter int64, r Report) (all int64, err error) {
	for digests := range slices.Chunk(r.listed(), reportBatch) {
		var bytes, names int64
		err := h.db.Pool.QueryRow(ctx, `
			SELECT COALESCE(sum(octet_length(array_to_string(h.names, ''))), 0), COALESCE(sum(cardinality(h.names)), 0)
			FROM unnest($2::bytea[]) AS w (d) JOIN holds h ON h.digest = w.d AND h.reporter_id = $1 AND h.ends_at IS NULL`, reporter, digests).Scan(&bytes, &names)
		if err != nil {
			return 0, err
		}
		all += bytes + names*nameMemory
	}
	return all, nil
}

// firstUnresolved describes the first unresolved images for people.
func firstUnresolved(list []Unresolved) []string {
	first := []string{}
	for _, u := range list[:min(len(list), maxFirst)] {
		text := u.Name
		if u.UsedBy != "" {
			text += ", used by " + u.UsedBy
		}
		if u.Reason != "" {
			text += ": " + u.Reason
		}
		text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", ""), "")
		if len(text) > 2*maxName {
			text = strings.ToValidUTF8(text[:2*maxName], "")
		}
		first = append(first, text)
	}
	return first
}
