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

-- +goose Up
SET LOCAL lock_timeout = '500ms';

ALTER TABLE auditlog ADD COLUMN port integer;

CREATE TABLE pullheads (
    id            bigint PRIMARY KEY DEFAULT nextval('auditlog_id_seq'),
    xid           xid8 NOT NULL DEFAULT pg_current_xact_id(),
    time          timestamptz NOT NULL,
    client        bytea NOT NULL,
    repository_id bigint NOT NULL,
    tag           text COLLATE "C" NOT NULL,
    port          integer NOT NULL,
    used          boolean NOT NULL DEFAULT false
);

CREATE INDEX pullheads_xid_idx ON pullheads (xid, id);
