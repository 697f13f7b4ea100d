-- One row says up to which entry the statistics' worker has read the audit log. The
-- transaction that counts the entries also updates this row. The worker reads entries in the
-- order of (xid, id); xid is a transaction id of the server that has the audit log. The newest
-- time that was read is for operators, and for a log whose transaction ids have started again
-- from a lower number.
--
-- manifestpullstatistics gets the time of the last pull by tag. So if an older pull is read
-- later than a newer one, it doesn't overwrite the newer one's data.

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
