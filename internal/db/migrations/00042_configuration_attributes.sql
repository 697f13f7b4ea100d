-- The labels and the platform of an image are in its configuration, a blob in the store. Policies
-- of auto-pruning with the selectors labels and platforms need them, so the pruner reads the
-- configurations of a repository to which such a policy applies, and keeps here what it has read.
-- A blob never changes, so a row without a problem stays right as long as the blob exists. A push
-- writes no row: registries without such policies pay nothing.
--
-- The foreign key deletes the row with the blob. Only the pruner inserts rows: it locks the blobs'
-- rows FOR KEY SHARE, in the order of their digests and without any other lock.

-- +goose Up
SET LOCAL lock_timeout = '500ms';

CREATE TABLE configurationattributes (
    digest   bytea PRIMARY KEY REFERENCES blobs (digest) ON DELETE CASCADE,
    platform text COLLATE "C" NOT NULL DEFAULT '',
    labels   text NOT NULL DEFAULT '',
    problem  text NOT NULL DEFAULT '',
    read_at  timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE configurationattributes IS 'what configurations of images say, as far as policies of auto-pruning have needed it';
COMMENT ON COLUMN configurationattributes.platform IS 'os/architecture or os/architecture/variant in lower case; empty: it names none';
COMMENT ON COLUMN configurationattributes.labels IS 'a JSON object, not jsonb, since a label may have the character U+0000; empty: no labels';
COMMENT ON COLUMN configurationattributes.problem IS 'why platform and labels are not known; the pruner reads the configuration again later. Empty: they are known';
