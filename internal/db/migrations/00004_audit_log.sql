-- The audit log: who did what to which repository, from where.
--
-- It is partitioned by month, so that old months are dropped whole. A keeper
-- makes the months ahead; the default partition takes what has none, so that a
-- month that is missing is never an outage. Each entry keeps its repository's
-- name; repository_id is cleared by a loose foreign key when the repository goes.
--
-- xid is the transaction that wrote the entry. Pulls are read in the order of
-- (xid, id), up to the oldest transaction that is still open: an id or a time
-- alone would pass over entries that are committed late. counted_by says whose
-- part it is to count a pull: audit or redis; NULL: nobody's yet.
--
-- Inserts are what the log is for, so each index has its reader: the primary key
-- lists everything by time; by repository, and by namespace, lists theirs; by kind
-- finds the rare ones, and leaves out pulls, which are most; (xid, id) is for the
-- statistics of pulls and holds nothing else. Any entry is in four at most.

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
