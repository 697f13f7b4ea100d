-- For each Redis key in a batch that was applied: the key's short name, and the sequence
-- number of the key's last pull that the batch had claimed. The statistics have the key's
-- pulls up to this number. The rows are deleted an hour after the next complete flush.

-- +goose Up
ALTER TABLE redisflushbatches ADD COLUMN key_names bigint[], ADD COLUMN key_seqs bigint[];
