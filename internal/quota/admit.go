package quota

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/purser-registry/purser/internal/oci"
)

// The functions in this file look, without a lock, whether a change would be refused because of
// a namespace's quota. They save clients from sending bytes in vain, and PostgreSQL's log from an
// error for each refusal. Triggers decide: a change that was admitted may be refused after all,
// with the same answer.

const (
	// stateFresh is how long a process may use what it has read of a quota, while the
	// namespace uses less than nearPercent percent of each of its limits.
	stateFresh  = time.Second
	nearPercent = 90
	// noneFresh is how long a process may assume that a namespace has no quota.
	noneFresh = 5 * time.Second
	// maxNamespaces limits the namespaces of which a process remembers the quota.
	maxNamespaces = 10_000
	// refusalsNoted is how often a process writes down at most that something was refused
	// because of a quota.
	refusalsNoted = time.Minute
)

// codeExceeded is the SQLSTATE of the error that the function purser_quota_check raises.
const codeExceeded = "PQ001"

// state is what this process has read of the quota of a namespace.
type state struct {
	read        time.Time
	namespaceID int64 // 0: the namespace has no quota, or doesn't exist
	hard        Usage // the hard limits; 0: none
	used        Usage // with the bytes of unfinished uploads
	unfinished  int64
}

// fits says whether a namespace could use `more` in addition and still be below `percent` of its
// hard limits.
func (q state) fits(more Usage, percent int) bool {
	for _, what := range things {
		n, most := more.of(what), q.hard.of(what)
		if n > 0 && most > 0 && oci.AddSizes(max(q.used.of(what), 0), n) > part(most, percent) {
			return false
		}
	}
	return true
}

// cache remembers quotas by the names of their namespaces, and when it was last noted that
// something was refused.
type cache struct {
	sync.Mutex
	states map[string]state
	noted  map[string]time.Time // by namespace and thing
}

func (m *cache) get(namespace string) (state, bool) {
	m.Lock()
	defer m.Unlock()
	q, ok := m.states[namespace]
	fresh := stateFresh
	if q.namespaceID == 0 {
		fresh = noneFresh
	}
	return q, ok && time.Since(q.read) < fresh
}

func (m *cache) put(namespace string, q state) {
	m.Lock()
	defer m.Unlock()
	if m.states == nil || len(m.states) >= maxNamespaces {
		m.states = make(map[string]state)
	}
	m.states[namespace] = q
}

func (m *cache) forget(namespace string) {
	m.Lock()
	defer m.Unlock()
	delete(m.states, namespace)
}

// mayNote says whether it is time to note that a namespace was refused something.
func (m *cache) mayNote(namespace, what string) bool {
	m.Lock()
	defer m.Unlock()
	key := namespace + "/" + what
	if time.Since(m.noted[key]) < refusalsNoted {
		return false
	}
	if m.noted == nil || len(m.noted) >= maxNamespaces {
		m.noted = make(map[string]time.Time)
	}
	m.noted[key] = time.Now()
	return true
}

// stateOf returns the hard limits of the namespace of a repository and what it uses, with its
// unfinished uploads except for `own`. Numbers from memory, which have the upload `own` too, are
// used only if `more` still fits comfortably.
func (k *Keeper) stateOf(ctx context.Context, namespace string, own uuid.UUID, more Usage) (state, error) {
	if q, ok := k.cache.get(namespace); ok && q.fits(more, nearPercent) {
		return q, nil
	}
	q := state{read: time.Now()}
	var others int64
	err := k.db.Pool.QueryRow(ctx, `
		SELECT q.namespace_id, q.bytes + s.bytes, q.repositories + s.repositories, q.tags + s.tags,
			COALESCE(purser_quota_part(q.bytes_limit, q.hard_percent), 0),
			COALESCE(purser_quota_part(q.repositories_limit, q.hard_percent), 0),
			COALESCE(purser_quota_part(q.tags_limit, q.hard_percent), 0),
			purser_quota_uploads(n.id, $2), purser_quota_uploads(n.id, $3)
		FROM live_namespaces n JOIN namespacequotas q ON q.namespace_id = n.id
		CROSS JOIN LATERAL purser_quota_slots(n.id) s
		WHERE n.name = $1 AND q.counted`, namespace, uuid.Nil, own).
		Scan(&q.namespaceID, &q.used.Bytes, &q.used.Repositories, &q.used.Tags, &q.hard.Bytes, &q.hard.Repositories, &q.hard.Tags, &q.unfinished, &others)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return q, fmt.Errorf("reading the quota of %s: %w", namespace, err)
	}
	committed := q.used.Bytes
	q.used.Bytes = oci.AddSizes(committed, q.unfinished)
	k.cache.put(namespace, q)
	q.unfinished, q.used.Bytes = others, oci.AddSizes(committed, others)
	return q, nil
}

