-- The only row of pullstatisticsprocessingstate says up to which entry the worker of the
-- statistics has read the audit log. The transaction that adds the pulls of these entries to
-- the statistics also updates this row. The worker reads entries in the order of (xid, id);
-- xid is a transaction id of the server that has the audit log. last_processed_timestamp is
-- the latest time of all entries that the worker has read. Operators see it, and the worker
-- uses it if the transaction ids in the audit log have started again from a lower number.
--
-- This migration adds the time of the last pull by tag to manifestpullstatistics. With this
-- time, a worker that reads an older pull after a newer pull doesn't overwrite the newer
-- pull's data.

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
