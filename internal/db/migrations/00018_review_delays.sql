-- A start wrote the delays of its configuration over those that an operator had set in
-- the table. Now each row says which configuration it had last: a start changes only
-- what the configuration has changed since. NULL: not known, the value stays.
--
-- The configuration's default for two events was a minute, where it is a day for all
-- others; a value of a minute is taken for that default.

-- +goose Up
SET LOCAL lock_timeout = '10s';

ALTER TABLE gc_review_after_defaults ADD COLUMN configured interval;

COMMENT ON COLUMN gc_review_after_defaults.value IS 'the delay after the event; may be changed at any time';
COMMENT ON COLUMN gc_review_after_defaults.configured IS 'the delay of the configuration that was last written to value';

UPDATE gc_review_after_defaults SET value = interval '1 day'
WHERE event IN ('manifest_list_delete', 'subject_delete') AND value = interval '1 minute';

UPDATE gc_review_after_defaults SET configured = value WHERE value = interval '1 day';
