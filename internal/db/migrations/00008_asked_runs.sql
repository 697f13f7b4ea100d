-- If somebody asks for a run, or changes a policy, while a run of the namespace is in
-- progress, this column is set, and the namespace gets another run after it.

-- +goose Up
SET LOCAL lock_timeout = '10s';

ALTER TABLE autoprunetaskstatus ADD COLUMN asked boolean NOT NULL DEFAULT false;
