-- The schema of the registry's main database.
--
-- Small tables (namespaces, repositories, queues, uploads, pending deletions) aren't
-- partitioned. The large tables are hash-partitioned: by digest if a digest is their key, by
-- top-level namespace if their rows belong to a repository. This migration takes the number of
-- partitions from the session setting purser.partitions and stores it in the table settings;
-- it never changes. Partitions are in the schema "partitions"; the end of this file makes them.
--
-- Foreign keys to rows that garbage collection may delete (from layer and configuration to
-- blob, from tag to manifest, from index to child) are NO ACTION, so PostgreSQL refuses to
-- delete a row that is still referenced. Foreign keys to the owner of a row, such as from a
-- layer to its manifest, cascade. The rows of a repository have no foreign key to the
-- repository's row: after that row is deleted, loose foreign keys delete them in bounded
-- batches. They look for them by the repository's id alone, so each table of a repository's
-- rows has an index that begins with this id.
--
-- Other indexes of these tables begin with the column that is searched, such as a manifest's id,
-- and end with repository and namespace. An index that begins with namespace and repository
-- would tempt the planner to read a whole repository to find one row, because it multiplies what
-- the two columns select. The end of this file says more about that.
--
-- A digest is stored as one byte for the algorithm (1: sha256, 2: sha512), followed by the
-- hash.

-- +goose Up
SET LOCAL lock_timeout = '500ms';

CREATE SCHEMA IF NOT EXISTS partitions;

-- ---------------------------------------------------------------------------------------------
-- The registry itself

CREATE TABLE settings (
    name  text PRIMARY KEY,
    value text NOT NULL
);

-- By the row "history" Purser knows its own schema: it has a hash of this file, which no release
-- may change. The builds before 1.0 had other migrations under the same numbers, or another text
-- of this one; a database that one of them has made has no such row or another value, and is
-- refused.
INSERT INTO settings (name, value) VALUES
    ('history', current_setting('purser.history')),
    ('partitions', current_setting('purser.partitions')),
    ('autoprune_defaults_version', '0'),
    ('tag_protection_version', '0');

-- replicas has a row for each process that keeps a cache. Triggers send notifications of a
-- change only if this table has a row of another process than the one that made the change.
CREATE TABLE replicas (
    id         uuid PRIMARY KEY,
    name       text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    seen_at    timestamptz NOT NULL DEFAULT now()
);

-- servers has a row for each server that runs, with its settings, so that commands that delete or
-- repair can tell whether they have the same. A row stays when its server has stopped, until another
-- server starts.
CREATE TABLE servers (
    replica    uuid PRIMARY KEY,
    host       text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    seen_at    timestamptz NOT NULL DEFAULT now(),
    stopped    boolean NOT NULL DEFAULT false,
    settings   jsonb NOT NULL
);
COMMENT ON COLUMN servers.settings IS 'the text of each setting by its key; secrets are hidden';

-- clock says when a process last looked at this database's clock, and whether the clock is in
-- doubt. It has at most one row. boot identifies the start of that process's machine, and up is how
-- long the machine had run at seen_at, in microseconds: no setting of a clock changes that. Entries
-- of the audit log up to confirmed_to are of the future, and somebody knows it. See package clock.
CREATE TABLE clock (
    one          boolean PRIMARY KEY DEFAULT true CHECK (one),
    seen_at      timestamptz NOT NULL,
    boot         text COLLATE "C" NOT NULL,
    up           bigint NOT NULL,
    doubt        text,
    confirmed_to timestamptz,
    trusted_at   timestamptz
);
COMMENT ON COLUMN clock.trusted_at IS 'the latest time that a process has seen while nothing was in doubt';

-- store_identity says which blob store belongs to this database. It has at most one row. The
-- store has the same id in an object of its own, and every process compares the two ids before
-- it writes to the store. After a process has chosen the id, confirmed_at is NULL until the
-- process has read the id from the store. If confirmed_at is NULL and the store has no id,
-- another process may choose a new id after a while. The column "place" has the store's last
-- known location, for error messages.
CREATE TABLE store_identity (
    one          boolean PRIMARY KEY DEFAULT true CHECK (one),
    id           uuid NOT NULL,
    place        text NOT NULL,
    chosen_at    timestamptz NOT NULL DEFAULT now(),
    confirmed_at timestamptz
);

-- backups has a row for each place into which "purser backup" has written complete backups of this
-- registry. "purser backup verify" writes what it has found there. Metrics and alerts tell by these
-- rows that backups have become old, or are damaged.
CREATE TABLE backups (
    place        text PRIMARY KEY,
    backup       text NOT NULL,
    snapshot_at  timestamptz NOT NULL,
    verified_at  timestamptz,
    problem      text NOT NULL DEFAULT '',
    problem_deep boolean NOT NULL DEFAULT false
);
COMMENT ON COLUMN backups.backup IS 'the newest complete one';
COMMENT ON COLUMN backups.verified_at IS 'when the newest backup of that time was last found whole';
COMMENT ON COLUMN backups.problem IS 'what the newest backup, or the last verification of it, has found to be missing or damaged; empty: nothing';
COMMENT ON COLUMN backups.problem_deep IS 'whether the problem was found by reading all copies, so that only reading them again can say that it is gone';

-- disk_space has what the registry's own disks had free in each hour of the last 30 days. The forecast of
-- when they are full is made by it. Backups leave it out, since it is about a machine.
CREATE TABLE disk_space (
    disk        text NOT NULL,
    path        text NOT NULL,
    measured_at timestamptz NOT NULL,
    size        bigint NOT NULL,
    free        bigint NOT NULL,
    PRIMARY KEY (disk, path, measured_at)
);
COMMENT ON COLUMN disk_space.disk IS 'what is kept there: blobs, or database';
COMMENT ON COLUMN disk_space.measured_at IS 'the beginning of the hour, so that servers which share the disk write one row';

-- ---------------------------------------------------------------------------------------------
-- Namespaces and repositories, and the trash
--
-- A deleted repository or namespace can be brought back for a while. Deleting renames the row
-- and marks it, and touches nothing below it, so bringing it back is as quick whatever the size.
-- The row gets a name that nobody can ask for ("#", its id, "/" and the name), so that the name
-- is free; the column deleted_path or deleted_name keeps the name. Every lookup by a client's
-- request goes through live_repositories or live_namespaces, or says itself what it does with
-- deleted rows.
--
-- The repositories of a deleted namespace keep their rows as they are: the namespace's row hides
-- them. Therefore a path is unique within a namespace's row, and not in the table.
--
-- purge_after is set when the row is deleted, so a later change of trash.keep doesn't shorten
-- what was promised.

CREATE TABLE top_level_namespaces (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name         text COLLATE "C" NOT NULL UNIQUE,
    created_at   timestamptz NOT NULL DEFAULT now(),
    deleted_at   timestamptz,
    deleted_name text COLLATE "C",
    deleted_by   text,
    purge_after  timestamptz,
    expiry_labels    boolean NOT NULL DEFAULT false,
    immutable_labels boolean NOT NULL DEFAULT false,
    CHECK ((deleted_at IS NULL) = (deleted_name IS NULL) AND (deleted_at IS NULL) = (purge_after IS NULL)
        AND (deleted_at IS NULL OR starts_with(name, '#')))
);
COMMENT ON COLUMN top_level_namespaces.deleted_at IS 'when it was put into the trash, with its repositories; NULL: it was not deleted';
COMMENT ON COLUMN top_level_namespaces.deleted_name IS 'the name that it had before it was deleted; name is then one that nobody can ask for';
COMMENT ON COLUMN top_level_namespaces.purge_after IS 'when the trash may be emptied of it';
COMMENT ON COLUMN top_level_namespaces.expiry_labels IS 'whether a label of a pushed image gives its tag an expiration date';
COMMENT ON COLUMN top_level_namespaces.immutable_labels IS 'whether a label of a pushed image makes its tag immutable';
-- Each process has the namespaces with such labels in memory, with the rules that protect tags.
CREATE INDEX top_level_namespaces_labels_idx ON top_level_namespaces (id) WHERE expiry_labels OR immutable_labels;

CREATE INDEX top_level_namespaces_purge_after_idx ON top_level_namespaces (purge_after) WHERE deleted_at IS NOT NULL;
-- For counts and lists, which would otherwise read the trash on their way: its names come first.
CREATE INDEX top_level_namespaces_live_idx ON top_level_namespaces (name) WHERE deleted_at IS NULL;

-- is_public says who may pull: true is everybody, or every account if auth.anonymous_pull is
-- off; false is only those with a role; NULL follows the setting auth.default_visibility.
CREATE TABLE repositories (
    top_level_namespace_id bigint NOT NULL,
    id                     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    path                   text COLLATE "C" NOT NULL,
    is_public              boolean,
    starred_at             timestamptz,
    created_at             timestamptz NOT NULL DEFAULT now(),
    deleted_at             timestamptz,
    deleted_path           text COLLATE "C",
    deleted_by             text,
    purge_after            timestamptz,
    CHECK ((deleted_at IS NULL) = (deleted_path IS NULL) AND (deleted_at IS NULL) = (purge_after IS NULL)
        AND (deleted_at IS NULL OR starts_with(path, '#')))
);
COMMENT ON COLUMN repositories.is_public IS 'whether everybody may pull; NULL: as auth.default_visibility says';
COMMENT ON COLUMN repositories.starred_at IS 'when it got its star, of whoever is not logged in';
COMMENT ON COLUMN repositories.deleted_at IS 'when it was put into the trash; NULL: it was not deleted';
COMMENT ON COLUMN repositories.deleted_path IS 'the path that it had before it was deleted; path is then a name that nobody can ask for';
COMMENT ON COLUMN repositories.purge_after IS 'when the trash may be emptied of it';

-- Without a WHERE clause this index makes path a column of the row's key, so a deletion, which
-- changes path, waits for pushes that have locked the row FOR KEY SHARE.
CREATE UNIQUE INDEX repositories_namespace_path_key ON repositories (top_level_namespace_id, path);
CREATE INDEX repositories_top_level_namespace_id_idx ON repositories (top_level_namespace_id, id);
CREATE INDEX repositories_starred_idx ON repositories (path) WHERE starred_at IS NOT NULL;
CREATE INDEX repositories_purge_after_idx ON repositories (purge_after) WHERE deleted_at IS NOT NULL;
CREATE INDEX repositories_trash_idx ON repositories (top_level_namespace_id, id) WHERE deleted_at IS NOT NULL;

