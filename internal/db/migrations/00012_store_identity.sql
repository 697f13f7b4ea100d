-- This migration makes the table that says which blob store belongs to this database, a column
-- for keeping the objects of deleted blobs for a while, and an index that finds lost blobs.
--
-- store_identity has at most one row. The store has the same id in an object of its own, and
-- every process compares the two before it writes to the store. confirmed_at is NULL after a
-- process has chosen the id and until it has seen the id in the store. A process that finds
-- such a row and no id in the store may choose a new id after a while. place is the store's
-- last known location, for error messages.
--
-- gc_doomed_objects.sweeping says that a sweeper has claimed the object before. Objects of
-- deleted blobs are kept for the time gc.keep_doomed: such an object may be claimed for the
-- first time only when this time has passed since delete_after. An object of an upload, or one
-- that was claimed before, may be claimed from delete_after on. So each of the two cases has
-- an index.

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
