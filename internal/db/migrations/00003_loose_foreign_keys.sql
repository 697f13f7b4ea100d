-- Loose foreign keys delete the rows of a deleted repository, and look for them by the
-- repository's id alone. So each table of a repository's rows needs an index that begins with
-- this id. So far the primary keys began with the namespace's id, followed by the repository's
-- id. This migration swaps these two columns, so that the same indexes serve lookups by both
-- ids and by the repository's id alone.
--
-- An upload's repository_id is set when the upload's state is first saved. When the repository
-- is deleted, loose foreign keys cancel the upload (status 2; 1 is active), and the reaper then
-- deletes the upload's row and objects.
--
-- The view live_repositories shows the repositories whose namespace exists. When a namespace
-- is deleted, its repositories vanish from the view at once; their rows are deleted later.

-- +goose Up
ALTER TABLE uploads ADD COLUMN repository_id bigint;
ALTER TABLE uploads ADD COLUMN status smallint NOT NULL DEFAULT 1;

CREATE INDEX uploads_repository_id_idx ON uploads (repository_id, status) WHERE repository_id IS NOT NULL;
CREATE INDEX uploads_cancelled_idx ON uploads (id) WHERE status = 2;

ALTER TABLE tags DROP CONSTRAINT tags_pkey;
ALTER TABLE tags ADD PRIMARY KEY (repository_id, top_level_namespace_id, name);

ALTER TABLE repository_blobs DROP CONSTRAINT repository_blobs_pkey;
ALTER TABLE repository_blobs ADD PRIMARY KEY (repository_id, top_level_namespace_id, blob_digest);

ALTER TABLE manifest_references DROP CONSTRAINT manifest_references_pkey;
ALTER TABLE manifest_references ADD PRIMARY KEY (repository_id, top_level_namespace_id, parent_id, child_id);

-- +goose StatementBegin
DO $$
DECLARE
    key text := (SELECT conname FROM pg_constraint WHERE conrelid = 'manifests'::regclass AND contype = 'u');
BEGIN
    EXECUTE format('ALTER TABLE manifests DROP CONSTRAINT %I', key);
    EXECUTE format('ALTER TABLE manifests ADD CONSTRAINT %I UNIQUE (repository_id, top_level_namespace_id, digest)', key);
END;
$$;
-- +goose StatementEnd

CREATE VIEW live_repositories AS
SELECT r.* FROM repositories r JOIN top_level_namespaces n ON n.id = r.top_level_namespace_id;
