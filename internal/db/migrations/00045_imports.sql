-- An import takes over the storage of another registry without copying it: the registry's files
-- become objects under their paths, which contain a "/". Until the import is finished, the other
-- registry may still serve these files, so nothing may delete them.

-- +goose Up
SET LOCAL lock_timeout = '500ms';

-- imports has the storages that were imported. source is what the keys of a storage's objects begin
-- with. Until finished_at, these objects are foreign.
CREATE TABLE imports (
    source      text COLLATE "C" PRIMARY KEY,
    format      text NOT NULL,
    begun_at    timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz
);

-- gc_foreign_objects has the foreign objects that no blob names any more. They are what
-- gc_doomed_objects would have if they weren't foreign. When the imports are finished, they move
-- there.
CREATE TABLE gc_foreign_objects (
    storage_key text COLLATE "C" PRIMARY KEY,
    size        bigint NOT NULL DEFAULT 0,
    doomed_at   timestamptz NOT NULL DEFAULT now()
);
