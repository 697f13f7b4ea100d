-- The column asked is set if a client asks for a run of auto-pruning, or changes a policy,
-- while a run of the namespace is in progress. When this run ends, the namespace gets another
-- run.

-- +goose Up
SET LOCAL lock_timeout = '10s';

ALTER TABLE autoprunetaskstatus ADD COLUMN asked boolean NOT NULL DEFAULT false;
