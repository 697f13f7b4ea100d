-- A policy may have a cap on how many tags a run deletes by it. Above the cap, the policy deletes
-- nothing and asks for an approval.

-- +goose Up
SET LOCAL lock_timeout = '500ms';

ALTER TABLE autopruneruns ADD COLUMN limits jsonb, ADD COLUMN asks jsonb;

COMMENT ON COLUMN autopruneruns.limits IS 'while the run lasts: what it has counted and deleted by policies with a cap';
COMMENT ON COLUMN autopruneruns.asks IS 'an array of the policies that ask for an approval; NULL: none';

-- autopruneasks has the policies that asked in the last run of a namespace, and the approvals.
-- It has no foreign key to the namespace, for the reason that autopruneannouncements has none:
-- the end of a run writes it while the task is locked. Housekeeping deletes the rows of deleted
-- namespaces and policies.
CREATE TABLE autopruneasks (
    policy         character varying(225) NOT NULL,
    namespace_id   bigint NOT NULL,
    version        bigint NOT NULL,                    -- of the policy
    tags           bigint NOT NULL,                    -- that it would have deleted in the last run
    most           bigint NOT NULL,                    -- that its cap allows
    told           bigint NOT NULL,                    -- tags when a notice was last sent
    asked_at       timestamptz NOT NULL DEFAULT now(), -- when that notice was sent
    approved       bigint,                             -- how many tags it may delete in a run; NULL: not approved
    approved_until timestamptz,
    approved_run   uuid,                               -- the run that has deleted tags by the approval, which ends it
    PRIMARY KEY (policy, namespace_id)
);

CREATE INDEX autopruneasks_namespace_id_idx ON autopruneasks (namespace_id);
