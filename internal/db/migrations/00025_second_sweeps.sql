-- +goose Up
-- In rows of gc_doomed_objects with again_at = delete_after, the objects were deleted once,
-- and are deleted a second time when no request can write them any more. The status of garbage
-- collection counts these rows separately from the rows whose first deletion is still to come.
-- Therefore each row is in one of these two indexes.
CREATE INDEX gc_doomed_objects_first_idx ON gc_doomed_objects (storage_key) WHERE again_at IS DISTINCT FROM delete_after;
CREATE INDEX gc_doomed_objects_again_idx ON gc_doomed_objects (storage_key) WHERE again_at = delete_after;
