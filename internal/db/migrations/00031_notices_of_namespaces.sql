-- The table webhookdeliveries has the notices of namespaces' webhooks, callbacks, and the
-- notices of the registry's own webhook. A process of the first release, which may run beside
-- newer processes during an upgrade, knows only the registry's own webhook: it would claim any
-- notice and send it to autoprune.webhook.url. So the table is renamed to webhooknotices, and
-- webhookdeliveries becomes a view of the notices that such a process may send. PostgreSQL
-- applies an INSERT, UPDATE, DELETE or row lock on this view to the table, and parses prepared
-- statements anew after the change.

-- +goose Up
SET LOCAL lock_timeout = '500ms';

ALTER TABLE webhookdeliveries RENAME TO webhooknotices;
ALTER INDEX webhookdeliveries_pkey RENAME TO webhooknotices_pkey;
ALTER INDEX webhookdeliveries_next_attempt_idx RENAME TO webhooknotices_next_attempt_idx;
ALTER INDEX webhookdeliveries_webhook_next_attempt_idx RENAME TO webhooknotices_webhook_next_attempt_idx;
ALTER INDEX webhookdeliveries_webhook_idx RENAME TO webhooknotices_webhook_idx;
ALTER INDEX webhookdeliveries_callbacks_idx RENAME TO webhooknotices_callbacks_idx;
ALTER INDEX webhookdeliveries_settled_idx RENAME TO webhooknotices_settled_idx;

CREATE VIEW webhookdeliveries AS
SELECT id, created_at, event, body, attempts, next_attempt, lease, last_error, delivered_at, given_up_at
FROM webhooknotices
WHERE webhook IS NULL;

COMMENT ON TABLE webhooknotices IS 'requests to webhooks that wait, or were delivered or given up lately';
COMMENT ON COLUMN webhooknotices.webhook IS 'of a namespace; NULL: the URL of the configuration';
COMMENT ON VIEW webhookdeliveries IS 'those of webhooknotices that are for the URL of the configuration';
