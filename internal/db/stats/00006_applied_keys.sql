-- When a batch is applied, its row gets the short names of its Redis keys (key_names) and, for
-- each key, the sequence number of the last pull that the batch had claimed (key_seqs). The
-- statistics have the key's pulls up to this number. Rows are deleted an hour after the next
-- complete flush.

-- +goose Up
ALTER TABLE redisflushbatches ADD COLUMN key_names bigint[], ADD COLUMN key_seqs bigint[];
