-- This migration adds columns for Quay's API: the date at which a tag is deleted, whether a
-- repository's owner wants it to be public, and whether the repository has a star.

-- +goose Up
SET LOCAL lock_timeout = '500ms';

ALTER TABLE tags ADD COLUMN expires_at timestamptz;
CREATE INDEX tags_expires_at_idx ON tags (expires_at) WHERE expires_at IS NOT NULL;
COMMENT ON COLUMN tags.expires_at IS 'when the tag is to be deleted; cleared by a push';

ALTER TABLE repositories
    ADD COLUMN visibility text NOT NULL DEFAULT 'public' CHECK (visibility IN ('public', 'private')),
    ADD COLUMN starred_at timestamptz;
CREATE INDEX repositories_starred_idx ON repositories (path) WHERE starred_at IS NOT NULL;
COMMENT ON COLUMN repositories.visibility IS 'what was asked for; nothing holds to it while there are no accounts';
COMMENT ON COLUMN repositories.starred_at IS 'when it got its star, of whoever is not logged in';
