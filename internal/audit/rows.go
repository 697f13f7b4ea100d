package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/purser-registry/purser/internal/db"
)

// insertEntries is the SQL statement that inserts entries from arrays, one array per
// column. It skips an entry whose (time, id) exists already, so that a repeated attempt to
// write a batch doesn't fail on the entries that the first attempt wrote. (COPY can't skip
// rows, and is no faster for so few.)
const insertEntries = `
	INSERT INTO auditlog (id, time, kind, actor, address, user_agent, request_id,
		namespace, namespace_id, repository, repository_id, tag, digest, policy, run, detail, counted_by, port, redis_seq, pulls, first_time, later)
	SELECT COALESCE(id, nextval('auditlog_id_seq')), COALESCE(time, now()), kind,
		NULLIF(actor, ''), NULLIF(address, ''), NULLIF(user_agent, ''), NULLIF(request_id, ''),
		NULLIF(namespace, ''), (SELECT r.top_level_namespace_id FROM repositories r WHERE r.id = e.repository_id /* whatever its deleted_at */), NULLIF(repository, ''), repository_id, NULLIF(tag, ''), digest,
		policy, run, NULLIF(detail, '')::jsonb, NULLIF(counted_by, ''), NULLIF(port, 0), NULLIF(redis_seq, 0), pulls, first_time, later
	FROM unnest(@ids::bigint[], @times::timestamptz[], @kinds::text[], @actors::text[], @addresses::text[], @agents::text[], @requests::text[],
		@namespaces::text[], @repositories::text[], @repository_ids::bigint[], @tags::text[], @digests::bytea[], @policies::uuid[], @runs::uuid[],
		@details::text[], @counted_by::text[], @ports::integer[], @redis_seqs::bigint[], @pulls::integer[], @first_times::timestamptz[], @later::bytea[])
		AS e (id, time, kind, actor, address, user_agent, request_id,
			namespace, repository, repository_id, tag, digest, policy, run, detail, counted_by, port, redis_seq, pulls, first_time, later)
	ON CONFLICT (time, id) DO NOTHING`

// errUnfit says that an entry can never be written, whatever state the database is in,
// because its detail has no JSON form.
var errUnfit = errors.New("its detail can't be written as JSON")

// arguments returns the arrays for insertEntries. Empty fields of entries are filled from
// the source `s`. It returns errUnfit if an entry's detail can't be written as JSON.
func arguments(s Source, entries []Entry) (db.Args, error) {
	n := len(entries)
	var (
		ids, repositories                             = make([]pgtype.Int8, n), make([]pgtype.Int8, n)
		seqs                                          = make([]int64, n)
		times, firsts                                 = make([]pgtype.Timestamptz, n), make([]pgtype.Timestamptz, n)
		kind, actor, address, agent, request          = make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n)
		namespace, repository, tag, detail, countedBy = make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n)
		digests, later                                = make([][]byte, n), make([][]byte, n)
		policies, runs                                = make([]pgtype.UUID, n), make([]pgtype.UUID, n)
		ports, pulls                                  = make([]int, n), make([]int, n)
	)
	for i, e := range entries {
		e = e.from(s)
		text, err := detailText(e.Detail)
		if err != nil {
			return nil, fmt.Errorf("entry %s of the audit log: %w: %w", e.Kind, errUnfit, err)
		}
		e.setNamespace()
		ids[i] = pgtype.Int8{Int64: e.ID, Valid: e.ID != 0}
		times[i] = pgtype.Timestamptz{Time: e.Time, Valid: !e.Time.IsZero()}
		kind[i], actor[i], address[i], agent[i], request[i] =
			clean(string(e.Kind)), clean(e.Actor), clean(e.Address), clean(e.UserAgent), clean(e.RequestID)
		namespace[i], repository[i], tag[i], detail[i], countedBy[i] =
			clean(e.Namespace), clean(e.Repository), clean(e.Tag), text, e.CountedBy
		repositories[i] = pgtype.Int8{Int64: e.RepositoryID, Valid: e.RepositoryID != 0}
		if !e.Digest.IsZero() {
			digests[i] = e.Digest.Bytes()
		}
		ports[i], seqs[i], pulls[i] = e.Port, e.RedisSeq, e.pulls()
		firsts[i], later[i] = pgtype.Timestamptz{Time: e.FirstTime, Valid: !e.FirstTime.IsZero()}, e.later
		policies[i], runs[i] = nullable(e.Policy), nullable(e.Run)
	}
	return db.Args{
		"ids": ids, "times": times, "kinds": kind, "actors": actor, "addresses": address, "agents": agent, "requests": request,
		"namespaces": namespace, "repositories": repository, "repository_ids": repositories, "tags": tag, "digests": digests,
		"policies": policies, "runs": runs, "details": detail, "counted_by": countedBy, "ports": ports, "redis_seqs": seqs,
		"pulls": pulls, "first_times": firsts, "later": later,
	}, nil
}

func nullable(id uuid.UUID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: id != uuid.Nil} }

// maxText bounds the length of each text in an entry, in bytes.
const maxText = 1024

// clean makes a client's text acceptable for PostgreSQL and its indexes: it cuts the text
// to maxText bytes and replaces invalid UTF-8 and NUL characters by "?".
func clean(s string) string {
	s = strings.ToValidUTF8(s[:min(len(s), maxText)], "?")
	return strings.ReplaceAll(s, "\x00", "?")
}

// detailText returns an entry's detail as JSON text that PostgreSQL's type jsonb accepts.
// jsonb accepts neither the NUL character nor unpaired surrogates, which JSON writes as \u
// escapes, so detailText replaces both.
func detailText(detail any) (string, error) {
	if detail == nil {
		return "", nil
	}
	b, err := json.Marshal(detail)
	if err != nil {
		return "", err
	}
	if !bytes.Contains(b, []byte(`\u`)) {
		return string(b), nil
	}
	var v any
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return "", err
	}
	b, err = json.Marshal(withoutZero(v))
	return string(b), err
}

func withoutZero(v any) any {
	switch v := v.(type) {
	case string:
		return strings.ReplaceAll(v, "\x00", "?")
	case []any:
		for i := range v {
			v[i] = withoutZero(v[i])
		}
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[strings.ReplaceAll(k, "\x00", "?")] = withoutZero(e)
		}
		return out
	}
	return v
}
