-- The number that Redis has given a pull which it counts: by it can be told whether the
-- pull is in the statistics, so that what Redis has lost can be counted from the log.

-- +goose Up
SET LOCAL lock_timeout = '10s';

ALTER TABLE auditlog ADD COLUMN redis_seq bigint;
