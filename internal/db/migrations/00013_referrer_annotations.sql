-- The column annotations is for the list of referrers, which shows at most 64 KiB for each
-- referrer. Longer annotations are cleared here; they are still in the payload. With them a
-- list of sixty referrers read 240 MB, and a page of the list was longer than clients read.

-- +goose Up
SET LOCAL lock_timeout = '10s';

UPDATE manifests SET annotations = NULL
WHERE subject_digest IS NOT NULL AND octet_length(annotations::text) > 65536;
