-- The column annotations is for the list of referrers, which shows at most 64 KiB for each
-- referrer. This migration clears longer annotations in the column; they are still in the
-- manifest's payload. Before, a list of sixty referrers read 240 MB, and one page of the list
-- was longer than clients accept.

-- +goose Up
SET LOCAL lock_timeout = '500ms';

UPDATE manifests SET annotations = NULL
WHERE subject_digest IS NOT NULL AND octet_length(annotations::text) > 65536;
