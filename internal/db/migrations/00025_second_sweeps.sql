-- +goose Up
-- Some rows are of objects that were deleted and are deleted once more, when the longest
-- request is over. They are counted apart from those that are still to be deleted: each
-- row is in one of these indexes.
CREATE INDEX gc_doomed_objects_first_idx ON gc_doomed_objects (storage_key) WHERE again_at IS DISTINCT FROM delete_after;
CREATE INDEX gc_doomed_objects_again_idx ON gc_doomed_objects (storage_key) WHERE again_at = delete_after;
