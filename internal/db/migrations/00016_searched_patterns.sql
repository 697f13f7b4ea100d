-- Patterns of tags are searched for; the first release matched them with the whole name.
--
-- What is stored keeps its meaning. A policy that the first release has stored has no
-- "tagPatternSearch": true, and is read as it was meant. A rule has what was written in
-- searched, and in pattern the same for whoever matches the whole name: a process of the
-- first release that still runs, for which a rule without searched is made as before.
--
-- tags of a run's repository is how many tags it had when the run came to it: a run that
-- comes back counts them once.

-- +goose Up
SET LOCAL lock_timeout = '10s';

ALTER TABLE tagprotectionrules ADD COLUMN searched text;
ALTER TABLE autopruneruns_repositories ADD COLUMN tags bigint NOT NULL DEFAULT 0;
