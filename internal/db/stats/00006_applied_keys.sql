-- Up to which of its pulls each key of Redis is in the statistics: short names of the keys
-- that a batch has applied, and for each the number of the last pull that it had claimed.
-- Forgotten an hour after the next complete flush.

-- +goose Up
ALTER TABLE redisflushbatches ADD COLUMN key_names bigint[], ADD COLUMN key_seqs bigint[];
