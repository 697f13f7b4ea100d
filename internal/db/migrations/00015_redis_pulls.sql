-- redis_seq is the number that Redis gave a pull when it counted the pull. It tells whether
-- the statistics have the pull already. So if Redis loses counts, the missing pulls can be
-- counted from the audit log.

-- +goose Up
SET LOCAL lock_timeout = '10s';

ALTER TABLE auditlog ADD COLUMN redis_seq bigint;
