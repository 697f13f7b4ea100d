-- The metadata of the registry.
--
-- Small tables (namespaces, repositories, queues, uploads, pending deletions) aren't
-- partitioned. The other tables are hash-partitioned: by digest if a digest is their key, by
-- top-level namespace if their rows belong to a repository. This migration takes the number of
-- partitions from the session setting purser.partitions and stores it in the table settings;
-- it never changes. Partitions are in the schema "partitions".
--
-- Foreign keys to rows that garbage collection may delete (from layer and configuration to
-- blob, from tag to manifest, from index to child) are NO ACTION, so PostgreSQL refuses to
-- delete a row that is still referenced. Foreign keys to the owner of a row, such as from a
-- layer to its manifest, cascade. The rows of a repository have no foreign key to the
-- repository's row: after that row is deleted, they are deleted in bounded batches.
--
-- A digest is stored as one byte for the algorithm (1: sha256, 2: sha512), followed by the
-- hash.

-- +goose Up
CREATE SCHEMA IF NOT EXISTS partitions;

CREATE TABLE settings (
    name  text PRIMARY KEY,
    value text NOT NULL
);

INSERT INTO settings (name, value)
VALUES ('partitions', current_setting('purser.partitions'));

CREATE TABLE top_level_namespaces (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text COLLATE "C" NOT NULL UNIQUE,
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE repositories (
    top_level_namespace_id bigint NOT NULL,
    id                     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    path                   text COLLATE "C" NOT NULL UNIQUE,
    created_at             timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX repositories_top_level_namespace_id_idx ON repositories (top_level_namespace_id, id);

CREATE TABLE blobs (
    digest      bytea NOT NULL,
    size        bigint NOT NULL CHECK (size >= 0),
    media_type  text NOT NULL DEFAULT 'application/octet-stream',
    storage_key text COLLATE "C" NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (digest)
) PARTITION BY HASH (digest);

CREATE TABLE repository_blobs (
    top_level_namespace_id bigint NOT NULL,
    repository_id          bigint NOT NULL,
    blob_digest            bytea NOT NULL,
    created_at             timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (top_level_namespace_id, repository_id, blob_digest),
    FOREIGN KEY (blob_digest) REFERENCES blobs (digest) ON DELETE CASCADE
) PARTITION BY HASH (top_level_namespace_id);

CREATE INDEX repository_blobs_blob_digest_idx ON repository_blobs (blob_digest, repository_id);

CREATE SEQUENCE manifests_id_seq;

-- annotations are stored only for manifests with a subject. The list of referrers reads them
-- from this column instead of parsing payloads.
CREATE TABLE manifests (
    top_level_namespace_id    bigint NOT NULL,
    repository_id             bigint NOT NULL,
    id                        bigint NOT NULL DEFAULT nextval('manifests_id_seq'),
    digest                    bytea NOT NULL,
    media_type                text NOT NULL,
    artifact_type             text,
    subject_digest            bytea,
    configuration_blob_digest bytea,
    annotations               json,
    payload                   bytea NOT NULL,
    total_size                bigint NOT NULL,
    created_at                timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (top_level_namespace_id, repository_id, id),
    UNIQUE (top_level_namespace_id, repository_id, digest),
    FOREIGN KEY (configuration_blob_digest) REFERENCES blobs (digest)
) PARTITION BY HASH (top_level_namespace_id);

ALTER SEQUENCE manifests_id_seq OWNED BY manifests.id;

CREATE INDEX manifests_subject_digest_idx
    ON manifests (top_level_namespace_id, repository_id, subject_digest, id)
    WHERE subject_digest IS NOT NULL;

CREATE INDEX manifests_configuration_blob_digest_idx
    ON manifests (configuration_blob_digest, repository_id)
    WHERE configuration_blob_digest IS NOT NULL;

-- PostgreSQL checks the foreign key to the child only at the commit, so that one statement can
-- delete an index together with its children. So inserting a reference doesn't lock the
-- child's row: a transaction must lock this row itself before it inserts the reference.
CREATE TABLE manifest_references (
    top_level_namespace_id bigint NOT NULL,
    repository_id          bigint NOT NULL,
    parent_id              bigint NOT NULL,
    child_id               bigint NOT NULL,
    PRIMARY KEY (top_level_namespace_id, repository_id, parent_id, child_id),
    FOREIGN KEY (top_level_namespace_id, repository_id, parent_id)
        REFERENCES manifests (top_level_namespace_id, repository_id, id) ON DELETE CASCADE,
    FOREIGN KEY (top_level_namespace_id, repository_id, child_id)
        REFERENCES manifests (top_level_namespace_id, repository_id, id) DEFERRABLE INITIALLY DEFERRED
) PARTITION BY HASH (top_level_namespace_id);

CREATE INDEX manifest_references_child_id_idx
    ON manifest_references (top_level_namespace_id, repository_id, child_id);

CREATE SEQUENCE layers_id_seq;

CREATE TABLE layers (
    top_level_namespace_id bigint NOT NULL,
    repository_id          bigint NOT NULL,
    id                     bigint NOT NULL DEFAULT nextval('layers_id_seq'),
    manifest_id            bigint NOT NULL,
    digest                 bytea NOT NULL,
    size                   bigint NOT NULL,
    media_type             text NOT NULL,
    PRIMARY KEY (top_level_namespace_id, repository_id, id),
    UNIQUE (top_level_namespace_id, repository_id, manifest_id, digest),
    FOREIGN KEY (top_level_namespace_id, repository_id, manifest_id)
        REFERENCES manifests (top_level_namespace_id, repository_id, id) ON DELETE CASCADE,
    FOREIGN KEY (digest) REFERENCES blobs (digest)
) PARTITION BY HASH (top_level_namespace_id);

ALTER SEQUENCE layers_id_seq OWNED BY layers.id;

CREATE INDEX layers_digest_idx ON layers (digest, repository_id);

CREATE SEQUENCE tags_id_seq;

CREATE TABLE tags (
    top_level_namespace_id bigint NOT NULL,
    repository_id          bigint NOT NULL,
    id                     bigint NOT NULL DEFAULT nextval('tags_id_seq'),
    name                   text COLLATE "C" NOT NULL,
    manifest_id            bigint NOT NULL,
    created_at             timestamptz NOT NULL DEFAULT now(),
    updated_at             timestamptz,
    PRIMARY KEY (top_level_namespace_id, repository_id, name),
    FOREIGN KEY (top_level_namespace_id, repository_id, manifest_id)
        REFERENCES manifests (top_level_namespace_id, repository_id, id)
) PARTITION BY HASH (top_level_namespace_id);

ALTER SEQUENCE tags_id_seq OWNED BY tags.id;

CREATE INDEX tags_manifest_id_idx ON tags (top_level_namespace_id, repository_id, manifest_id);

-- A row of uploads owns every object in the blob store whose storage key begins with the row's
-- storage_key. This ends when the upload ends: one of the objects may become a blob's, and the
-- others become pending deletions.
-- attempt  the fencing token: each claim and each save of the upload raises it. A request can
--          save the upload only while attempt has the value that the request's claim has set
--          or, if the request made no claim, that the request has read
-- numbers  how many numbers were reserved for the names of objects and parts. No number is
--          reserved twice
-- tail     the bytes of an upload that is so small that no object was written for it
CREATE TABLE uploads (
    id          uuid PRIMARY KEY,
    repository  text COLLATE "C" NOT NULL,
    storage_key text COLLATE "C" NOT NULL UNIQUE,
    algorithm   text NOT NULL DEFAULT 'sha256',
    hash_state  bytea,
    size        bigint NOT NULL DEFAULT 0,
    store_state bytea,
    tail        bytea,
    attempt     bigint NOT NULL DEFAULT 0,
    numbers     bigint NOT NULL DEFAULT 0,
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX uploads_updated_at_idx ON uploads (updated_at);

-- A row of gc_doomed_objects owns objects that are to be deleted from the store. If of_upload
-- is set, storage_key is a prefix: all objects whose keys begin with it are deleted, except
-- the object whose key is in the column keep. again_at is when they are deleted a second time,
-- because a request that was running at the first deletion may have written another object. At
-- again_at no such request can be running any more.
CREATE TABLE gc_doomed_objects (
    storage_key text COLLATE "C" PRIMARY KEY,
    of_upload   boolean NOT NULL DEFAULT false,
    keep        text COLLATE "C",
    size        bigint NOT NULL DEFAULT 0,
    doomed_at   timestamptz NOT NULL DEFAULT now(),
    delete_after timestamptz NOT NULL DEFAULT now(),
    again_at    timestamptz,
    attempts    integer NOT NULL DEFAULT 0,
    last_error  text
);

CREATE INDEX gc_doomed_objects_delete_after_idx ON gc_doomed_objects (delete_after);

CREATE TABLE gc_blobs_configurations (
    top_level_namespace_id bigint NOT NULL,
    repository_id          bigint NOT NULL,
    manifest_id            bigint NOT NULL,
    digest                 bytea NOT NULL,
    PRIMARY KEY (digest, manifest_id),
    FOREIGN KEY (top_level_namespace_id, repository_id, manifest_id)
        REFERENCES manifests (top_level_namespace_id, repository_id, id) ON DELETE CASCADE
) PARTITION BY HASH (digest);

CREATE INDEX gc_blobs_configurations_manifest_id_idx
    ON gc_blobs_configurations (top_level_namespace_id, repository_id, manifest_id);

CREATE TABLE gc_blobs_layers (
    top_level_namespace_id bigint NOT NULL,
    repository_id          bigint NOT NULL,
    layer_id               bigint NOT NULL,
    digest                 bytea NOT NULL,
    PRIMARY KEY (digest, layer_id),
    FOREIGN KEY (top_level_namespace_id, repository_id, layer_id)
        REFERENCES layers (top_level_namespace_id, repository_id, id) ON DELETE CASCADE
) PARTITION BY HASH (digest);

CREATE INDEX gc_blobs_layers_layer_id_idx
    ON gc_blobs_layers (top_level_namespace_id, repository_id, layer_id);

-- The review queues have no foreign keys, so that no transaction waits for the row lock of a
-- foreign key check. If a reviewer finds that a queued blob or manifest no longer exists, it
-- deletes the row from the queue.
CREATE TABLE gc_blob_review_queue (
    digest       bytea PRIMARY KEY,
    review_after timestamptz NOT NULL DEFAULT now() + interval '1 day',
    review_count integer NOT NULL DEFAULT 0,
    created_at   timestamptz NOT NULL DEFAULT now(),
    event        text NOT NULL,
    set_aside_at timestamptz
);

CREATE INDEX gc_blob_review_queue_review_after_idx
    ON gc_blob_review_queue (review_after) WHERE set_aside_at IS NULL;

CREATE TABLE gc_manifest_review_queue (
    top_level_namespace_id bigint NOT NULL,
    repository_id          bigint NOT NULL,
    manifest_id            bigint NOT NULL,
    review_after           timestamptz NOT NULL DEFAULT now() + interval '1 day',
    review_count           integer NOT NULL DEFAULT 0,
    created_at             timestamptz NOT NULL DEFAULT now(),
    event                  text NOT NULL,
    set_aside_at           timestamptz,
    PRIMARY KEY (top_level_namespace_id, repository_id, manifest_id)
);

CREATE INDEX gc_manifest_review_queue_review_after_idx
    ON gc_manifest_review_queue (review_after) WHERE set_aside_at IS NULL;

CREATE TABLE gc_review_after_defaults (
    event text PRIMARY KEY,
    value interval NOT NULL CHECK (value >= interval '0')
);

-- replicas has a row for each process that keeps a cache. Triggers send notifications of a
-- change only if this table has a row of another process than the one that made the change.
CREATE TABLE replicas (
    id         uuid PRIMARY KEY,
    name       text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    seen_at    timestamptz NOT NULL DEFAULT now()
);

-- +goose StatementBegin
DO $$
DECLARE
    n integer := current_setting('purser.partitions')::integer;
    t text;
BEGIN
    FOREACH t IN ARRAY ARRAY['blobs', 'repository_blobs', 'manifests', 'manifest_references',
        'layers', 'tags', 'gc_blobs_configurations', 'gc_blobs_layers']
    LOOP
        FOR i IN 0 .. n - 1 LOOP
            EXECUTE format('CREATE TABLE partitions.%I PARTITION OF %I FOR VALUES WITH (MODULUS %s, REMAINDER %s)',
                t || '_p_' || i, t, n, i);
        END LOOP;
    END LOOP;
END;
$$;
-- +goose StatementEnd
