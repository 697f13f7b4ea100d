-- The repositories of a namespace by what they store.

-- +goose Up
SET LOCAL lock_timeout = '500ms';

CREATE INDEX usage_repositories_namespace_idx ON usage_repositories (pass, namespace_id, bytes, repository_id);