// IsWithout says whether this process knows that a namespace has no quota. It may have got one a few
// seconds ago.
func (k *Keeper) IsWithout(namespace string) bool {
	q, ok := k.cache.get(namespace)
	return ok && q.namespaceID == 0
}

// AdmitBlob returns an error if a blob of `size` bytes can't be pushed to a repository because of
// its namespace's quota. `d` is the blob's digest, or zero if it isn't known yet. A blob that the
// namespace has already needs nothing, unless more bytes come than it has; AdmitBlob finds that
// out only by the digest. `upload` is the upload that the blob arrives by, whose bytes `size` has
// already, or uuid.Nil. Error: DENIED with status 409.
func (k *Keeper) AdmitBlob(ctx context.Context, path string, upload uuid.UUID, d oci.Digest, size int64) error {
	if size <= 0 {
		return nil
	}
	namespace, _, _ := strings.Cut(path, "/")
	q, err := k.stateOf(ctx, namespace, upload, Usage{Bytes: size})
	if err != nil || q.fits(Usage{Bytes: size}, 100) {
		return err
	}
	if !d.IsZero() {
		var linked bool
		err := k.db.Pool.QueryRow(ctx, `
			SELECT EXISTS (SELECT FROM repository_blobs WHERE blob_digest = $1 AND top_level_namespace_id = $2)
				AND EXISTS (SELECT FROM blobs WHERE digest = $1 AND size >= $3)`,
			d.Bytes(), q.namespaceID, size).Scan(&linked)
		if err != nil {
			return fmt.Errorf("looking for blob %s in namespace %s: %w", d, namespace, err)
		}
		if linked {
			return nil
		}
	}
	return k.overQuota(ctx, namespace, excess{"bytes", q.hard.Bytes, q.used.Bytes, size, q.unfinished})
}

// AdmitTags returns an error if the tags can't be made because of the quota of the repository's
// namespace. Error: DENIED with status 409.
func (k *Keeper) AdmitTags(ctx context.Context, path string, tags []string) error {
	if len(tags) == 0 {
		return nil
	}
	namespace, _, _ := strings.Cut(path, "/")
	more := Usage{Tags: int64(len(tags))}
	q, err := k.stateOf(ctx, namespace, uuid.Nil, more)
	if err != nil || q.fits(more, 100) {
		return err
	}
	// Only tags that don't exist yet need anything.
	err = k.db.Pool.QueryRow(ctx, `
		SELECT count(*) FROM unnest($2::text[]) AS want (name)
		WHERE NOT EXISTS (
			SELECT FROM live_repositories r CROSS JOIN LATERAL (
				SELECT FROM tags t
				WHERE t.top_level_namespace_id = r.top_level_namespace_id AND t.repository_id = r.id AND t.name = want.name
				OFFSET 0) t
			WHERE r.path = $1)`, path, tags).Scan(&more.Tags)
	if err != nil {
		return fmt.Errorf("looking for tags of %s: %w", path, err)
	}
	if q.fits(more, 100) {
		return nil
	}
	return k.overQuota(ctx, namespace, excess{"tags", q.hard.Tags, q.used.Tags, more.Tags, 0})
}

// AdmitRepository returns an error if a repository can't be made because of its namespace's
// quota. The repository doesn't exist. Error: DENIED with status 409.
func (k *Keeper) AdmitRepository(ctx context.Context, path string) error {
	namespace, _, _ := strings.Cut(path, "/")
	more := Usage{Repositories: 1}
	q, err := k.stateOf(ctx, namespace, uuid.Nil, more)
	if err != nil || q.fits(more, 100) {
		return err
	}
	return k.overQuota(ctx, namespace, excess{"repositories", q.hard.Repositories, q.used.Repositories, 1, 0})
}

// excess says what a hard limit has refused: `needed` in addition to what is used.
type excess struct {
	Quota  string `json:"quota"` // bytes, repositories or tags
	Limit  int64  `json:"limit"`
	Used   int64  `json:"used"`
	Needed int64  `json:"needed"`
	// Unfinished is how much of Used is in unfinished uploads.
	Unfinished int64 `json:"unfinished,omitempty"`
}

