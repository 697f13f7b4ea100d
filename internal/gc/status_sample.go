package gc

import (
	"math"

	"github.com/purser-registry/purser/internal/catalog"
)

// sample counts those blobs of a sample that have a property.
type sample struct {
	seen, seenBytes int64 // blobs of the sample
	with, withBytes int64 // those that have the property
	whole           bool  // the sample has all blobs
}

// of returns how many of `all` blobs have the property: exactly if the sample has all of them,
// else an estimate, by the part of the sample's blobs and of its bytes. If the size of all blobs
// isn't known, it estimates the bytes by the part of the blobs, too.
func (s *sample) of(all BlobCount) BlobCount {
	if s.whole {
		return BlobCount{Blobs: catalog.Count{Rows: s.with, Exact: true}, Bytes: s.withBytes}
	}
	scaled := func(part, of, total int64) int64 {
		if of <= 0 {
			return 0
		}
		return int64(min(float64(part)/float64(of)*float64(total), math.MaxInt64/2))
	}
	c := BlobCount{Blobs: catalog.Count{Rows: scaled(s.with, s.seen, all.Blobs.Rows)}}
	if all.Bytes > 0 {
		c.Bytes = scaled(s.withBytes, s.seenBytes, all.Bytes)
	} else {
		c.Bytes = scaled(s.withBytes, s.seen, all.Blobs.Rows)
	}
	return c
}

// rows returns how many rows the queue has.
func (q QueueStatus) rows() catalog.Count {
	return catalog.Count{
		Rows:  q.Due.Rows + q.Waiting.Rows + q.Failed.Rows,
		Exact: q.Due.Exact && q.Waiting.Exact && q.Failed.Exact,
	}
}

// sharedBlobs adds a query that looks how many of the blobs are in several repositories. It reads
// all blobs if there are at most sampleLimit by PostgreSQL's statistics or by counting, else
// those of some random blocks.
func (v *statusQuery) sharedBlobs() *sample {
	s := new(sample)
	v.row([]any{&s.seen, &s.seenBytes, &s.with, &s.withBytes, &s.whole}, `
		WITH known AS MATERIALIZED (
			SELECT (SELECT count(*) FROM (SELECT FROM blobs LIMIT $1 + 1) b) <= $1 AS few,
				(SELECT sum(GREATEST(reltuples, 0)) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
					WHERE i.inhparent = 'blobs'::regclass) AS rows),
		taken AS MATERIALIZED (
			SELECT digest, size FROM blobs WHERE (SELECT few FROM known)
			UNION ALL
			(SELECT digest, size FROM blobs TABLESAMPLE SYSTEM ((SELECT LEAST(100, GREATEST(0.0001, 100.0 * $1 / GREATEST(rows, 1))) FROM known))
				WHERE NOT (SELECT few FROM known) LIMIT 2 * $1)),
		looked AS (
			SELECT b.size, u.several FROM taken b
			CROSS JOIN LATERAL (SELECT count(*) > 1 AS several FROM (
				SELECT FROM repository_blobs r WHERE r.blob_digest = b.digest LIMIT 2) r) u)
		SELECT count(*), COALESCE(sum(size), 0)::bigint, count(*) FILTER (WHERE several),
			COALESCE(sum(size) FILTER (WHERE several), 0)::bigint, (SELECT few FROM known)
		FROM looked`, sampleLimit)
	return s
}

// reclaimableBlobs adds a query that looks which of the first sampleLimit blobs in the review queue
// are unused.
func (v *statusQuery) reclaimableBlobs() *sample {
	s := new(sample)
	v.row([]any{&s.seen, &s.with, &s.withBytes, &s.whole}, `
		WITH taken AS MATERIALIZED (SELECT digest FROM gc_blob_review_queue LIMIT $1 + 1),
		looked AS (
			SELECT b.size, NOT l.found AND NOT c.found AS unused FROM taken q
			CROSS JOIN LATERAL (SELECT size FROM blobs WHERE digest = q.digest OFFSET 0) b
			CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM gc_blobs_layers l WHERE l.digest = q.digest OFFSET 0) AS found) l
			CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM gc_blobs_configurations c WHERE c.digest = q.digest OFFSET 0) AS found) c)
		SELECT (SELECT count(*) FROM taken), count(*) FILTER (WHERE unused),
			COALESCE(sum(size) FILTER (WHERE unused), 0)::bigint, (SELECT count(*) FROM taken) <= $1
		FROM looked`, sampleLimit)
	return s
}
