-- This migration makes the table that says which blob store belongs to this database, a column
-- for keeping the objects of deleted blobs for a while, and an index that finds lost blobs.
--
-- store_identity has at most one row. The store has the same id in an object of its own, and
-- every process compares the two ids before it writes to the store. After a process has chosen
-- the id, confirmed_at is NULL until the process has read the id from the store. If
-- confirmed_at is NULL and the store has no id, another process may choose a new id after a
-- while. The column "place" has the store's last known location, for error messages.
--
-- gc_doomed_objects.sweeping says that a sweeper has claimed the pending deletion at least
-- once. The setting gc.keep_doomed is how long the objects of deleted blobs are kept: a sweeper
-- may claim the pending deletion of such an object for the first time only when gc.keep_doomed
-- has passed since delete_after. From delete_after on, it may claim any pending deletion that
-- was claimed before, and the pending deletion of an upload's objects. Each of these two cases
-- has an index.

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
