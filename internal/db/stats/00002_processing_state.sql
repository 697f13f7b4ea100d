-- How far the audit log has been read for the statistics: one row, which changes
-- in the transaction that counts what was read. The order of reading is (xid, id),
-- by the transaction ids of the server that has the log; the newest time that was
-- read is for people, and for a log whose transaction ids began anew.
--
-- manifestpullstatistics gets the time of the last pull by a tag: without it an
-- older pull that is read later can't be told from a newer one.

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
