-- +goose Up
-- Some rows of gc_doomed_objects (again_at = delete_after) are for objects that were deleted,
-- and are deleted a second time when no request can write them any more. The status counts
-- these rows apart from those whose first deletion is due. So each row is in one of these two
-- indexes.
CREATE INDEX gc_doomed_objects_first_idx ON gc_doomed_objects (storage_key) WHERE again_at IS DISTINCT FROM delete_after;
CREATE INDEX gc_doomed_objects_again_idx ON gc_doomed_objects (storage_key) WHERE again_at = delete_after;
