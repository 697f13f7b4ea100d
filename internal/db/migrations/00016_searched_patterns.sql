-- A pattern now matches a tag if it matches any part of the tag's name. In the first release,
-- a pattern had to match the whole name.
--
-- Stored patterns keep their meaning. A policy of the first release has no "tagPatternSearch":
-- true, and its pattern is still matched with the whole name. The pattern of a new protection
-- rule is stored twice: in the column "searched" as the user wrote it, and in the column
-- "pattern" in an equivalent form that matches the whole name, for processes of the first
-- release that still run during an upgrade. If "searched" is NULL, a process of the first
-- release has made the rule.
--
-- autopruneruns_repositories.tags is how many tags the repository had when the run began with
-- this repository. If the run continues with it in another time slice, it doesn't count the
-- tags again.

-- +goose Up
SET LOCAL lock_timeout = '500ms';

ALTER TABLE tagprotectionrules ADD COLUMN searched text;
ALTER TABLE autopruneruns_repositories ADD COLUMN tags bigint NOT NULL DEFAULT 0;
