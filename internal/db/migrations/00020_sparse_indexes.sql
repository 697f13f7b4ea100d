-- missing_children has the manifests that a sparse index lists and that its repository doesn't
-- have. For example, a client that mirrors one platform pushes an index without its other
-- manifests, if manifests.sparse_indexes allows it. When the sparse index is deleted, its rows
-- are deleted too. When a missing manifest is pushed, its row becomes a row of
-- manifest_references, so that garbage collection keeps the manifest while the index lists it.

-- +goose Up
SET LOCAL lock_timeout = '500ms';

CREATE TABLE missing_children (
    top_level_namespace_id bigint NOT NULL,
    repository_id          bigint NOT NULL,
    parent_id              bigint NOT NULL,
    child_digest           bytea NOT NULL,
    PRIMARY KEY (child_digest, repository_id, top_level_namespace_id, parent_id),
    FOREIGN KEY (top_level_namespace_id, repository_id, parent_id)
        REFERENCES manifests (top_level_namespace_id, repository_id, id) ON DELETE CASCADE
);

CREATE INDEX missing_children_parent_id_idx ON missing_children (parent_id, repository_id, top_level_namespace_id);

COMMENT ON TABLE missing_children IS 'manifests that an index lists and its repository does not have';
COMMENT ON COLUMN missing_children.parent_id IS 'the index';
COMMENT ON COLUMN missing_children.child_digest IS 'digest of the manifest that is missing';
