-- Webhooks of namespaces: who is told of pushes, pulls, deletions and garbage collection
-- there, and how far these were told. Notices themselves stay in webhookdeliveries.
--
-- A dispatcher reads the audit log in the order of (xid, id), up to the oldest
-- transaction that is still open, as the statistics of pulls do. It writes notices, or
-- adds to counters, in the transaction that moves webhookposition behind what it has
-- read. Pulls have an index of that order already; other entries get one here.

-- +goose Up
SET LOCAL lock_timeout = '10s';

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

-- The one row is the dispatcher's lock. since: what happened before isn't told.
CREATE TABLE webhookposition (
    one       boolean PRIMARY KEY DEFAULT true CHECK (one),
    xid       xid8 NOT NULL DEFAULT '0',
    id        bigint NOT NULL DEFAULT 0,
    pulls_xid xid8 NOT NULL DEFAULT '0',
    pulls_id  bigint NOT NULL DEFAULT 0,
    since     timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO webhookposition DEFAULT VALUES;

-- What is counted before it is told: one row for each webhook, event and repository.
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

-- What garbage collection has deleted, written by its transactions where a webhook wants
-- to know, and deleted by the transaction that adds it to webhookcounts.
CREATE TABLE webhookcollected (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace_id bigint NOT NULL,
    repository   text COLLATE "C" NOT NULL,
    manifests    bigint NOT NULL,
    at           timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- NULL: the notice is for the URL of the configuration. There is no foreign key, so that
-- a deletion doesn't take all of a queue along: nobody sends what is left, and it is
-- deleted in pieces.
ALTER TABLE webhookdeliveries ADD COLUMN webhook uuid;

DROP INDEX webhookdeliveries_next_attempt_idx;
CREATE INDEX webhookdeliveries_next_attempt_idx ON webhookdeliveries (next_attempt)
    WHERE delivered_at IS NULL AND given_up_at IS NULL AND webhook IS NULL;
CREATE INDEX webhookdeliveries_webhook_next_attempt_idx ON webhookdeliveries (webhook, next_attempt)
    WHERE delivered_at IS NULL AND given_up_at IS NULL AND webhook IS NOT NULL;
CREATE INDEX webhookdeliveries_webhook_idx ON webhookdeliveries (webhook, created_at, id) WHERE webhook IS NOT NULL;

CREATE INDEX auditlog_changes_idx ON auditlog (xid, id)
    WHERE kind IN ('push_repo', 'create_tag', 'move_tag', 'revert_tag', 'delete_tag', 'delete_manifest', 'delete_repo', 'autoprune_tag_delete');