-- The indexes by which live repositories are listed leave out the trash. Without statistics, the
-- planner expects that nearly all rows are in the trash, so it would prefer an index without them
-- to one that begins with the column that is searched.
CREATE INDEX repositories_path_idx ON repositories (path) WHERE deleted_at IS NULL;
CREATE INDEX repositories_live_idx ON repositories (top_level_namespace_id, id) WHERE deleted_at IS NULL;
-- With these indexes, a list for a client who may read few repositories reads only these.
CREATE INDEX repositories_public_path_idx ON repositories (path) WHERE is_public AND deleted_at IS NULL;
CREATE INDEX repositories_public_id_idx ON repositories (id) WHERE is_public AND deleted_at IS NULL;
CREATE INDEX repositories_public_namespace_idx ON repositories (top_level_namespace_id, id) WHERE is_public AND deleted_at IS NULL;

CREATE VIEW live_namespaces AS
SELECT id, name, created_at FROM top_level_namespaces WHERE deleted_at IS NULL;

-- live_repositories has the repositories whose namespace exists too: when a namespace is
-- deleted, its repositories vanish from the view at once.
--
-- OFFSET 0 keeps the planner from joining the namespaces. Without statistics it expects that nearly
-- all namespaces are deleted, so it would begin each search with the few that it believes are left,
-- and read all of their repositories.
CREATE VIEW live_repositories AS
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

-- ---------------------------------------------------------------------------------------------
-- Blobs, manifests and tags

-- lost_at is when a check found that the store has lost the blob's content. The registry then
-- tells clients that the blob doesn't exist, so the next client that pushes the blob uploads it
-- again, and the blob's row gets the new object.
CREATE TABLE blobs (
    digest      bytea NOT NULL,
    size        bigint NOT NULL CHECK (size >= 0),
    media_type  text NOT NULL DEFAULT 'application/octet-stream',
    storage_key text COLLATE "C" NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    lost_at     timestamptz,
    PRIMARY KEY (digest)
) PARTITION BY HASH (digest);

CREATE INDEX blobs_lost_at_idx ON blobs (lost_at) WHERE lost_at IS NOT NULL;

CREATE TABLE repository_blobs (
    top_level_namespace_id bigint NOT NULL,
    repository_id          bigint NOT NULL,
    blob_digest            bytea NOT NULL,
    created_at             timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (repository_id, top_level_namespace_id, blob_digest),
    FOREIGN KEY (blob_digest) REFERENCES blobs (digest) ON DELETE CASCADE
) PARTITION BY HASH (top_level_namespace_id);

CREATE INDEX repository_blobs_blob_digest_idx ON repository_blobs (blob_digest, repository_id);
-- This index answers whether another repository of a namespace has a blob, also for a blob that
-- very many repositories have. Quotas need it.
CREATE INDEX repository_blobs_namespace_idx ON repository_blobs (blob_digest, top_level_namespace_id, repository_id);

CREATE SEQUENCE manifests_id_seq;

-- annotations are stored only for manifests with a subject, and only up to 64 KiB. The list of
-- referrers reads them from this column instead of parsing payloads.
CREATE TABLE manifests (
    top_level_namespace_id    bigint NOT NULL,
    repository_id             bigint NOT NULL,
    id                        bigint NOT NULL DEFAULT nextval('manifests_id_seq'),
    digest                    bytea NOT NULL,
    media_type                text NOT NULL,
    artifact_type             text,
    subject_digest            bytea,
    configuration_blob_digest bytea,
    configuration_blob_size   bigint,
    annotations               json,
    payload                   bytea NOT NULL,
    total_size                bigint NOT NULL,
    created_at                timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (id, repository_id, top_level_namespace_id),
    UNIQUE (repository_id, top_level_namespace_id, digest),
    FOREIGN KEY (configuration_blob_digest) REFERENCES blobs (digest)
) PARTITION BY HASH (top_level_namespace_id);
COMMENT ON COLUMN manifests.configuration_blob_size IS 'size in blobs of the configuration; NULL: look there';
COMMENT ON COLUMN manifests.total_size IS 'bytes that are stored: of the payload, the configuration and the layers; of an index, of its manifests without theirs';

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
    PRIMARY KEY (repository_id, top_level_namespace_id, parent_id, child_id),
    FOREIGN KEY (top_level_namespace_id, repository_id, parent_id)
        REFERENCES manifests (top_level_namespace_id, repository_id, id) ON DELETE CASCADE,
    FOREIGN KEY (top_level_namespace_id, repository_id, child_id)
        REFERENCES manifests (top_level_namespace_id, repository_id, id) DEFERRABLE INITIALLY DEFERRED
) PARTITION BY HASH (top_level_namespace_id);

CREATE INDEX manifest_references_child_id_idx
    ON manifest_references (child_id, repository_id, top_level_namespace_id);

-- missing_children has the manifests that a sparse index lists and that its repository doesn't
-- have. For example, a client that mirrors one platform pushes an index without its other
-- manifests, if manifests.sparse_indexes allows it. When the sparse index is deleted, its rows
-- are deleted too. When a missing manifest is pushed, its row becomes a row of
-- manifest_references, so that garbage collection keeps the manifest while the index lists it.
CREATE TABLE missing_children (
    top_level_namespace_id bigint NOT NULL,
    repository_id          bigint NOT NULL,
    parent_id              bigint NOT NULL,
    child_digest           bytea NOT NULL,
    PRIMARY KEY (child_digest, repository_id, top_level_namespace_id, parent_id),
    FOREIGN KEY (top_level_namespace_id, repository_id, parent_id)
        REFERENCES manifests (top_level_namespace_id, repository_id, id) ON DELETE CASCADE
);
COMMENT ON TABLE missing_children IS 'manifests that an index lists and its repository does not have';
COMMENT ON COLUMN missing_children.parent_id IS 'the index';
COMMENT ON COLUMN missing_children.child_digest IS 'digest of the manifest that is missing';

CREATE INDEX missing_children_parent_id_idx ON missing_children (parent_id, repository_id, top_level_namespace_id);

CREATE SEQUENCE layers_id_seq;

CREATE TABLE layers (
    top_level_namespace_id bigint NOT NULL,
    repository_id          bigint NOT NULL,
    id                     bigint NOT NULL DEFAULT nextval('layers_id_seq'),
    manifest_id            bigint NOT NULL,
    digest                 bytea NOT NULL,
    size                   bigint NOT NULL,
    media_type             text NOT NULL,
    blob_size              bigint,
    PRIMARY KEY (id, repository_id, top_level_namespace_id),
    UNIQUE (top_level_namespace_id, repository_id, manifest_id, digest) INCLUDE (blob_size),
    FOREIGN KEY (top_level_namespace_id, repository_id, manifest_id)
        REFERENCES manifests (top_level_namespace_id, repository_id, id) ON DELETE CASCADE,
    FOREIGN KEY (digest) REFERENCES blobs (digest)
) PARTITION BY HASH (top_level_namespace_id);
COMMENT ON COLUMN layers.size IS 'bytes, as the manifest declares them; blobs.size is what is stored';
COMMENT ON COLUMN layers.blob_size IS 'size in blobs; NULL: look there. Who adds up what manifests store reads it with the index on manifest_id';

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
    expires_at             timestamptz,
    immutable              boolean NOT NULL DEFAULT false,
    CHECK (NOT immutable OR expires_at IS NULL),
    PRIMARY KEY (repository_id, top_level_namespace_id, name),
    FOREIGN KEY (top_level_namespace_id, repository_id, manifest_id)
        REFERENCES manifests (top_level_namespace_id, repository_id, id)
) PARTITION BY HASH (top_level_namespace_id);
COMMENT ON COLUMN tags.expires_at IS 'when the tag is to be deleted; a push clears it, or sets it by a label of the image';
COMMENT ON COLUMN tags.immutable IS 'nobody may move or delete the tag, as if a rule protected it';

ALTER SEQUENCE tags_id_seq OWNED BY tags.id;

CREATE INDEX tags_manifest_id_idx ON tags (manifest_id, repository_id, top_level_namespace_id);
-- The tags of a repository in the order in which they were pushed.
CREATE INDEX tags_pushed_idx ON tags (repository_id, (COALESCE(updated_at, created_at)), name);
CREATE INDEX tags_expires_at_idx ON tags (expires_at) WHERE expires_at IS NOT NULL;

