-- The trash: a deleted repository or namespace can be brought back for a while.
--
-- Deleting renames the row and marks it, and touches nothing below it, so bringing it back is as
-- quick whatever the size. The row gets a name that nobody can ask for ("#", its id, "/" and the
-- name), so that the name is free; the column deleted_path or deleted_name keeps the name. Every
-- lookup by a client's request goes through live_repositories or live_namespaces, or says itself
-- what it does with deleted rows.
--
-- The repositories of a deleted namespace keep their rows as they are: the namespace's row hides
-- them. Therefore a path is unique within a namespace's row, and no longer in the table.
--
-- purge_after is set when the row is deleted, so a later change of trash.keep doesn't shorten
-- what was promised.

-- +goose Up
SET LOCAL lock_timeout = '500ms';

-- In the order in which pushes lock them: otherwise pushes under way and this migration would wait
-- for each other.
LOCK TABLE top_level_namespaces, repositories, accounts IN ACCESS EXCLUSIVE MODE;

ALTER TABLE repositories
    ADD COLUMN deleted_at   timestamptz,
    ADD COLUMN deleted_path text COLLATE "C",
    ADD COLUMN deleted_by   text,
    ADD COLUMN purge_after  timestamptz,
    ADD CHECK ((deleted_at IS NULL) = (deleted_path IS NULL) AND (deleted_at IS NULL) = (purge_after IS NULL)
        AND (deleted_at IS NULL OR starts_with(path, '#')));
ALTER TABLE top_level_namespaces
    ADD COLUMN deleted_at   timestamptz,
    ADD COLUMN deleted_name text COLLATE "C",
    ADD COLUMN deleted_by   text,
    ADD COLUMN purge_after  timestamptz,
    ADD CHECK ((deleted_at IS NULL) = (deleted_name IS NULL) AND (deleted_at IS NULL) = (purge_after IS NULL)
        AND (deleted_at IS NULL OR starts_with(name, '#')));
ALTER TABLE accounts ADD COLUMN deleted_name text COLLATE "C";
COMMENT ON COLUMN accounts.deleted_name IS 'of a robot whose namespace is in the trash: the name that it had before; name is then one that nobody can use';
COMMENT ON COLUMN repositories.deleted_at IS 'when it was put into the trash; NULL: it was not deleted';
COMMENT ON COLUMN repositories.deleted_path IS 'the path that it had before it was deleted; path is then a name that nobody can ask for';
COMMENT ON COLUMN repositories.purge_after IS 'when the trash may be emptied of it';
COMMENT ON COLUMN top_level_namespaces.deleted_at IS 'when it was put into the trash, with its repositories; NULL: it was not deleted';
COMMENT ON COLUMN top_level_namespaces.deleted_name IS 'the name that it had before it was deleted; name is then one that nobody can ask for';
COMMENT ON COLUMN top_level_namespaces.purge_after IS 'when the trash may be emptied of it';

CREATE INDEX repositories_purge_after_idx ON repositories (purge_after) WHERE deleted_at IS NOT NULL;
CREATE INDEX repositories_trash_idx ON repositories (top_level_namespace_id, id) WHERE deleted_at IS NOT NULL;
CREATE INDEX top_level_namespaces_purge_after_idx ON top_level_namespaces (purge_after) WHERE deleted_at IS NOT NULL;

-- The indexes by which live repositories are listed leave out the trash. Without statistics, the
-- planner expects that nearly all rows are in the trash, so it would prefer an index without them
-- to one that begins with the column that is searched.
-- Except for the unique index: without a WHERE clause it makes path a column of the row's key, so a
-- deletion, which changes path, waits for pushes that have locked the row FOR KEY SHARE.
CREATE UNIQUE INDEX repositories_namespace_path_key ON repositories (top_level_namespace_id, path);
DROP INDEX repositories_namespace_path_idx;
DROP INDEX repositories_public_path_idx, repositories_public_id_idx, repositories_public_namespace_idx;
CREATE INDEX repositories_public_path_idx ON repositories (path) WHERE is_public AND deleted_at IS NULL;
CREATE INDEX repositories_public_id_idx ON repositories (id) WHERE is_public AND deleted_at IS NULL;
CREATE INDEX repositories_public_namespace_idx ON repositories (top_level_namespace_id, id) WHERE is_public AND deleted_at IS NULL;
CREATE INDEX repositories_path_idx ON repositories (path) WHERE deleted_at IS NULL;
-- For counts and lists, which would otherwise read the trash on their way: its names come first.
CREATE INDEX repositories_live_idx ON repositories (top_level_namespace_id, id) WHERE deleted_at IS NULL;
CREATE INDEX top_level_namespaces_live_idx ON top_level_namespaces (name) WHERE deleted_at IS NULL;
ALTER TABLE repositories DROP CONSTRAINT repositories_path_key;

CREATE VIEW live_namespaces AS
SELECT id, name, created_at FROM top_level_namespaces WHERE deleted_at IS NULL;

-- OFFSET 0 keeps the planner from joining the namespaces. Without statistics it expects that nearly
-- all namespaces are deleted, so it would begin each search with the few that it believes are left,
-- and read all of their repositories.
CREATE OR REPLACE VIEW live_repositories AS
SELECT r.top_level_namespace_id, r.id, r.path, r.created_at, r.is_public
FROM repositories r
WHERE r.deleted_at IS NULL
    AND EXISTS (SELECT FROM top_level_namespaces n WHERE n.id = r.top_level_namespace_id AND n.deleted_at IS NULL OFFSET 0);

-- named_repositories is for what operators are shown: it has the repositories of the trash too,
-- with the paths that they had.
CREATE VIEW named_repositories AS
SELECT r.top_level_namespace_id, r.id, COALESCE(r.deleted_path, r.path) AS path,
    r.deleted_at IS NOT NULL OR n.deleted_at IS NOT NULL AS in_trash
FROM repositories r JOIN top_level_namespaces n ON n.id = r.top_level_namespace_id;
