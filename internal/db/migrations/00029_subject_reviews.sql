-- A deleted manifest may be the subject of any number of referrers. The transaction that
-- deletes the manifest queues up to a hundred of its referrers for review. If there are more,
-- it inserts a row into gc_subject_review_queue. Garbage collection later reads this row and
-- queues the other referrers in batches.

-- +goose Up
SET LOCAL lock_timeout = '500ms';

CREATE TABLE gc_subject_review_queue (
    top_level_namespace_id bigint NOT NULL,
    repository_id          bigint NOT NULL,
    subject_digest         bytea NOT NULL,
    next_id                bigint NOT NULL,
    review_after           timestamptz NOT NULL,
    created_at             timestamptz NOT NULL DEFAULT now(),
    expand_after           timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (subject_digest, repository_id, top_level_namespace_id)
);

CREATE INDEX gc_subject_review_queue_expand_after_idx ON gc_subject_review_queue (expand_after);

ALTER TABLE gc_subject_review_queue SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);

COMMENT ON TABLE gc_subject_review_queue IS 'deleted manifests of whose referrers some are still to be queued for review';
COMMENT ON COLUMN gc_subject_review_queue.next_id IS 'referrers with a lower id are in gc_manifest_review_queue, or were reviewed';
COMMENT ON COLUMN gc_subject_review_queue.review_after IS 'when the referrers may be reviewed';
COMMENT ON COLUMN gc_subject_review_queue.created_at IS 'when the subject was deleted';
COMMENT ON COLUMN gc_subject_review_queue.expand_after IS 'when the next page of referrers is to be queued';
