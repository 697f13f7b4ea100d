-- Whoever asks for a run, or changes a policy, in the middle of a run that takes
-- several turns, gets another one after it.

-- +goose Up
SET LOCAL lock_timeout = '10s';

ALTER TABLE autoprunetaskstatus ADD COLUMN asked boolean NOT NULL DEFAULT false;
