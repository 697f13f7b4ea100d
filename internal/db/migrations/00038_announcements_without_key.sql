-- The transaction that ends a run has locked the namespace's task when it announces a policy. A
-- foreign key to the namespace would make it wait for a transaction that deletes the namespace,
-- which waits for the task. Housekeeping deletes the announcements of deleted namespaces.

-- +goose Up
SET LOCAL lock_timeout = '500ms';

ALTER TABLE autopruneannouncements DROP CONSTRAINT autopruneannouncements_namespace_id_fkey;
