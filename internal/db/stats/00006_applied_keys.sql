-- When a batch of Redis keys is added to the statistics, its row in redisflushbatches gets the
-- short names of these keys (key_names) and, for each key, the sequence number of the last
-- pull in the batch (key_seqs). The statistics have the key's pulls up to this number. A row
-- of redisflushbatches is deleted an hour after the next complete flush.

-- +goose Up
ALTER TABLE redisflushbatches ADD COLUMN key_names bigint[], ADD COLUMN key_seqs bigint[];