// Refusal turns the error of a trigger that has refused a change of the repository or
// namespace `path` into the client's error. Other errors stay as they are.
func (k *Keeper) Refusal(ctx context.Context, path string, err error) error {
	failure, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || failure.Code != codeExceeded {
		return err
	}
	var e excess
	if err := json.Unmarshal([]byte(failure.Detail), &e); err != nil {
		return fmt.Errorf("reading what exceeds the quota of %s: %w", path, err)
	}
	namespace, _, _ := strings.Cut(path, "/")
	k.cache.forget(namespace)
	return k.overQuota(ctx, namespace, e)
}

// overQuota returns the client's error for what exceeds a hard limit, and writes down that it was
// refused, for the notice. The status is 409, since 403 would make clients ask for a password.
func (k *Keeper) overQuota(ctx context.Context, namespace string, e excess) error {
	if k.cache.mayNote(namespace, e.Quota) {
		_, err := k.db.Pool.Exec(ctx, `
			UPDATE namespacequotalimits l SET refused = refused || jsonb_build_object($2::text, now())
			FROM live_namespaces n WHERE n.name = $1 AND l.namespace_id = n.id AND l.kind = 'Reject'`, namespace, e.Quota)
		if err != nil {
			k.log.WarnContext(ctx, "couldn't write down that a quota has refused a change", "namespace", namespace, "error", err)
		}
	}
	most, used, needed := fmt.Sprint(e.Limit, " ", e.Quota), fmt.Sprint(e.Used), fmt.Sprint(e.Needed)
	if e.Quota == "bytes" {
		most, used, needed = FormatBytes(e.Limit)+" of blobs", FormatBytes(e.Used), FormatBytes(e.Needed)
		if e.Unfinished > 0 {
			used += " (" + FormatBytes(e.Unfinished) + " of it in unfinished uploads)"
		}
	}
	return oci.Errorf(oci.Denied, "namespace %s may have %s, has %s, and this needs %s more: delete something first%s, or ask for a higher quota",
		namespace, most, used, needed, k.roomComes(ctx, e.Quota)).WithStatus(http.StatusConflict).WithDetail(e)
}

// roomComes says when what is deleted doesn't count any more, if that isn't at once.
func (k *Keeper) roomComes(ctx context.Context, quota string) string {
	trash := ""
	if k.opt.TrashKeep > 0 {
		trash = formatDelay(k.opt.TrashKeep)
	}
	switch {
	case quota != "bytes" && trash == "":
		return ""
	case quota == "repositories":
		return " (a deleted repository counts until it is purged from the trash, for " + trash + ")"
	case quota == "tags":
		return " (those of a deleted repository count until it is purged from the trash, for " + trash + ")"
	}
	var deleted, pruned time.Duration
	err := k.db.Pool.QueryRow(ctx, `
		SELECT tag + blob, prune + blob FROM (
			SELECT COALESCE(max(value) FILTER (WHERE event = 'tag_delete'), '1 day') AS tag,
				COALESCE(max(value) FILTER (WHERE event = 'tag_prune'), '1 day') AS prune,
				COALESCE(max(value) FILTER (WHERE event IN ('layer_delete', 'manifest_delete')), '1 day') AS blob
			FROM gc_review_after_defaults) d`).Scan(&deleted, &pruned)
	if err != nil {
		k.log.WarnContext(ctx, "couldn't read when garbage collection makes room", "error", err)
		return " (it counts until garbage collection has deleted it)"
	}
	times := []string{"it counts for about " + formatDelay(deleted) + " more"}
	if pruned != deleted {
		times = append(times, "for "+formatDelay(pruned)+" if a policy deletes it")
	}
	if trash != "" { // the rows of a purged repository are deleted without further delay
		times = append(times, "for "+trash+" if its repository is deleted")
	}
	switch n := len(times); n {
	case 1:
	case 2:
		times = []string{times[0] + ", and " + times[1]}
	default:
		times[n-1] = "and " + times[n-1]
	}
	return " (" + strings.Join(times, ", ") + ")"
}

// formatDelay formats how long something takes, roughly.
func formatDelay(d time.Duration) string {
	switch {
	case d < 2*time.Minute:
		return "two minutes"
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0f minutes", d.Minutes())
	case d < 48*time.Hour:
		return fmt.Sprintf("%.0f hours", d.Hours())
	}
	return fmt.Sprintf("%.0f days", d.Hours()/24)
}

// FormatBytes formats a number of bytes as Quay formats quotas, for example "10.0 GiB".
func FormatBytes(n int64) string {
	units := []string{"Byte", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	v, i := float64(n), 0
	for i+1 < len(units) && (v >= 1024 || v <= -1024) {
		v, i = v/1024, i+1
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}
