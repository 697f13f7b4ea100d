-- Policies of auto-pruning may say how long a manifest that nothing references stays, beyond the
-- review delay (keepUntagged). A review that keeps such a manifest records here since when nothing
-- references it, and sets the row's event to keep_untagged; the next event replaces the event, and
-- the time then counts from there.
--
-- The indexes let each review of manifests find out cheaply that no policy has keepUntagged. Their
-- condition is that of the statement in package gc (lockHolds).

-- +goose Up
SET LOCAL lock_timeout = '500ms';

ALTER TABLE gc_manifest_review_queue ADD COLUMN unused_since timestamptz;
COMMENT ON COLUMN gc_manifest_review_queue.unused_since IS 'since when nothing references the manifest; of rows with the event keep_untagged';

CREATE INDEX namespaceautoprunepolicy_untagged_idx ON namespaceautoprunepolicy (namespace_id) WHERE policy LIKE '%"keepUntagged"%';
CREATE INDEX repositoryautoprunepolicy_untagged_idx ON repositoryautoprunepolicy (namespace_id) WHERE policy LIKE '%"keepUntagged"%';
