-- One row tells how far the statistics' worker has read the audit log. It changes in the
-- transaction that counts the entries read. Entries are read in the order of (xid, id);
-- xid is a transaction id of the server that has the log. The newest time read is for
-- operators, and for a log whose transaction ids have begun anew.
--
-- manifestpullstatistics gets the time of the last pull by a tag, so that an older pull
-- which is read later doesn't overwrite a newer one.

-- +goose Up
CREATE TABLE pullstatisticsprocessingstate (
    id                       smallint PRIMARY KEY DEFAULT 1 CHECK (id = 1),
    last_processed_timestamp timestamptz,
    last_processed_log_id    bigint NOT NULL DEFAULT 0,
    last_processed_xid       xid8 NOT NULL DEFAULT '0',
    entries_counted          bigint NOT NULL DEFAULT 0,
    recorded_since           timestamptz NOT NULL,
    created_at               timestamptz NOT NULL DEFAULT now(),
    updated_at               timestamptz NOT NULL DEFAULT now()
);

ALTER TABLE manifestpullstatistics ADD COLUMN last_tag_pull_date timestamptz;
