-- Until now, each process that started wrote the review delays of its configuration into
-- gc_review_after_defaults, and so overwrote delays that an operator had set in this table.
-- Now the column "configured" has the delay that a process has last written from a
-- configuration. A process that starts writes a delay only if its configuration differs from
-- this column. NULL means that no such delay is known; then the delay in the table stays.
--
-- The default delay of two events was a minute; it is now a day, as for all other events. If
-- one of these two events has a delay of a minute, this migration takes it for the old default
-- and changes it to a day.

-- +goose Up
SET LOCAL lock_timeout = '500ms';

ALTER TABLE gc_review_after_defaults ADD COLUMN configured interval;

COMMENT ON COLUMN gc_review_after_defaults.value IS 'the delay after the event; may be changed at any time';
COMMENT ON COLUMN gc_review_after_defaults.configured IS 'the delay of the configuration that was last written to value';

UPDATE gc_review_after_defaults SET value = interval '1 day'
WHERE event IN ('manifest_list_delete', 'subject_delete') AND value = interval '1 minute';

UPDATE gc_review_after_defaults SET configured = value WHERE value = interval '1 day';
