-- redis_seq is the number that Redis gave a pull when it counted the pull. From this number a
-- worker can tell whether the statistics have the pull already. So if Redis loses counts, the
-- worker counts the missing pulls from the audit log.

-- +goose Up
SET LOCAL lock_timeout = '500ms';

ALTER TABLE auditlog ADD COLUMN redis_seq bigint;
