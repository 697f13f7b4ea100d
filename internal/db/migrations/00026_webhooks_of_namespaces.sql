-- This migration makes the webhooks of namespaces: the URLs that get notices of pushes, pulls,
-- deletions and garbage collection in a namespace, and the position in the audit log up to
-- which notices were written. The notices themselves are in webhookdeliveries.
--
-- A dispatcher reads the audit log in the order of (xid, id), up to the oldest transaction
-- that is still open, as the statistics of pulls do. In one transaction it writes notices, or
-- adds to counts, and moves webhookposition to the last entry that it has read. There is an
-- index on (xid, id) for pulls already; this migration adds one for all other entries.

-- +goose Up
SET LOCAL lock_timeout = '500ms';

CREATE TABLE webhooks (
    uuid            uuid PRIMARY KEY,
    namespace_id    bigint NOT NULL REFERENCES top_level_namespaces (id) ON DELETE CASCADE,
    title           text NOT NULL DEFAULT '',
    url             text NOT NULL,
    secret          text NOT NULL,
    events          text[] COLLATE "C" NOT NULL,
    enabled         boolean NOT NULL DEFAULT true,
    active_since    timestamptz NOT NULL DEFAULT clock_timestamp(),
    disabled_reason text,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON COLUMN webhooks.secret IS 'the key that notices are signed with; never shown again';
COMMENT ON COLUMN webhooks.active_since IS 'what happened before isn''t told: when the webhook was made, or last enabled';
COMMENT ON COLUMN webhooks.disabled_reason IS 'why the registry disabled it; NULL: somebody did, or it is enabled';

CREATE INDEX webhooks_namespace_id_idx ON webhooks (namespace_id);

-- webhookposition has one row. A dispatcher locks this row while it works, so that only one
-- dispatcher works at a time. The column "since" is the time from which events are reported:
-- events before this time produce no notices.
CREATE TABLE webhookposition (
    one       boolean PRIMARY KEY DEFAULT true CHECK (one),
    xid       xid8 NOT NULL DEFAULT '0',
    id        bigint NOT NULL DEFAULT 0,
    pulls_xid xid8 NOT NULL DEFAULT '0',
    pulls_id  bigint NOT NULL DEFAULT 0,
    since     timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO webhookposition DEFAULT VALUES;

-- Some events, such as pulls, are counted for a while and then reported by one notice. A row
-- of webhookcounts has the count for one webhook, event and repository.
CREATE TABLE webhookcounts (
    webhook    uuid NOT NULL REFERENCES webhooks (uuid) ON DELETE CASCADE,
    event      text COLLATE "C" NOT NULL,
    repository text COLLATE "C" NOT NULL,
    number     bigint NOT NULL,
    first_at   timestamptz NOT NULL,
    last_at    timestamptz NOT NULL,
    due_at     timestamptz NOT NULL,
    PRIMARY KEY (webhook, event, repository)
);
CREATE INDEX webhookcounts_due_at_idx ON webhookcounts (due_at);

-- A row of webhookcollected says how many manifests garbage collection has deleted in a
-- repository. The transaction that deletes the manifests writes this row if a webhook of the
-- namespace asks for this event. The dispatcher adds the number to webhookcounts and deletes
-- the row, in one transaction.
CREATE TABLE webhookcollected (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace_id bigint NOT NULL,
    repository   text COLLATE "C" NOT NULL,
    manifests    bigint NOT NULL,
    at           timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- webhook is the webhook to which the notice is sent; NULL means the URL in the configuration.
-- The column has no foreign key, so that deleting a webhook doesn't delete a long queue of
-- notices in one statement. The notices of a deleted webhook aren't sent, and are deleted in
-- batches.
ALTER TABLE webhookdeliveries ADD COLUMN webhook uuid;

DROP INDEX webhookdeliveries_next_attempt_idx;
CREATE INDEX webhookdeliveries_next_attempt_idx ON webhookdeliveries (next_attempt)
    WHERE delivered_at IS NULL AND given_up_at IS NULL AND webhook IS NULL;
CREATE INDEX webhookdeliveries_webhook_next_attempt_idx ON webhookdeliveries (webhook, next_attempt)
    WHERE delivered_at IS NULL AND given_up_at IS NULL AND webhook IS NOT NULL;
CREATE INDEX webhookdeliveries_webhook_idx ON webhookdeliveries (webhook, created_at, id) WHERE webhook IS NOT NULL;

CREATE INDEX auditlog_changes_idx ON auditlog (xid, id)
    WHERE kind IN ('push_repo', 'create_tag', 'move_tag', 'revert_tag', 'delete_tag', 'delete_manifest', 'delete_repo', 'autoprune_tag_delete');
