-- This migration prepares three features of Quay's API: exports of the audit log, the history
-- of tags, and a default policy.
--
-- When an export of the audit log ends, Purser calls a URL that the client has named. Such a
-- callback is a notice in webhookdeliveries with the URL in the new column url. Its column
-- webhook has the notice's own id, so that queries for the notices of a webhook, or of the URL
-- in the configuration, don't find it.
--
-- The history of tags is read from the audit log. auditlog_tag_ends_idx finds the entries in
-- which a tag of a repository was moved or deleted; auditlog_tags_idx finds all entries of one
-- tag.
--
-- The default policy that the configuration sets is a row of defaultautoprunepolicy, like the
-- registry's other default policies. So processes of older versions apply it too, and changing
-- it raises the version number that all default policies share.

-- +goose Up
SET LOCAL lock_timeout = '500ms';

ALTER TABLE webhookdeliveries ADD COLUMN url text;
COMMENT ON COLUMN webhookdeliveries.url IS 'of a callback, which belongs to no webhook; NULL: the webhook says where it goes';

CREATE INDEX webhookdeliveries_callbacks_idx ON webhookdeliveries (next_attempt)
    WHERE delivered_at IS NULL AND given_up_at IS NULL AND url IS NOT NULL;

CREATE INDEX auditlog_tag_ends_idx ON auditlog (repository_id, time, id)
    WHERE repository_id IS NOT NULL AND kind IN ('move_tag', 'revert_tag', 'delete_tag', 'autoprune_tag_delete');
CREATE INDEX auditlog_tags_idx ON auditlog (repository_id, tag, time, id)
    WHERE repository_id IS NOT NULL AND tag IS NOT NULL
        AND kind IN ('push_repo', 'create_tag', 'move_tag', 'revert_tag', 'delete_tag', 'autoprune_tag_delete');

ALTER TABLE defaultautoprunepolicy ADD COLUMN setting boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN defaultautoprunepolicy.setting IS 'the policy is that of autoprune.default_policy, and applies beside namespaces'' own';

CREATE UNIQUE INDEX defaultautoprunepolicy_setting_idx ON defaultautoprunepolicy (setting) WHERE setting;
