-- Limits on the rate of requests and on open uploads hold for all replicas together.
--
-- Replicas exchange the requests that they have admitted by requestrates. Its content is worth
-- something for seconds only, so the table needs no write-ahead log: after a crash of PostgreSQL
-- it is empty.
--
-- uploads says who has started an upload, so that any replica can count the open uploads of a
-- client and of an account. The columns stay NULL if these uploads aren't limited, and for
-- uploads that a replica of an older version starts.

-- +goose Up
SET LOCAL lock_timeout = '500ms';

CREATE UNLOGGED TABLE requestrates (
    subject  bytea PRIMARY KEY,
    empty_at timestamptz NOT NULL
);
CREATE INDEX requestrates_empty_at_idx ON requestrates (empty_at);
COMMENT ON TABLE requestrates IS 'recent requests of clients and accounts at all replicas, if their rate is limited';
COMMENT ON COLUMN requestrates.subject IS 'd (address) or a (account), and 16 bytes of a hash';
COMMENT ON COLUMN requestrates.empty_at IS 'when the requests that were admitted so far are forgotten, at the limited rate; the row may be deleted then';

ALTER TABLE uploads ADD COLUMN client text COLLATE "C";
ALTER TABLE uploads ADD COLUMN account text COLLATE "C";
CREATE INDEX uploads_client_idx ON uploads (client) WHERE client IS NOT NULL;
CREATE INDEX uploads_account_idx ON uploads (account) WHERE account IS NOT NULL;
COMMENT ON COLUMN uploads.client IS 'address whose limit on open uploads counts this one; NULL: none';
COMMENT ON COLUMN uploads.account IS 'account whose limit on open uploads counts this one; NULL: none';
