-- Each start of a process wrote the review delays of its configuration into this table, over
-- the delays that an operator had set there. Now the column configured has the delay from the
-- configuration that was written last, and a start changes only the delays that differ from it
-- in the configuration. NULL: it isn't known, and the delay stays.
--
-- The default delay of two events was a minute; it is now a day, as for all other events.
-- Where one of the two has a delay of a minute, it is taken for the old default and changed to
-- a day.

-- +goose Up
SET LOCAL lock_timeout = '10s';

ALTER TABLE gc_review_after_defaults ADD COLUMN configured interval;

COMMENT ON COLUMN gc_review_after_defaults.value IS 'the delay after the event; may be changed at any time';
COMMENT ON COLUMN gc_review_after_defaults.configured IS 'the delay of the configuration that was last written to value';

UPDATE gc_review_after_defaults SET value = interval '1 day'
WHERE event IN ('manifest_list_delete', 'subject_delete') AND value = interval '1 minute';

UPDATE gc_review_after_defaults SET configured = value WHERE value = interval '1 day';
