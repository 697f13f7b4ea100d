-- The annotations of a referrer are kept for the list of referrers, which has no more
-- than 64 KiB of each. Those that are longer made a list of sixty entries read 240 MB,
-- and a page longer than clients read. They are still in the payload.

-- +goose Up
SET LOCAL lock_timeout = '10s';

UPDATE manifests SET annotations = NULL
WHERE subject_digest IS NOT NULL AND octet_length(annotations::text) > 65536;
