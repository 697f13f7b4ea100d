-- Pulls of the same manifest by one client within a second are written as one audit entry,
-- whose column "pulls" has the number of these pulls. Entries that older processes write have
-- the default of one pull. Adding the column rewrites no row.

-- +goose Up
SET LOCAL lock_timeout = '500ms';

ALTER TABLE auditlog
    ADD COLUMN pulls integer NOT NULL DEFAULT 1,
    ADD COLUMN first_time timestamptz,
    ADD COLUMN later bytea;
ALTER TABLE pullheads
    ADD COLUMN first_time timestamptz,
    ADD COLUMN later bytea;

COMMENT ON COLUMN auditlog.pulls IS 'how many pulls the entry is of; 1 for other kinds';
COMMENT ON COLUMN auditlog.port IS 'the client''s, of a pull by digest; of several, that of the first';
COMMENT ON COLUMN auditlog.time IS 'when it happened; of several pulls, the last';
COMMENT ON COLUMN auditlog.first_time IS 'of several pulls, the first; else NULL';
COMMENT ON COLUMN auditlog.later IS 'of several pulls by digest, those behind the first: microseconds since the one before, and port, as varints';
COMMENT ON COLUMN pullheads.time IS 'of the last, where the row is of several HEAD requests';
COMMENT ON COLUMN pullheads.first_time IS 'as in auditlog';
COMMENT ON COLUMN pullheads.later IS 'as in auditlog';
