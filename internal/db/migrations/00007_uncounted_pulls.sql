-- The audit log now also has pulls that aren't counted, such as those of scanners and mirrors,
-- with counted_by = 'none'. The new check constraint allows every value that the old
-- constraint allows, so existing rows needn't be checked.

-- +goose Up
SET LOCAL lock_timeout = '500ms';

ALTER TABLE auditlog DROP CONSTRAINT auditlog_counted_by_check;
ALTER TABLE auditlog ADD CONSTRAINT auditlog_counted_by_check CHECK (counted_by IN ('audit', 'redis', 'none')) NOT VALID;
