-- Which blob store belongs to this database, how long deleted objects are kept,
-- and which blobs are lost.
--
-- store_identity has at most one row. The store keeps the same id in an object of
-- its own, and whoever writes to the store compares the two first. confirmed_at is
-- NULL from when a process has chosen the id until it has seen it in the store: a
-- process that finds such a row and no id in the store may take over after a while.
-- place is where the store was last, for error messages.
--
-- gc_doomed_objects.sweeping says that a sweeper has claimed the object before.
-- An object that was a blob's is kept for gc.keep_doomed after delete_after until
-- it is claimed first; from then on, and for all others, delete_after alone
-- decides. So there is an index for each of the two.

-- +goose Up
CREATE TABLE store_identity (
    one          boolean PRIMARY KEY DEFAULT true CHECK (one),
    id           uuid NOT NULL,
    place        text NOT NULL,
    chosen_at    timestamptz NOT NULL DEFAULT now(),
    confirmed_at timestamptz
);

ALTER TABLE gc_doomed_objects ADD COLUMN sweeping boolean NOT NULL DEFAULT false;
UPDATE gc_doomed_objects SET sweeping = true WHERE attempts > 0;
DROP INDEX gc_doomed_objects_delete_after_idx;
CREATE INDEX gc_doomed_objects_kept_idx ON gc_doomed_objects (delete_after) WHERE NOT (of_upload OR sweeping);
CREATE INDEX gc_doomed_objects_delete_after_idx ON gc_doomed_objects (delete_after) WHERE of_upload OR sweeping;

CREATE INDEX blobs_lost_at_idx ON blobs (lost_at) WHERE lost_at IS NOT NULL;
