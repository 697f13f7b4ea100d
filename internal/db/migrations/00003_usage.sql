-- What namespaces and repositories store, measured in passes over all links from repositories to blobs.
--
-- A pass adds up in slices. Each slice adds its sums to the tables and moves the position in usage_state,
-- in one transaction that has locked the row of usage_state. So a pass that was broken off goes on where
-- it ended, and counts no link twice. Readers read the rows of the published pass alone.

-- +goose Up
SET LOCAL lock_timeout = '500ms';

CREATE TABLE usage_state (
    only_row     boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    pass         bigint NOT NULL DEFAULT 0,
    published    bigint NOT NULL DEFAULT 0,
    phase        text NOT NULL DEFAULT 'idle' CHECK (phase IN ('idle', 'links', 'blobs', 'days')),
    position     jsonb NOT NULL DEFAULT '{}',
    begun_at     timestamptz,
    worked       interval NOT NULL DEFAULT '0',
    owner        uuid,
    owner_until  timestamptz NOT NULL DEFAULT '-infinity',
    measured_from timestamptz,
    measured_at  timestamptz,
    next_at      timestamptz NOT NULL DEFAULT '-infinity'
);
COMMENT ON COLUMN usage_state.pass IS 'the last pass that has begun';
COMMENT ON COLUMN usage_state.published IS 'the last pass that has ended, whose rows are read; 0: none';
COMMENT ON COLUMN usage_state.owner IS 'the process that reads links now, and keeps sums in memory; until owner_until no other does';
COMMENT ON COLUMN usage_state.position IS 'how far the phase has come, with what is known of the blob to which its last link belongs';
COMMENT ON COLUMN usage_state.worked IS 'how long the slices of the pass took so far';
COMMENT ON COLUMN usage_state.measured_from IS 'when the published pass began, and measured_at when it ended';
INSERT INTO usage_state DEFAULT VALUES;

CREATE TABLE usage_repositories (
    pass          bigint NOT NULL,
    repository_id bigint NOT NULL,
    namespace_id  bigint NOT NULL,
    blobs         bigint NOT NULL,
    bytes         bigint NOT NULL,
    own_bytes     bigint NOT NULL,
    PRIMARY KEY (pass, repository_id)
);
COMMENT ON COLUMN usage_repositories.own_bytes IS 'bytes of blobs that no other repository of its namespace has';
CREATE INDEX usage_repositories_bytes_idx ON usage_repositories (pass, bytes, repository_id);

CREATE TABLE usage_namespaces (
    pass         bigint NOT NULL,
    namespace_id bigint NOT NULL,
    blobs        bigint NOT NULL,
    bytes        bigint NOT NULL,
    own_bytes    bigint NOT NULL,
    PRIMARY KEY (pass, namespace_id)
);
COMMENT ON COLUMN usage_namespaces.own_bytes IS 'bytes of blobs that no other namespace has';
CREATE INDEX usage_namespaces_bytes_idx ON usage_namespaces (pass, bytes, namespace_id);

CREATE TABLE usage_registry (
    pass               bigint PRIMARY KEY,
    blobs              bigint NOT NULL,
    bytes              bigint NOT NULL,
    trash_bytes        bigint NOT NULL,
    unreferenced_bytes bigint NOT NULL
);
COMMENT ON COLUMN usage_registry.bytes IS 'of all blobs; trash_bytes of those that only deleted repositories have, unreferenced_bytes of those that none has';

-- A namespace has a row for each day on which its sums changed, so a namespace at rest costs nothing.
CREATE TABLE usage_days (
    namespace_id bigint NOT NULL REFERENCES top_level_namespaces (id) ON DELETE CASCADE,
    day          date NOT NULL,
    bytes        bigint NOT NULL,
    own_bytes    bigint NOT NULL,
    PRIMARY KEY (namespace_id, day)
);
CREATE INDEX usage_days_day_idx ON usage_days (day);

CREATE TABLE usage_registry_days (
    day                date PRIMARY KEY,
    bytes              bigint NOT NULL,
    trash_bytes        bigint NOT NULL,
    unreferenced_bytes bigint NOT NULL
);
