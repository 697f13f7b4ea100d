-- The column "asked" of autoprunetaskstatus is set if a client requests a run of auto-pruning
-- in a namespace, or changes a policy, while another run of the namespace is in progress. When
-- that run ends, a further run of the namespace begins.

-- +goose Up
SET LOCAL lock_timeout = '500ms';

ALTER TABLE autoprunetaskstatus ADD COLUMN asked boolean NOT NULL DEFAULT false;