-- The labels and the platform of an image are in its configuration, a blob in the store. Policies
-- of auto-pruning with the selectors labels and platforms need them, so the pruner reads the
-- configurations of a repository to which such a policy applies, and keeps here what it has read.
-- A blob never changes, so a row without a problem stays right as long as the blob exists. A push
-- writes no row: registries without such policies pay nothing.
--
-- The foreign key deletes the row with the blob. Only the pruner inserts rows: it locks the blobs'
-- rows FOR KEY SHARE, in the order of their digests and without any other lock.
CREATE TABLE configurationattributes (
    digest   bytea PRIMARY KEY REFERENCES blobs (digest) ON DELETE CASCADE,
    platform text COLLATE "C" NOT NULL DEFAULT '',
    labels   text NOT NULL DEFAULT '',
    problem  text NOT NULL DEFAULT '',
    read_at  timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE configurationattributes IS 'what configurations of images say, as far as policies of auto-pruning have needed it';
COMMENT ON COLUMN configurationattributes.platform IS 'os/architecture or os/architecture/variant in lower case; empty: it names none';
COMMENT ON COLUMN configurationattributes.labels IS 'a JSON object, not jsonb, since a label may have the character U+0000; empty: no labels';
COMMENT ON COLUMN configurationattributes.problem IS 'why platform and labels are not known; the pruner reads the configuration again later. Empty: they are known';

-- ---------------------------------------------------------------------------------------------
-- Uploads and imports

-- A row of uploads owns every object in the blob store whose storage key begins with the row's
-- storage_key. This ends when the upload ends: one of the objects may become a blob's, and the
-- others become pending deletions.
-- repository_id  is set when the upload's state is first saved, if the repository exists, and
--          else when it is next saved. When the repository is deleted, loose foreign keys cancel
--          the upload, and the reaper then deletes its row and objects. An upload that is saved and
--          has no repository_id yet is cancelled by the deletion itself, by its path
-- status   1: active, 2: cancelled
-- attempt  the fencing token: each claim and each save of the upload raises it. A request can
--          save the upload only while attempt has the value that the request's claim has set
--          or, if the request made no claim, that the request has read
-- numbers  how many numbers were reserved for the names of objects and parts. No number is
--          reserved twice
-- tail     the bytes of an upload that is so small that no object was written for it
-- namespace_id is set when the state is first saved and when a namespace with a quota is asked
--          for room: what its unfinished uploads take is limited by the quota's bytes
-- expected how many bytes the upload may have when the request that has claimed it ends; the
--          quota counts the greater of size and expected
-- promised_until is set while such a request runs, which renews it. When it is over, the request's
--          process is dead or was cut off, and only size counts
-- client and account say who has started the upload, so that any replica can count the open
-- uploads of a client and of an account
CREATE TABLE uploads (
    id            uuid PRIMARY KEY,
    repository    text COLLATE "C" NOT NULL,
    repository_id bigint,
    storage_key   text COLLATE "C" NOT NULL UNIQUE,
    status        smallint NOT NULL DEFAULT 1,
    algorithm     text NOT NULL DEFAULT 'sha256',
    hash_state    bytea,
    size          bigint NOT NULL DEFAULT 0,
    store_state   bytea,
    tail          bytea,
    last_from     bigint NOT NULL DEFAULT 0,
    last_head     bytea,
    attempt       bigint NOT NULL DEFAULT 0,
    numbers       bigint NOT NULL DEFAULT 0,
    namespace_id  bigint,
    expected      bigint NOT NULL DEFAULT 0,
    promised_until timestamptz,
    client        text COLLATE "C",
    account       text COLLATE "C",
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now()
);
COMMENT ON COLUMN uploads.last_from IS 'offset of the first byte that the last saved request brought';
COMMENT ON COLUMN uploads.last_head IS 'the first bytes that the last saved request brought, by which a repeat of it is recognised';
COMMENT ON COLUMN uploads.client IS 'address whose limit on open uploads counts this one; NULL: none';
COMMENT ON COLUMN uploads.account IS 'account whose limit on open uploads counts this one; NULL: none';

CREATE INDEX uploads_updated_at_idx ON uploads (updated_at);
CREATE INDEX uploads_repository_id_idx ON uploads (repository_id, status) WHERE repository_id IS NOT NULL;
CREATE INDEX uploads_without_repository_idx ON uploads (repository) WHERE repository_id IS NULL AND repository <> '';
CREATE INDEX uploads_namespace_id_idx ON uploads (namespace_id) WHERE namespace_id IS NOT NULL;
CREATE INDEX uploads_promised_until_idx ON uploads (promised_until) WHERE promised_until IS NOT NULL;
CREATE INDEX uploads_cancelled_idx ON uploads (id) WHERE status = 2;
CREATE INDEX uploads_client_idx ON uploads (client) WHERE client IS NOT NULL;
CREATE INDEX uploads_account_idx ON uploads (account) WHERE account IS NOT NULL;

-- An import takes over the storage of another registry without copying it: the registry's files
-- become objects under their paths, which contain a "/". Until the import is finished, the other
-- registry may still serve these files, so nothing may delete them.
--
-- imports has the storages that were imported. source is what the keys of a storage's objects begin
-- with. Until finished_at, these objects are foreign.
CREATE TABLE imports (
    source      text COLLATE "C" PRIMARY KEY,
    format      text NOT NULL,
    begun_at    timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz
);

-- ---------------------------------------------------------------------------------------------
-- Garbage collection
--
-- The queues are filled and emptied all the time. Therefore autovacuum is set to vacuum a queue
-- after a fixed number of dead rows, not after a share of its rows: otherwise each worker that
-- claims rows would scan the dead rows of the work before.

-- gc_blobs_configurations and gc_blobs_layers say which manifests and layers reference a blob.
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
-- foreign key check. If a reviewer finds that a queued blob or manifest doesn't exist any more,
-- it deletes the row from the queue. The indexes on review_after have the order in which
-- reviewers claim rows.
CREATE TABLE gc_blob_review_queue (
    digest       bytea PRIMARY KEY,
    review_after timestamptz NOT NULL DEFAULT now() + interval '1 day',
    review_count integer NOT NULL DEFAULT 0,
    created_at   timestamptz NOT NULL DEFAULT now(),
    event        text NOT NULL,
    set_aside_at timestamptz,
    last_error   text
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);

CREATE INDEX gc_blob_review_queue_review_after_idx
    ON gc_blob_review_queue (review_after, digest) WHERE set_aside_at IS NULL;
CREATE INDEX gc_blob_review_queue_set_aside_at_idx
    ON gc_blob_review_queue (set_aside_at) WHERE set_aside_at IS NOT NULL;

-- Policies of auto-pruning may say how long a manifest that nothing references stays, beyond the
-- review delay (keepUntagged). That counts from the last event, whose time is in unused_since. A
-- review that keeps such a manifest sets the row's event to keep_untagged; the next event replaces
-- both, and the time then counts from there.
CREATE TABLE gc_manifest_review_queue (
    top_level_namespace_id bigint NOT NULL,
    repository_id          bigint NOT NULL,
    manifest_id            bigint NOT NULL,
    review_after           timestamptz NOT NULL DEFAULT now() + interval '1 day',
    review_count           integer NOT NULL DEFAULT 0,
    created_at             timestamptz NOT NULL DEFAULT now(),
    event                  text NOT NULL,
    unused_since           timestamptz,
    set_aside_at           timestamptz,
    last_error             text,
    PRIMARY KEY (manifest_id, repository_id, top_level_namespace_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);
COMMENT ON COLUMN gc_manifest_review_queue.unused_since IS 'time of the last event: since when nothing references the manifest, if nothing does';

CREATE INDEX gc_manifest_review_queue_review_after_idx
    ON gc_manifest_review_queue (review_after, top_level_namespace_id, repository_id, manifest_id)
    WHERE set_aside_at IS NULL;
CREATE INDEX gc_manifest_review_queue_set_aside_at_idx
    ON gc_manifest_review_queue (set_aside_at) WHERE set_aside_at IS NOT NULL;

-- A deleted manifest may be the subject of any number of referrers. The transaction that
-- deletes the manifest queues up to a hundred of its referrers for review. If there are more,
-- it inserts a row into gc_subject_review_queue. Garbage collection later reads this row and
-- queues the other referrers in batches.
CREATE TABLE gc_subject_review_queue (
    top_level_namespace_id bigint NOT NULL,
    repository_id          bigint NOT NULL,
    subject_digest         bytea NOT NULL,
    next_id                bigint NOT NULL,
    review_after           timestamptz NOT NULL,
    created_at             timestamptz NOT NULL DEFAULT now(),
    expand_after           timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (subject_digest, repository_id, top_level_namespace_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);
COMMENT ON TABLE gc_subject_review_queue IS 'deleted manifests of whose referrers some are still to be queued for review';
COMMENT ON COLUMN gc_subject_review_queue.next_id IS 'referrers with a lower id are in gc_manifest_review_queue, or were reviewed';
COMMENT ON COLUMN gc_subject_review_queue.review_after IS 'when the referrers may be reviewed';
COMMENT ON COLUMN gc_subject_review_queue.created_at IS 'when the subject was deleted';
COMMENT ON COLUMN gc_subject_review_queue.expand_after IS 'when the next page of referrers is to be queued';

CREATE INDEX gc_subject_review_queue_expand_after_idx ON gc_subject_review_queue (expand_after);

-- gc_review_after_defaults has the delays of reviews. An operator may change the column "value"
-- in the database. The column "configured" has the delay that a process has last written from a
-- configuration: a process that starts writes a delay only if its configuration differs from this
-- column, so it doesn't overwrite what an operator has set here. NULL means that no such delay is
-- known; then the delay in the table stays.
CREATE TABLE gc_review_after_defaults (
    event      text PRIMARY KEY,
    value      interval NOT NULL CHECK (value >= interval '0'),
    configured interval
);
COMMENT ON COLUMN gc_review_after_defaults.value IS 'the delay after the event; may be changed at any time';
COMMENT ON COLUMN gc_review_after_defaults.configured IS 'the delay of the configuration that was last written to value';

-- A row of gc_doomed_objects owns objects that are to be deleted from the store. If of_upload
-- is set, storage_key is a prefix: all objects whose keys begin with it are deleted, except
-- the object whose key is in the column keep. again_at is when they are deleted a second time,
-- because a request that was running at the first deletion may have written another object. At
-- again_at no such request can be running any more.
--
-- "sweeping" says that a sweeper has claimed the pending deletion at least once. The setting
-- gc.keep_doomed is how long the objects of deleted blobs are kept: a sweeper may claim the
-- pending deletion of such an object for the first time only when gc.keep_doomed has passed
-- since delete_after. From delete_after on, it may claim any pending deletion that was claimed
-- before, and the pending deletion of an upload's objects. Each of these two cases has an index.
CREATE TABLE gc_doomed_objects (
    storage_key  text COLLATE "C" PRIMARY KEY,
    of_upload    boolean NOT NULL DEFAULT false,
    keep         text COLLATE "C",
    size         bigint NOT NULL DEFAULT 0,
    doomed_at    timestamptz NOT NULL DEFAULT now(),
    delete_after timestamptz NOT NULL DEFAULT now(),
    again_at     timestamptz,
    sweeping     boolean NOT NULL DEFAULT false,
    attempts     integer NOT NULL DEFAULT 0,
    last_error   text
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);

CREATE INDEX gc_doomed_objects_kept_idx ON gc_doomed_objects (delete_after) WHERE NOT (of_upload OR sweeping);
CREATE INDEX gc_doomed_objects_delete_after_idx ON gc_doomed_objects (delete_after) WHERE of_upload OR sweeping;
CREATE INDEX gc_doomed_objects_failing_idx ON gc_doomed_objects (doomed_at) WHERE attempts > 0;
-- In rows with again_at = delete_after, the objects were deleted once, and are deleted a second
-- time when no request can write them any more. The status of garbage collection counts these
-- rows separately from the rows whose first deletion is to come. Therefore each row is in one of
-- these two indexes.
CREATE INDEX gc_doomed_objects_first_idx ON gc_doomed_objects (storage_key) WHERE again_at IS DISTINCT FROM delete_after;
CREATE INDEX gc_doomed_objects_again_idx ON gc_doomed_objects (storage_key) WHERE again_at = delete_after;

-- gc_foreign_objects has the foreign objects (see imports) that no blob names any more. They are
-- what gc_doomed_objects would have if they weren't foreign. When the imports are finished, they
-- move there.
CREATE TABLE gc_foreign_objects (
    storage_key text COLLATE "C" PRIMARY KEY,
    size        bigint NOT NULL DEFAULT 0,
    doomed_at   timestamptz NOT NULL DEFAULT now()
);

-- gc_activity counts what garbage collection has deleted, minute by minute, for all replicas
-- together.
CREATE TABLE gc_activity (
    minute             timestamptz PRIMARY KEY,
    manifests_reviewed bigint NOT NULL DEFAULT 0,
    manifests_deleted  bigint NOT NULL DEFAULT 0,
    blobs_reviewed     bigint NOT NULL DEFAULT 0,
    blobs_deleted      bigint NOT NULL DEFAULT 0,
    objects_swept      bigint NOT NULL DEFAULT 0,
    bytes_swept        bigint NOT NULL DEFAULT 0
);

-- ---------------------------------------------------------------------------------------------
-- The audit log: who did what to which repository, and from which address
--
-- The audit log is partitioned by month, so that an old month can be dropped as a whole. A
-- worker makes the partitions of coming months in advance. The default partition receives the
-- entries of a month whose partition is missing, so that no insert fails. Each entry keeps its
-- repository's name; when the repository is deleted, a loose foreign key clears repository_id.
--
-- xid is the transaction that wrote the entry. Workers read entries in the order of (xid, id),
-- up to the oldest transaction that is still open. In the order of id or time alone, a worker
-- would miss entries that are committed after it has read later ones.
--
-- Pulls of the same manifest by one client within a second are written as one entry, whose
-- column "pulls" has the number of these pulls. counted_by says which worker counts a pull for
-- the statistics: the worker of the audit log ("audit") or of Redis ("redis"); pulls that aren't
-- counted, such as those of scanners and mirrors, have "none". NULL means that this isn't decided
-- yet. redis_seq is the number that Redis gave a pull when it counted the pull. From this number
-- a worker can tell whether the statistics have the pull already. So if Redis loses counts, the
-- worker counts the missing pulls from the audit log.

CREATE SEQUENCE auditlog_id_seq;

CREATE TABLE auditlog (
    id            bigint NOT NULL DEFAULT nextval('auditlog_id_seq'),
    time          timestamptz NOT NULL DEFAULT now(),
    first_time    timestamptz,
    xid           xid8 NOT NULL DEFAULT pg_current_xact_id(),
    kind          text COLLATE "C" NOT NULL,
    actor         text COLLATE "C",
    address       text COLLATE "C",
    port          integer,
    user_agent    text,
    request_id    text COLLATE "C",
    namespace     text COLLATE "C",
    namespace_id  bigint,
    repository    text COLLATE "C",
    repository_id bigint,
    tag           text COLLATE "C",
    digest        bytea,
    policy        uuid,
    run           uuid,
    detail        jsonb,
    pulls         integer NOT NULL DEFAULT 1,
    later         bytea,
    counted_by    text COLLATE "C" CHECK (counted_by IN ('audit', 'redis', 'none')),
    redis_seq     bigint,
    PRIMARY KEY (time, id)
) PARTITION BY RANGE (time);
COMMENT ON COLUMN auditlog.time IS 'when it happened; of several pulls, the last';
COMMENT ON COLUMN auditlog.namespace_id IS 'tells the namespace from others that have had its name; see routines/auditlog.sql';
COMMENT ON COLUMN auditlog.first_time IS 'of several pulls, the first; else NULL';
COMMENT ON COLUMN auditlog.port IS 'the client''s, of a pull by digest; of several, that of the first';
COMMENT ON COLUMN auditlog.pulls IS 'how many pulls the entry is of; 1 for other kinds';
COMMENT ON COLUMN auditlog.later IS 'of several pulls by digest, those behind the first: microseconds since the one before, and port, as varints';

ALTER SEQUENCE auditlog_id_seq OWNED BY auditlog.id;

-- Inserts into the audit log must be fast, so it has only indexes that some query needs.
-- The primary key lists all entries by time.
CREATE INDEX auditlog_repository_id_idx ON auditlog (repository_id, time, id) WHERE repository_id IS NOT NULL;
CREATE INDEX auditlog_namespace_idx ON auditlog (namespace, time, id) WHERE namespace IS NOT NULL;
-- Finds rare kinds; it leaves out pulls, which are most entries.
CREATE INDEX auditlog_kind_idx ON auditlog (kind, time, id) WHERE kind <> 'pull_repo';
-- An undo reads what its run has deleted.
CREATE INDEX auditlog_run_idx ON auditlog (run, time, id) WHERE run IS NOT NULL;
-- For the statistics of pulls, and for notices of pulls.
CREATE INDEX auditlog_pulls_idx ON auditlog (xid, id) WHERE kind = 'pull_repo';
-- For notices of changes.
CREATE INDEX auditlog_changes_idx ON auditlog (xid, id)
    WHERE kind IN ('push_repo', 'create_tag', 'move_tag', 'revert_tag', 'delete_tag', 'delete_manifest', 'delete_repo', 'autoprune_tag_delete');
-- The history of tags is read from the audit log. auditlog_tag_ends_idx finds the entries in
-- which a tag of a repository was moved or deleted; auditlog_tags_idx finds all entries of one
-- tag.
CREATE INDEX auditlog_tag_ends_idx ON auditlog (repository_id, time, id)
    WHERE repository_id IS NOT NULL AND kind IN ('move_tag', 'revert_tag', 'delete_tag', 'autoprune_tag_delete');
CREATE INDEX auditlog_tags_idx ON auditlog (repository_id, tag, time, id)
    WHERE repository_id IS NOT NULL AND tag IS NOT NULL
        AND kind IN ('push_repo', 'create_tag', 'move_tag', 'revert_tag', 'delete_tag', 'autoprune_tag_delete');

CREATE TABLE partitions.auditlog_default PARTITION OF auditlog DEFAULT;

-- Some clients pull in two requests: HEAD asks for a tag, and GET fetches by digest the
-- manifest to which the tag points. Different processes may answer these requests. The worker
-- that counts pulls from the audit log counts both requests as one pull, so HEAD requests are
-- stored in the database too. A HEAD request isn't a pull: it is stored in pullheads and not
-- in auditlog, and is deleted as soon as the worker has read it.
--
-- client identifies the client and the manifest: it is a hash of account, address, User-Agent,
-- repository and manifest. port is the port of the client's connection; audit entries of pulls
-- by digest have this column too. Pulls and HEADs are read together in the order of (xid, id),
-- so their ids are from one sequence. A row with used = true isn't a HEAD but a pull by
-- digest, which Redis joined with a HEAD before Redis became unavailable; it tells the worker
-- not to join this pull again.
CREATE TABLE pullheads (
    id            bigint PRIMARY KEY DEFAULT nextval('auditlog_id_seq'),
    xid           xid8 NOT NULL DEFAULT pg_current_xact_id(),
    time          timestamptz NOT NULL,
    first_time    timestamptz,
    client        bytea NOT NULL,
    repository_id bigint NOT NULL,
    tag           text COLLATE "C" NOT NULL,
    port          integer NOT NULL,
    later         bytea,
    used          boolean NOT NULL DEFAULT false
);
COMMENT ON COLUMN pullheads.time IS 'of the last, where the row is of several HEAD requests';
COMMENT ON COLUMN pullheads.first_time IS 'as in auditlog';
COMMENT ON COLUMN pullheads.later IS 'as in auditlog';

CREATE INDEX pullheads_xid_idx ON pullheads (xid, id);

-- ---------------------------------------------------------------------------------------------
-- Auto-pruning: policies, tasks, runs, and the rules that protect tags
--
-- Policies and tasks have a foreign key to their namespace and are deleted with it. The
-- columns of Quay's published schema have the same names and types, except that namespace_id
-- is a bigint. The rows of a run stay when the namespace is deleted, like the audit log.
--
-- A new or changed policy may have a grace period: it deletes nothing before active_from, nor
-- before a run has announced in the namespace what the policy would delete.
--
-- The column policies_version of a task changes whenever a policy of its namespace, or of one
-- of the namespace's repositories, changes. The versions of the registry's default policies
-- and of the protection rules are in the table settings. A worker locks these versions while
-- it deletes tags, so that it deletes none by a policy that was changed meanwhile.

CREATE TABLE namespaceautoprunepolicy (
    uuid         character varying(225) PRIMARY KEY,
    namespace_id bigint NOT NULL REFERENCES top_level_namespaces (id) ON DELETE CASCADE,
    policy       text NOT NULL,
    version      bigint NOT NULL DEFAULT 1,
    rule_version bigint NOT NULL DEFAULT 1,
    active_from  timestamptz,
    created_at   timestamptz NOT NULL DEFAULT now(),
    updated_at   timestamptz NOT NULL DEFAULT now(),
    confirmed    text[] NOT NULL DEFAULT '{*}'
);
COMMENT ON COLUMN namespaceautoprunepolicy.confirmed IS 'codes of the warnings that were confirmed when it was saved; *: any, nobody is asked';
COMMENT ON COLUMN namespaceautoprunepolicy.active_from IS 'end of the grace period; NULL: the policy has none';

CREATE INDEX namespaceautoprunepolicy_namespace_id_idx ON namespaceautoprunepolicy (namespace_id);

CREATE TABLE repositoryautoprunepolicy (
    uuid          character varying(225) PRIMARY KEY,
    namespace_id  bigint NOT NULL REFERENCES top_level_namespaces (id) ON DELETE CASCADE,
    repository_id bigint NOT NULL REFERENCES repositories (id) ON DELETE CASCADE,
    policy        text NOT NULL,
    version       bigint NOT NULL DEFAULT 1,
    rule_version bigint NOT NULL DEFAULT 1,
    active_from   timestamptz,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now(),
    confirmed    text[] NOT NULL DEFAULT '{*}'
);

CREATE INDEX repositoryautoprunepolicy_namespace_id_idx ON repositoryautoprunepolicy (namespace_id);
CREATE INDEX repositoryautoprunepolicy_repository_id_idx ON repositoryautoprunepolicy (repository_id);

-- These indexes let each review of manifests find out cheaply that no policy has keepUntagged.
-- Their condition is that of the statement in package gc (lockHolds).
CREATE INDEX namespaceautoprunepolicy_untagged_idx ON namespaceautoprunepolicy (namespace_id) WHERE policy LIKE '%"keepUntagged"%';
CREATE INDEX repositoryautoprunepolicy_untagged_idx ON repositoryautoprunepolicy (namespace_id) WHERE policy LIKE '%"keepUntagged"%';

-- defaultautoprunepolicy has the registry's default policies. They apply to each namespace
-- that has no policies of its own.
CREATE TABLE defaultautoprunepolicy (
    uuid        character varying(225) PRIMARY KEY,
    policy      text NOT NULL,
    version     bigint NOT NULL DEFAULT 1,
    rule_version bigint NOT NULL DEFAULT 1,
    setting     boolean NOT NULL DEFAULT false,
    active_from timestamptz,
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now(),
    confirmed    text[] NOT NULL DEFAULT '{*}'
);
COMMENT ON COLUMN defaultautoprunepolicy.setting IS 'the policy is that of autoprune.default_policy, and applies beside namespaces'' own';

CREATE UNIQUE INDEX defaultautoprunepolicy_setting_idx ON defaultautoprunepolicy (setting) WHERE setting;

-- Namespaces that refuse the defaults.
CREATE TABLE autoprunewithoutdefaults (
    namespace_id bigint PRIMARY KEY REFERENCES top_level_namespaces (id) ON DELETE CASCADE
);

-- Repositories in which the policies of the namespace and of the registry delete nothing, until a
-- time or, if that is NULL, until somebody ends it.
CREATE TABLE autopruneexceptions (
    repository_id bigint PRIMARY KEY REFERENCES repositories (id) ON DELETE CASCADE,
    until         timestamptz,
    created_at    timestamptz NOT NULL DEFAULT now()
);

-- Requests to free bytes. The namespace's next run, whose id is in the column run, deletes the tags
-- up to a place in the order of last uses: see autoprune/free.go.
CREATE TABLE autoprunefree (
    namespace_id  bigint PRIMARY KEY REFERENCES top_level_namespaces (id) ON DELETE CASCADE,
    id            uuid NOT NULL,
    unused_for    text NOT NULL,
    known         boolean NOT NULL,
    at            timestamptz NOT NULL,
    repository_id bigint NOT NULL,
    name          text NOT NULL,
    since         timestamptz NOT NULL,
    run           uuid,
    created_at    timestamptz NOT NULL DEFAULT now()
);

-- lease and leased_until say which worker works on the task and until when; after leased_until
-- any worker may take the task. If a run needs several time slices, the next time slice
-- continues with the repositories whose ids are greater than next_repository. "asked" is set if
-- a client requests a run of auto-pruning in the namespace, or changes a policy, while another
-- run of the namespace is in progress. When that run ends, a further run of the namespace begins.
CREATE TABLE autoprunetaskstatus (
    namespace_id     bigint PRIMARY KEY REFERENCES top_level_namespaces (id) ON DELETE CASCADE,
    last_ran_ms      bigint,
    status           text,
    policies_version bigint NOT NULL DEFAULT 0,
    lease            uuid,
    leased_until     timestamptz,
    run              uuid,
    next_repository  bigint NOT NULL DEFAULT 0,
    asked            boolean NOT NULL DEFAULT false
);

CREATE INDEX autoprunetaskstatus_last_ran_ms_idx ON autoprunetaskstatus (last_ran_ms NULLS FIRST);
CREATE INDEX autoprunetaskstatus_unfinished_idx ON autoprunetaskstatus (last_ran_ms NULLS FIRST) WHERE run IS NOT NULL;

-- Successive runs of a namespace that found nothing to delete share one row, whose column
-- "times" has the number of these runs. Policies may only observe, or wait for a window of time,
-- or ask for an approval; runs then record which tags would be deleted.
CREATE TABLE autopruneruns (
    id           uuid PRIMARY KEY,
    namespace_id bigint NOT NULL,
    namespace    text COLLATE "C" NOT NULL,
    state        text NOT NULL CHECK (state IN ('running', 'success', 'failure', 'stopped')),
    started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at     timestamptz,
    times        bigint NOT NULL DEFAULT 1,
    repositories bigint NOT NULL DEFAULT 0,
    tags         bigint NOT NULL DEFAULT 0,
    deleted      bigint NOT NULL DEFAULT 0,
    failed       bigint NOT NULL DEFAULT 0,
    restored     bigint NOT NULL DEFAULT 0,
    would        bigint NOT NULL DEFAULT 0,
    observed     jsonb,
    held         bigint NOT NULL DEFAULT 0,
    held_by      jsonb,
    tally        jsonb,
    limits       jsonb,
    asks         jsonb,
    busy         interval NOT NULL DEFAULT '0',
    announced    boolean NOT NULL DEFAULT false,
    notices      jsonb,
    error        text
);
COMMENT ON COLUMN autopruneruns.would IS 'tags that the run would have deleted if no policy observed or waited';
COMMENT ON COLUMN autopruneruns.observed IS 'an array of the first 100 of these tags; NULL: none';
COMMENT ON COLUMN autopruneruns.held IS 'tags that policies selected and that stayed because they are held';
COMMENT ON COLUMN autopruneruns.held_by IS 'number of these tags by the name of a reporter that holds them';
COMMENT ON COLUMN autopruneruns.tally IS 'while the run lasts: by policy, how many tags it would delete, as far as the run has come';
COMMENT ON COLUMN autopruneruns.limits IS 'while the run lasts: what it has counted and deleted by policies with a cap';
COMMENT ON COLUMN autopruneruns.asks IS 'an array of the policies that ask for an approval; NULL: none';

CREATE INDEX autopruneruns_namespace_idx ON autopruneruns (namespace, started_at, id);
CREATE INDEX autopruneruns_namespace_id_idx ON autopruneruns (namespace_id, started_at, id);
CREATE INDEX autopruneruns_started_at_idx ON autopruneruns (started_at, id);

-- autopruneruns_repositories says what a run did in a repository. It has rows only for
-- repositories in which the run deleted tags or failed. "tags" is how many tags the repository
-- had when the run began with this repository. If the run continues with it in another time
-- slice, it doesn't count the tags again.
CREATE TABLE autopruneruns_repositories (
    run           uuid NOT NULL REFERENCES autopruneruns (id) ON DELETE CASCADE,
    repository_id bigint NOT NULL,
    repository    text COLLATE "C" NOT NULL,
    tags          bigint NOT NULL DEFAULT 0,
    deleted       bigint NOT NULL DEFAULT 0,
    policies      jsonb NOT NULL DEFAULT '{}',
    error         text,
    PRIMARY KEY (run, repository_id)
);

-- When an undo restores a tag that a run deleted, the policies that selected the tag don't
-- select it again until somebody ends the exemption, the tag is deleted, or the policy's rule
-- changes: version is the policy's when the tag was restored, and rule_version of a policy the
-- version since which it selects what it selects.
CREATE TABLE autopruneexemptions (
    repository_id bigint NOT NULL,
    tag_id        bigint NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    policy        character varying(225) NOT NULL,
    version       bigint NOT NULL,
    PRIMARY KEY (repository_id, tag_id, policy)
);

-- autopruneannouncements says which version of a policy was last announced in a namespace. The
-- transaction that ends a run has locked the namespace's task when it announces a policy. A
-- foreign key to the namespace would make it wait for a transaction that deletes the namespace,
-- which waits for the task. So there is none, and housekeeping deletes the announcements of
-- deleted namespaces.
CREATE TABLE autopruneannouncements (
    policy       character varying(225) NOT NULL,
    namespace_id bigint NOT NULL,
    version      bigint NOT NULL,
    announced_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (policy, namespace_id)
);

CREATE INDEX autopruneannouncements_namespace_id_idx ON autopruneannouncements (namespace_id);

-- A policy rests in a namespace until somebody confirms what it surely wasn't meant to do, or until
-- the reporters report that it requires. "judged" says that it was judged before the first tag that
-- it deletes there. A row is of one version of the policy. There is no foreign key to the namespace,
-- for the reason that autopruneannouncements has none. Housekeeping deletes the rows of deleted
-- namespaces and policies.
CREATE TABLE autoprunerests (
    policy       character varying(225) NOT NULL,
    namespace_id bigint NOT NULL,
    version      bigint NOT NULL,
    warnings     jsonb,                           -- to confirm; NULL: none
    confirmed    text[] NOT NULL DEFAULT '{}',    -- codes of warnings that were confirmed in the namespace
    judged       boolean NOT NULL DEFAULT false,
    reporters    text[],                          -- required ones that were silent when the last run ended
    since        timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (policy, namespace_id)
);

CREATE INDEX autoprunerests_namespace_id_idx ON autoprunerests (namespace_id);

-- If a policy or a keep rule is taken away, what it kept from other policies stays for the grace
-- period: in a repository, a namespace (repository_id is 0) or, for the registry's defaults, wherever
-- these apply (both are 0).
CREATE TABLE autopruneuncovered (
    namespace_id  bigint NOT NULL,
    repository_id bigint NOT NULL,
    until         timestamptz NOT NULL,
    PRIMARY KEY (namespace_id, repository_id)
);

-- A policy may have a cap on how many tags a run deletes by it. Above the cap, the policy deletes
-- nothing and asks for an approval. autopruneasks has the policies that asked in the last run of
-- a namespace, and the approvals. It has no foreign key to the namespace, for the reason that
-- autopruneannouncements has none. Housekeeping deletes the rows of deleted namespaces and
-- policies.
CREATE TABLE autopruneasks (
    policy         character varying(225) NOT NULL,
    namespace_id   bigint NOT NULL,
    version        bigint NOT NULL,                    -- of the policy
    tags           bigint NOT NULL,                    -- that it would have deleted in the last run
    most           bigint NOT NULL,                    -- that its cap allows
    told           bigint NOT NULL,                    -- tags when a notice was last sent
    asked_at       timestamptz NOT NULL DEFAULT now(), -- when that notice was sent
    approved       bigint,                             -- how many tags it may delete in a run; NULL: not approved
    approved_until timestamptz,
    approved_run   uuid,                               -- the run that has deleted tags by the approval, which ends it
    PRIMARY KEY (policy, namespace_id)
);

CREATE INDEX autopruneasks_namespace_id_idx ON autopruneasks (namespace_id);

-- No policy deletes a tag that matches the pattern of a rule, and no client may delete or move
-- it. The pattern may match any part of a tag's name. A rule applies to one repository, to one
-- namespace, or to the whole registry.
CREATE TABLE tagprotectionrules (
    uuid          uuid PRIMARY KEY,
    namespace_id  bigint REFERENCES top_level_namespaces (id) ON DELETE CASCADE,
    repository_id bigint REFERENCES repositories (id) ON DELETE CASCADE,
    pattern       text NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    CHECK (namespace_id IS NOT NULL OR repository_id IS NULL)
);

CREATE INDEX tagprotectionrules_namespace_id_idx ON tagprotectionrules (namespace_id);
CREATE INDEX tagprotectionrules_repository_id_idx ON tagprotectionrules (repository_id);

-- ---------------------------------------------------------------------------------------------
-- Holds keep manifests that are deployed somewhere: see package hold
--
-- The lease is in the reporter's row, so a report that changes nothing updates one row however
-- many digests it has, and all holds of a reporter end together, by the clock.
--
-- holds has no foreign key to manifests, since a digest may be held before its manifest arrives.
-- It has none to holdreporters either: the check would double the time of a first report. The
-- view live_holds ignores the holds of a reporter that is gone, and the watcher deletes them in
-- pages.

CREATE TABLE holdreporters (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace_id   bigint REFERENCES top_level_namespaces (id) ON DELETE CASCADE,
    name           text COLLATE "C" NOT NULL,
    kind           text NOT NULL DEFAULT '',
    lease          interval NOT NULL,
    revision       bigint NOT NULL DEFAULT 0,
    digests        bigint NOT NULL DEFAULT 0,
    owner_id       bigint,
    account        text COLLATE "C",
    created_at     timestamptz NOT NULL DEFAULT now(),
    reported_at    timestamptz NOT NULL DEFAULT now(),
    expires_at     timestamptz NOT NULL,
    silent_told_at timestamptz,
    ended_told_at  timestamptz,
    cluster        text,
    unresolved     bigint NOT NULL DEFAULT 0,
    unresolved_first text[] NOT NULL DEFAULT '{}',
    postponed      interval NOT NULL DEFAULT '0',
    UNIQUE NULLS NOT DISTINCT (namespace_id, name)
);
COMMENT ON TABLE holdreporters IS 'who reports what is deployed: clusters, hosts, pipelines';
COMMENT ON COLUMN holdreporters.namespace_id IS 'where its holds are in force; NULL: in every namespace';
COMMENT ON COLUMN holdreporters.postponed IS 'by how much absences have postponed the end of the lease, and of what was left out: see holds.ends_at';
COMMENT ON COLUMN holdreporters.kind IS 'kubernetes, docker and so on: for people';
COMMENT ON COLUMN holdreporters.revision IS 'rises with each change of its digests';
COMMENT ON COLUMN holdreporters.digests IS 'number of its holds, with those that it has left out and that have not ended';
COMMENT ON COLUMN holdreporters.owner_id IS 'account that it belongs to, which may be deleted; NULL: it was made without access control';
COMMENT ON COLUMN holdreporters.account IS 'who sent the last report';
COMMENT ON COLUMN holdreporters.expires_at IS 'when its holds end, unless it reports again';
COMMENT ON COLUMN holdreporters.silent_told_at IS 'when it was told that no report has come for half of the lease; NULL: it was not';
COMMENT ON COLUMN holdreporters.ended_told_at IS 'when it was told that its holds have ended; NULL: it was not';

COMMENT ON COLUMN holdreporters.cluster IS 'what it reports of, such as the UID of a cluster; NULL: no report has said';
COMMENT ON COLUMN holdreporters.unresolved IS 'number of the images in its last whole list for which it found no digest';
COMMENT ON COLUMN holdreporters.unresolved_first IS 'the first of them: name and reason';

CREATE INDEX holdreporters_expires_at_idx ON holdreporters (expires_at);

CREATE TABLE holds (
    digest      bytea NOT NULL,
    reporter_id bigint NOT NULL,
    used_by     text NOT NULL DEFAULT '',
    since       timestamptz NOT NULL DEFAULT now(),
    ends_at     timestamptz,
    names       text[] NOT NULL DEFAULT '{}',
    PRIMARY KEY (digest, reporter_id)
);
COMMENT ON TABLE holds IS 'digests that reporters hold';
COMMENT ON COLUMN holds.used_by IS 'what uses it there, such as a pod: for people';
COMMENT ON COLUMN holds.ends_at IS 'when it ends, but for holdreporters.postponed, unless the reporter''s lease ends before: its reporter has left it out; NULL: with the lease';
COMMENT ON COLUMN holds.names IS 'names of images, such as those of tags, by which its reporter found it: it stays while one of them can''t be resolved; *: any';

CREATE INDEX holds_reporter_id_idx ON holds (reporter_id, digest);

CREATE VIEW live_holds AS
SELECT h.digest, h.used_by, h.since, r.id AS reporter_id, r.name AS reporter, r.namespace_id,
    LEAST(r.expires_at, h.ends_at + r.postponed) AS expires_at
FROM holds h JOIN holdreporters r ON r.id = h.reporter_id
WHERE r.expires_at > now() AND (h.ends_at IS NULL OR h.ends_at + r.postponed > now());

-- ---------------------------------------------------------------------------------------------
-- Quotas of namespaces: how many bytes, repositories and tags a namespace may have
--
-- namespacequotas has the limits and what the namespace uses. The triggers of routines/quotas.sql
-- change it. The row has no foreign key to its namespace, since each update would check it; a
-- loose foreign key deletes the row after the namespace. Half of each page is left free, so that
-- an update can write the row's new version beside the old one.
--
-- What a namespace uses is the sum of its row of namespacequotas and of its slots. A commit
-- changes one slot, so commits of one namespace wait for each other only if they use the same
-- slot, and for a row of namespacequotas only near a limit. routines/quotas.sql has the rules. A
-- new slot is closed, so that the first commit that adds something shares out the room.

CREATE TABLE namespacequotas (
    namespace_id       bigint PRIMARY KEY,
    id                 bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    bytes_limit        bigint CHECK (bytes_limit > 0),
    repositories_limit bigint CHECK (repositories_limit > 0),
    tags_limit         bigint CHECK (tags_limit > 0),
    hard_percent       integer CHECK (hard_percent BETWEEN 1 AND 100),
    bytes              bigint NOT NULL DEFAULT 0,
    repositories       bigint NOT NULL DEFAULT 0,
    tags               bigint NOT NULL DEFAULT 0,
    counted            boolean NOT NULL DEFAULT false,
    counts             bigint NOT NULL DEFAULT 0,
    recount            boolean NOT NULL DEFAULT false,
    created_at         timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);
COMMENT ON TABLE namespacequotas IS 'limits of namespaces and what the namespaces use; without a row, a namespace has no limits and nothing is counted';
COMMENT ON COLUMN namespacequotas.id IS 'tells a quota from a later one of the same namespace; in the URLs of the management API';
COMMENT ON COLUMN namespacequotas.bytes_limit IS 'limit on the blobs of the namespace, each counted once; NULL: none';
COMMENT ON COLUMN namespacequotas.hard_percent IS 'the least percent of namespacequotalimits of the kind Reject: what would exceed this part of a limit is refused; NULL: nothing is refused';
COMMENT ON COLUMN namespacequotas.bytes IS 'what the namespace used when its slots were last added up; while counted is false, without what was there before the quota';
COMMENT ON COLUMN namespacequotas.counts IS 'how often the content was counted: a count is applied only if there was no other meanwhile';
COMMENT ON COLUMN namespacequotas.recount IS 'somebody has asked to count the content again';

CREATE TABLE namespacequotaslots (
    namespace_id      bigint NOT NULL REFERENCES namespacequotas (namespace_id) ON DELETE CASCADE,
    slot              integer NOT NULL CHECK (slot >= 0),
    bytes             bigint NOT NULL DEFAULT 0,
    repositories      bigint NOT NULL DEFAULT 0,
    tags              bigint NOT NULL DEFAULT 0,
    bytes_room        bigint NOT NULL DEFAULT -4611686018427387904,
    repositories_room bigint NOT NULL DEFAULT -4611686018427387904,
    tags_room         bigint NOT NULL DEFAULT -4611686018427387904,
    PRIMARY KEY (namespace_id, slot)
) WITH (fillfactor = 50);
COMMENT ON TABLE namespacequotaslots IS 'what commits have changed of what namespaces with a quota use, since it was last added up in namespacequotas';
COMMENT ON COLUMN namespacequotaslots.bytes IS 'the change; negative if more was deleted than pushed';
COMMENT ON COLUMN namespacequotaslots.bytes_room IS 'up to which bytes may grow here; the rooms of all slots together are at most what is left of the hard limit';

CREATE TABLE namespacequotalimits (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace_id bigint NOT NULL REFERENCES namespacequotas (namespace_id) ON DELETE CASCADE,
    kind         text NOT NULL CHECK (kind IN ('Warning', 'Reject')),
    percent      integer NOT NULL CHECK (percent BETWEEN 1 AND 100),
    told         text[] NOT NULL DEFAULT '{}',
    refused      jsonb NOT NULL DEFAULT '{}',
    UNIQUE (namespace_id, kind, percent)
);
COMMENT ON TABLE namespacequotalimits IS 'what happens at which part of a quota: Warning sends a notice, Reject refuses what would exceed it';
COMMENT ON COLUMN namespacequotalimits.told IS 'of bytes, repositories and tags, those whose crossing of this limit was told by a notice';
COMMENT ON COLUMN namespacequotalimits.refused IS 'when something was last refused, of bytes, repositories or tags; kept to a minute';

-- ---------------------------------------------------------------------------------------------
-- Webhooks: the URLs that get notices of pushes, pulls, deletions and garbage collection in a
-- namespace, and the notices
--
-- A dispatcher reads the audit log in the order of (xid, id), up to the oldest transaction
-- that is still open, as the statistics of pulls do. In one transaction it writes notices, or
-- adds to counts, and moves webhookposition to the last entry that it has read.

CREATE TABLE webhooks (
    uuid            uuid PRIMARY KEY,
    namespace_id    bigint NOT NULL REFERENCES top_level_namespaces (id) ON DELETE CASCADE,
    title           text NOT NULL DEFAULT '',
    url             text NOT NULL,
    secret          text NOT NULL,
    events          text[] COLLATE "C" NOT NULL,
    enabled         boolean NOT NULL DEFAULT true,
    active_since    timestamptz NOT NULL DEFAULT clock_timestamp(),
    disabled_reason text,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON COLUMN webhooks.secret IS 'the key that notices are signed with; never shown again';
COMMENT ON COLUMN webhooks.active_since IS 'what happened before isn''t told: when the webhook was made, or last enabled';
COMMENT ON COLUMN webhooks.disabled_reason IS 'why the registry disabled it; NULL: somebody did, or it is enabled';

CREATE INDEX webhooks_namespace_id_idx ON webhooks (namespace_id);

-- webhooknotices has the notices to the webhooks of namespaces and to the registry's own webhook:
-- those that are to be sent, and those that were sent or given up lately.
--
-- A notice is inserted by the same transaction that makes the change which the notice reports.
-- next_attempt is when the notice is to be sent. A sender claims the notice before it sends
-- it: it moves next_attempt into the future, so that another sender takes the notice if the
-- first one dies, and writes a new id into lease. Only the sender whose id is in lease may
-- record that sending failed. attempts counts these claims. body is text and not jsonb,
-- because its bytes are signed and must be the same each time that the notice is sent.
--
-- webhook is the webhook to which the notice is sent; NULL means the URL in the configuration.
-- A notice is sent to the URL that the webhook or the configuration has when it is sent. The
-- column has no foreign key, so that deleting a webhook doesn't delete a long queue of
-- notices in one statement. The notices of a deleted webhook aren't sent, and are deleted in
-- batches.
--
-- When an export of the audit log ends, Purser calls a URL that the client has named. Such a
-- callback is a notice with the URL in the column url. Its column webhook has the notice's own
-- id, so that queries for the notices of a webhook, or of the URL in the configuration, don't
-- find it. Its columns account and namespace say for whom it counts: who has asked for it, and of
-- what, by their ids. They are '' for a client without an account, and for the whole registry.
CREATE TABLE webhooknotices (
    id           uuid PRIMARY KEY,
    webhook      uuid,
    url          text,
    account      text COLLATE "C",
    namespace    text COLLATE "C",
    event        text COLLATE "C" NOT NULL,
    body         text NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    attempts     integer NOT NULL DEFAULT 0,
    next_attempt timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease        uuid,
    last_error   text,
    delivered_at timestamptz,
    given_up_at  timestamptz,
    CHECK (delivered_at IS NULL OR given_up_at IS NULL)
);
COMMENT ON TABLE webhooknotices IS 'requests to webhooks that wait, or were delivered or given up lately';
COMMENT ON COLUMN webhooknotices.webhook IS 'of a namespace; NULL: the URL of the configuration';
COMMENT ON COLUMN webhooknotices.url IS 'of a callback, which belongs to no webhook; NULL: the webhook says where it goes';

CREATE INDEX webhooknotices_next_attempt_idx ON webhooknotices (next_attempt)
    WHERE delivered_at IS NULL AND given_up_at IS NULL AND webhook IS NULL;
CREATE INDEX webhooknotices_webhook_next_attempt_idx ON webhooknotices (webhook, next_attempt)
    WHERE delivered_at IS NULL AND given_up_at IS NULL AND webhook IS NOT NULL;
CREATE INDEX webhooknotices_callbacks_idx ON webhooknotices (next_attempt)
    WHERE delivered_at IS NULL AND given_up_at IS NULL AND url IS NOT NULL;
CREATE INDEX webhooknotices_webhook_idx ON webhooknotices (webhook, created_at, id) WHERE webhook IS NOT NULL;
CREATE INDEX webhooknotices_settled_idx ON webhooknotices ((coalesce(delivered_at, given_up_at)))
    WHERE delivered_at IS NOT NULL OR given_up_at IS NOT NULL;

-- webhookposition has one row. A dispatcher locks this row while it works, so that only one
-- dispatcher works at a time. The column "since" is the time from which events are reported:
-- events before this time produce no notices.
CREATE TABLE webhookposition (
    one       boolean PRIMARY KEY DEFAULT true CHECK (one),
    xid       xid8 NOT NULL DEFAULT '0',
    id        bigint NOT NULL DEFAULT 0,
    pulls_xid xid8 NOT NULL DEFAULT '0',
    pulls_id  bigint NOT NULL DEFAULT 0,
    since     timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO webhookposition DEFAULT VALUES;

-- Some events, such as pulls, are counted for a while and then reported by one notice. A row
-- of webhookcounts has the count for one webhook, event and repository.
CREATE TABLE webhookcounts (
    webhook    uuid NOT NULL REFERENCES webhooks (uuid) ON DELETE CASCADE,
    event      text COLLATE "C" NOT NULL,
    repository text COLLATE "C" NOT NULL,
    number     bigint NOT NULL,
    first_at   timestamptz NOT NULL,
    last_at    timestamptz NOT NULL,
    due_at     timestamptz NOT NULL,
    PRIMARY KEY (webhook, event, repository)
);

CREATE INDEX webhookcounts_due_at_idx ON webhookcounts (due_at);

-- A row of webhookcollected says how many manifests garbage collection has deleted in a
-- repository. The transaction that deletes the manifests writes this row if a webhook of the
-- namespace asks for this event. The dispatcher adds the number to webhookcounts and deletes
-- the row, in one transaction.
CREATE TABLE webhookcollected (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace_id bigint NOT NULL,
    repository   text COLLATE "C" NOT NULL,
    manifests    bigint NOT NULL,
    at           timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- ---------------------------------------------------------------------------------------------
-- Access control: accounts and their credentials, teams, grants, the keys that sign registry
-- tokens, sessions of browsers, failed log-ins, and certificates that ACME has issued
--
-- No secret of an account is stored as such. A password is stored as an argon2id hash. A secret
-- that Purser has generated has 160 random bits or more, so its SHA-256 can't be reversed by
-- guessing; it is stored as that, and is found by an index without computing a slow hash.

CREATE TABLE accounts (
    id                     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name                   text COLLATE "C" NOT NULL UNIQUE,
    kind                   text NOT NULL CHECK (kind IN ('user', 'robot')),
    top_level_namespace_id bigint REFERENCES top_level_namespaces ON DELETE CASCADE,
    source                 text NOT NULL DEFAULT 'local' CHECK (source IN ('local', 'htpasswd', 'oidc', 'ldap')),
    subject                text COLLATE "C",
    entry_id               text COLLATE "C",
    awaits_entry           boolean NOT NULL DEFAULT false,
    email                  text,
    description            text NOT NULL DEFAULT '',
    password_hash          text,
    superuser              boolean NOT NULL DEFAULT false,
    repository_patterns    text[],
    actions                text[],
    created_at             timestamptz NOT NULL DEFAULT now(),
    disabled_at            timestamptz,
    last_used_at           timestamptz,
    deleted_name           text COLLATE "C",
    CHECK ((kind = 'robot') = (top_level_namespace_id IS NOT NULL)),
    CHECK (kind = 'user' OR NOT superuser),
    CHECK (NOT awaits_entry OR source = 'ldap' AND subject IS NULL AND entry_id IS NULL)
);
COMMENT ON TABLE accounts IS 'people and robots';
COMMENT ON COLUMN accounts.name IS 'of a robot: namespace+name';
COMMENT ON COLUMN accounts.top_level_namespace_id IS 'of a robot: the namespace that it belongs to';
COMMENT ON COLUMN accounts.source IS 'who checks the password';
COMMENT ON COLUMN accounts.subject IS 'the account''s identity at its source: issuer and subject of OpenID Connect, or the DN of LDAP';
COMMENT ON COLUMN accounts.entry_id IS 'of LDAP: the id that the directory gave to the entry, which stays when the entry is renamed or moved; NULL: not known yet';
COMMENT ON COLUMN accounts.awaits_entry IS 'of LDAP: an administrator has taken its entry away, and it goes to the next entry that logs in by its name';
COMMENT ON COLUMN accounts.repository_patterns IS 'the only repositories that it may use; NULL: no such limit';
COMMENT ON COLUMN accounts.actions IS 'the only actions that it may do; NULL: no such limit';
COMMENT ON COLUMN accounts.last_used_at IS 'of its last log-in, to within some minutes';
COMMENT ON COLUMN accounts.deleted_name IS 'of a robot whose namespace is in the trash: the name that it had before; name is then one that nobody can use';

CREATE UNIQUE INDEX accounts_source_subject_idx ON accounts (source, subject) WHERE subject IS NOT NULL;
CREATE UNIQUE INDEX accounts_source_entry_id_idx ON accounts (source, entry_id) WHERE entry_id IS NOT NULL;
CREATE INDEX accounts_top_level_namespace_id_idx ON accounts (top_level_namespace_id, name);

CREATE TABLE credentials (
    id                  uuid PRIMARY KEY,
    account_id          bigint NOT NULL REFERENCES accounts ON DELETE CASCADE,
    kind                text NOT NULL CHECK (kind IN ('robot', 'personal', 'refresh', 'federated')),
    title               text NOT NULL DEFAULT '',
    secret_hash         bytea NOT NULL UNIQUE,
    repository_patterns text[],
    actions             text[],
    created_at          timestamptz NOT NULL DEFAULT now(),
    expires_at          timestamptz,
    last_used_at        timestamptz,
    password_state      bytea,
    confirmed_at        timestamptz
);
COMMENT ON TABLE credentials IS 'secrets that Purser has generated for accounts';
COMMENT ON COLUMN credentials.secret_hash IS 'SHA-256 of the secret';
COMMENT ON COLUMN credentials.password_state IS 'of a refresh token: a digest that says with which of the account''s passwords, one after the other, it was got';
COMMENT ON COLUMN credentials.confirmed_at IS 'of a refresh token: when the source of the account last said that this password is the account''s';

CREATE INDEX credentials_account_id_idx ON credentials (account_id, created_at);
CREATE INDEX credentials_expires_at_idx ON credentials (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE robotfederations (
    id         uuid PRIMARY KEY,
    account_id bigint NOT NULL REFERENCES accounts ON DELETE CASCADE,
    issuer     text NOT NULL,
    audience   text NOT NULL,
    claims     jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE robotfederations IS 'rules that let a token of another issuer log in as a robot';
COMMENT ON COLUMN robotfederations.claims IS 'names of claims, each with the pattern that its value must match';

CREATE INDEX robotfederations_account_id_idx ON robotfederations (account_id);

CREATE TABLE teams (
    id                     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    top_level_namespace_id bigint NOT NULL REFERENCES top_level_namespaces ON DELETE CASCADE,
    name                   text COLLATE "C" NOT NULL,
    role                   text CHECK (role IN ('reader', 'writer', 'maintainer', 'administrator')),
    description            text NOT NULL DEFAULT '',
    created_at             timestamptz NOT NULL DEFAULT now(),
    UNIQUE (top_level_namespace_id, name)
);
COMMENT ON COLUMN teams.role IS 'of its members in the namespace; NULL: none';

CREATE TABLE teammembers (
    team_id    bigint NOT NULL REFERENCES teams ON DELETE CASCADE,
    account_id bigint NOT NULL REFERENCES accounts ON DELETE CASCADE,
    synced     boolean NOT NULL DEFAULT false,
    PRIMARY KEY (team_id, account_id)
);
COMMENT ON COLUMN teammembers.synced IS 'a member by a group of OpenID Connect or LDAP, until a log-in without that group';

CREATE INDEX teammembers_account_id_idx ON teammembers (account_id, team_id);

CREATE TABLE teamgroups (
    team_id    bigint NOT NULL REFERENCES teams ON DELETE CASCADE,
    source     text NOT NULL CHECK (source IN ('oidc', 'ldap')),
    group_name text COLLATE "C" NOT NULL,
    PRIMARY KEY (source, group_name, team_id)
);
COMMENT ON TABLE teamgroups IS 'groups whose members become members of a team when they log in';

CREATE INDEX teamgroups_team_id_idx ON teamgroups (team_id);

CREATE TABLE grants (
    id                     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    top_level_namespace_id bigint NOT NULL REFERENCES top_level_namespaces ON DELETE CASCADE,
    repository_id          bigint REFERENCES repositories ON DELETE CASCADE,
    account_id             bigint REFERENCES accounts ON DELETE CASCADE,
    team_id                bigint REFERENCES teams ON DELETE CASCADE,
    role                   text NOT NULL CHECK (role IN ('reader', 'writer', 'maintainer', 'administrator')),
    created_at             timestamptz NOT NULL DEFAULT now(),
    CHECK (num_nonnulls(account_id, team_id) = 1),
    UNIQUE NULLS NOT DISTINCT (top_level_namespace_id, repository_id, account_id, team_id)
);
COMMENT ON TABLE grants IS 'roles of accounts and teams in a namespace or a repository';
COMMENT ON COLUMN grants.repository_id IS 'NULL: the role is in the whole namespace';

CREATE INDEX grants_account_id_idx ON grants (account_id, top_level_namespace_id) WHERE account_id IS NOT NULL;
CREATE INDEX grants_team_id_idx ON grants (team_id, top_level_namespace_id) WHERE team_id IS NOT NULL;
CREATE INDEX grants_repository_id_idx ON grants (repository_id);

CREATE TABLE stars (
    account_id    bigint NOT NULL REFERENCES accounts ON DELETE CASCADE,
    repository_id bigint NOT NULL REFERENCES repositories ON DELETE CASCADE,
    created_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (account_id, repository_id)
);
COMMENT ON TABLE stars IS 'repositories to which accounts have given a star; repositories.starred_at is the star of whoever is not logged in';

CREATE INDEX stars_repository_id_idx ON stars (repository_id);

CREATE TABLE tokenkeys (
    id          text COLLATE "C" PRIMARY KEY,
    private_key bytea NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    signs_from  timestamptz NOT NULL,
    signs_until timestamptz NOT NULL,
    valid_until timestamptz NOT NULL
);
COMMENT ON TABLE tokenkeys IS 'Ed25519 keys that sign registry tokens';
COMMENT ON COLUMN tokenkeys.signs_from IS 'no replica signs with it before, so that all of them know it by then';
COMMENT ON COLUMN tokenkeys.valid_until IS 'when the last token that it may have signed has expired';

CREATE TABLE sessions (
    secret_hash  bytea PRIMARY KEY,
    id           uuid NOT NULL UNIQUE,
    account_id   bigint NOT NULL REFERENCES accounts ON DELETE CASCADE,
    created_at   timestamptz NOT NULL DEFAULT now(),
    last_used_at timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz NOT NULL,
    address      text,
    user_agent   text,
    password_state bytea,
    confirmed_at   timestamptz
);
COMMENT ON TABLE sessions IS 'log-ins of browsers';
COMMENT ON COLUMN sessions.password_state IS 'as in credentials; NULL: the log-in was at an OpenID Connect provider, without a password';
COMMENT ON COLUMN sessions.confirmed_at IS 'as in credentials';

CREATE INDEX sessions_account_id_idx ON sessions (account_id);
CREATE INDEX sessions_expires_at_idx ON sessions (expires_at);

-- Failed log-ins are counted for a short time only, so the table needs no write-ahead log: after
-- a crash of PostgreSQL it is empty. The functions of routines/loginfailures.sql write it.
CREATE UNLOGGED TABLE loginfailures (
    subject    bytea PRIMARY KEY,
    failures   double precision NOT NULL,
    updated_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL
);
COMMENT ON TABLE loginfailures IS 'recent failed log-ins by account and by address, and where each account has logged in lately';
COMMENT ON COLUMN loginfailures.subject IS 'a (account), d (address) or p (an account at an address where it has logged in), for p 8 bytes of a hash that say whose it is, and 16 bytes of a hash';
COMMENT ON COLUMN loginfailures.failures IS 'failed log-ins and those in progress, as of updated_at; the number decays with time';
COMMENT ON COLUMN loginfailures.expires_at IS 'when the row says no more than a missing row, and may be deleted';

CREATE INDEX loginfailures_expires_at_idx ON loginfailures (expires_at);

CREATE TABLE acmecertificates (
    name       text COLLATE "C" PRIMARY KEY,
    content    bytea NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE acmecertificates IS 'accounts, certificates and challenges of ACME, which all replicas share';

-- Replicas exchange the requests that they have admitted by requestrates, so that limits on the
-- rate of requests hold for all replicas together. Its content is worth something for seconds
-- only, so the table needs no write-ahead log: after a crash of PostgreSQL it is empty.
CREATE UNLOGGED TABLE requestrates (
    subject  bytea PRIMARY KEY,
    empty_at timestamptz NOT NULL
);
COMMENT ON TABLE requestrates IS 'recent requests of clients and accounts at all replicas, if their rate is limited';
COMMENT ON COLUMN requestrates.subject IS 'd (address) or a (account), and 16 bytes of a hash';
COMMENT ON COLUMN requestrates.empty_at IS 'when the requests that were admitted so far are forgotten, at the limited rate; the row may be deleted then';

CREATE INDEX requestrates_empty_at_idx ON requestrates (empty_at);

-- ---------------------------------------------------------------------------------------------
-- Partitions, and what the planner is told about them
--
-- A repository belongs to one namespace. Without knowing that, the planner multiplies what the two
-- columns select. In a registry of many namespaces it then expects less than one row of any
-- repository, so that an index that leads to a whole repository seems as good as the index that
-- leads to a single row, also in checks of foreign keys. With these statistics, which ANALYZE
-- fills, it doesn't multiply. It would then expect the rows of an average repository, which in a
-- registry of very many small repositories is one; so it is told to expect a hundred. The
-- time of a lookup of a single row doesn't depend on this number.

-- +goose StatementBegin
DO $$
DECLARE
    n integer := current_setting('purser.partitions')::integer;
    t text;
    part text;
BEGIN
    FOREACH t IN ARRAY ARRAY['blobs', 'repository_blobs', 'manifests', 'manifest_references',
        'layers', 'tags', 'gc_blobs_configurations', 'gc_blobs_layers']
    LOOP
        FOR i IN 0 .. n - 1 LOOP
            part := t || '_p_' || i;
            EXECUTE format('CREATE TABLE partitions.%I PARTITION OF %I FOR VALUES WITH (MODULUS %s, REMAINDER %s)', part, t, n, i);
            CONTINUE WHEN t NOT IN ('repository_blobs', 'manifests', 'manifest_references', 'layers', 'tags');
            EXECUTE format('CREATE STATISTICS partitions.%I (ndistinct) ON top_level_namespace_id, repository_id FROM partitions.%I',
                part || '_repositories', part);
            EXECUTE format('CREATE STATISTICS partitions.%I (dependencies) ON top_level_namespace_id, repository_id FROM partitions.%I',
                part || '_repository_stat', part);
            EXECUTE format('ALTER TABLE partitions.%I ALTER COLUMN repository_id SET (n_distinct = -0.01)', part);
        END LOOP;
    END LOOP;
END;
$$;
-- +goose StatementEnd
