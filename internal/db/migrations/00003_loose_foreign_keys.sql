-- What a repository leaves behind is drained by loose foreign keys, which look
-- for it by the repository's id alone: each table below a repository needs an
-- index that begins with it. Rows were looked up by namespace and repository;
-- with the two swapped the same indexes serve both.
--
-- An upload knows its repository once it has saved to it. When that goes, the
-- upload is cancelled (status 2; 1 is active), and the reaper takes its objects.
--
-- live_repositories are those whose namespace exists: when it goes, its
-- repositories are gone with it for everybody who looks here, though their rows
-- follow later.

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
