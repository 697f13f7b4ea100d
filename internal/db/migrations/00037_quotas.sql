-- Quotas of namespaces: how many bytes, repositories and tags a namespace may have.
--
-- namespacequotas has the limits and what the namespace uses, in one row, so that a commit that
-- changes what a namespace uses touches this row and no other. The triggers of
-- routines/quotas.sql change it. The row has no foreign key to its namespace, since each update
-- would check it; a loose foreign key deletes the row after the namespace. Half of each page is
-- left free, so that an update can write the row's new version beside the old one.
--
-- The index on repository_blobs answers whether another repository of a namespace has a blob,
-- also for a blob that very many repositories have. Building it takes some seconds for each
-- million of rows; no blob can be pushed or mounted meanwhile.

-- +goose Up
SET LOCAL lock_timeout = '500ms';

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
COMMENT ON COLUMN namespacequotas.bytes IS 'what the namespace uses; while counted is false, only the changes since the row was made';
COMMENT ON COLUMN namespacequotas.counts IS 'how often the content was counted: a count is applied only if there was no other meanwhile';
COMMENT ON COLUMN namespacequotas.recount IS 'somebody has asked to count the content again';

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

CREATE INDEX repository_blobs_namespace_idx ON repository_blobs (blob_digest, top_level_namespace_id, repository_id);
