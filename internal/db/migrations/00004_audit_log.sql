-- The audit log records who did what to which repository, and from which address.
--
-- The audit log is partitioned by month, so that an old month can be dropped as a whole. A
-- worker makes the partitions of coming months in advance. The default partition receives the
-- entries of a month whose partition is missing, so that no insert fails. Each entry keeps its
-- repository's name; when the repository is deleted, a loose foreign key clears repository_id.
--
-- xid is the transaction that wrote the entry. Workers read pulls in the order of (xid, id),
-- up to the oldest transaction that is still open. In the order of id or time alone, a worker
-- would miss entries that are committed after it has read later ones. counted_by says which
-- worker counts a pull for the statistics: the worker of the audit log ("audit") or of Redis
-- ("redis"). NULL means that this isn't decided yet.
--
-- Inserts into the audit log must be fast, so it has only indexes that some query needs, and
-- each entry is in at most four of them.
-- primary key    lists all entries by time
-- repository_id  lists the entries of a repository
-- namespace      lists the entries of a namespace
-- kind           finds rare kinds; it leaves out pulls, which are most entries
-- (xid, id)      is for the statistics of pulls, and has only pulls

-- +goose Up
CREATE SEQUENCE auditlog_id_seq;

CREATE TABLE auditlog (
    id            bigint NOT NULL DEFAULT nextval('auditlog_id_seq'),
    time          timestamptz NOT NULL DEFAULT now(),
    xid           xid8 NOT NULL DEFAULT pg_current_xact_id(),
    kind          text COLLATE "C" NOT NULL,
    actor         text COLLATE "C",
    address       text COLLATE "C",
    user_agent    text,
    request_id    text COLLATE "C",
    namespace     text COLLATE "C",
    repository    text COLLATE "C",
    repository_id bigint,
    tag           text COLLATE "C",
    digest        bytea,
    policy        uuid,
    run           uuid,
    detail        jsonb,
    counted_by    text COLLATE "C" CHECK (counted_by IN ('audit', 'redis')),
    PRIMARY KEY (time, id)
) PARTITION BY RANGE (time);

ALTER SEQUENCE auditlog_id_seq OWNED BY auditlog.id;

CREATE INDEX auditlog_repository_id_idx ON auditlog (repository_id, time, id) WHERE repository_id IS NOT NULL;
CREATE INDEX auditlog_namespace_idx ON auditlog (namespace, time, id) WHERE namespace IS NOT NULL;
CREATE INDEX auditlog_kind_idx ON auditlog (kind, time, id) WHERE kind <> 'pull_repo';
CREATE INDEX auditlog_pulls_idx ON auditlog (xid, id) WHERE kind = 'pull_repo';

CREATE TABLE partitions.auditlog_default PARTITION OF auditlog DEFAULT;
