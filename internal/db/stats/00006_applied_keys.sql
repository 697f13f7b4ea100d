-- For each key of Redis that a batch has applied: the key's short name, and the number of
-- the last pull that the batch had claimed of it. So the statistics have the key's pulls up
-- to this number. Rows are deleted an hour after the next complete flush.

-- +goose Up
ALTER TABLE redisflushbatches ADD COLUMN key_names bigint[], ADD COLUMN key_seqs bigint[];
