-- Pulls in two requests: a client asks for a tag by HEAD and fetches what it points
-- to by digest. Who counts from the log joins the two, whichever processes answered
-- them, so the log has the HEAD as well. It isn't a pull: it stays out of auditlog, and
-- goes as soon as it was read.
--
-- client names who asked, and for which manifest: a digest of account, address,
-- User-Agent, repository and manifest. port is the client's, of the connection; a pull by
-- digest has it too. Pulls and heads are read together in the order of (xid, id), so
-- their ids are of one sequence. used marks the other half: a pull by digest that Redis has
-- joined with a HEAD before it went away, which is therefore not to be joined again.

-- +goose Up
SET LOCAL lock_timeout = '10s';

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
