-- Policies of auto-pruning may only observe, or wait for a window of time. Runs then record which
-- tags would be deleted.

-- +goose Up
SET LOCAL lock_timeout = '500ms';

ALTER TABLE autopruneruns ADD COLUMN would bigint NOT NULL DEFAULT 0, ADD COLUMN observed jsonb;

COMMENT ON COLUMN autopruneruns.would IS 'tags that the run would have deleted if no policy observed or waited';
COMMENT ON COLUMN autopruneruns.observed IS 'an array of the first 100 of these tags; NULL: none';
