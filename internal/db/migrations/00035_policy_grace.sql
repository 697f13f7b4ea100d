-- A new or changed policy may have a grace period: it deletes nothing before active_from, nor
-- before a run has announced in the namespace what the policy would delete.

-- +goose Up
SET LOCAL lock_timeout = '500ms';

ALTER TABLE namespaceautoprunepolicy ADD COLUMN active_from timestamptz;
ALTER TABLE repositoryautoprunepolicy ADD COLUMN active_from timestamptz;
ALTER TABLE defaultautoprunepolicy ADD COLUMN active_from timestamptz;

COMMENT ON COLUMN namespaceautoprunepolicy.active_from IS 'end of the grace period; NULL: the policy has none';

-- autopruneannouncements says which version of a policy was last announced in a namespace.
CREATE TABLE autopruneannouncements (
    policy       character varying(225) NOT NULL,
    namespace_id bigint NOT NULL REFERENCES top_level_namespaces (id) ON DELETE CASCADE,
    version      bigint NOT NULL,
    announced_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (policy, namespace_id)
);

CREATE INDEX autopruneannouncements_namespace_id_idx ON autopruneannouncements (namespace_id);

ALTER TABLE autopruneruns ADD COLUMN tally jsonb;

COMMENT ON COLUMN autopruneruns.tally IS 'while the run lasts: by policy, how many tags it would delete, as far as the run has come';
