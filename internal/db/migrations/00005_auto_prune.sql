-- This migration makes the tables of auto-pruning: policies, tasks, runs with the number of
-- tags that they deleted, and the rules that protect tags from policies.
--
-- Policies and tasks have a foreign key to their namespace and are deleted with it. The
-- columns with times in milliseconds, and the types of the other columns, are the same as in
-- Quay's published schema. The rows of a run stay when the namespace is deleted, like the
-- audit log.
--
-- The column policies_version of a task changes whenever a policy of its namespace, or of one
-- of the namespace's repositories, changes. The versions of the registry's default policies
-- and of the protection rules are in the table settings. A worker locks these versions while
-- it deletes tags, so that it deletes none by a policy that was changed meanwhile.

-- +goose Up
CREATE TABLE namespaceautoprunepolicy (
    uuid         character varying(225) PRIMARY KEY,
    namespace_id bigint NOT NULL REFERENCES top_level_namespaces (id) ON DELETE CASCADE,
    policy       text NOT NULL,
    version      bigint NOT NULL DEFAULT 1,
    created_at   timestamptz NOT NULL DEFAULT now(),
    updated_at   timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX namespaceautoprunepolicy_namespace_id_idx ON namespaceautoprunepolicy (namespace_id);

CREATE TABLE repositoryautoprunepolicy (
    uuid          character varying(225) PRIMARY KEY,
    namespace_id  bigint NOT NULL REFERENCES top_level_namespaces (id) ON DELETE CASCADE,
    repository_id bigint NOT NULL REFERENCES repositories (id) ON DELETE CASCADE,
    policy        text NOT NULL,
    version       bigint NOT NULL DEFAULT 1,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX repositoryautoprunepolicy_namespace_id_idx ON repositoryautoprunepolicy (namespace_id);
CREATE INDEX repositoryautoprunepolicy_repository_id_idx ON repositoryautoprunepolicy (repository_id);

-- defaultautoprunepolicy has the registry's default policies. They apply to each namespace
-- that has no policies of its own.
CREATE TABLE defaultautoprunepolicy (
    uuid       character varying(225) PRIMARY KEY,
    policy     text NOT NULL,
    version    bigint NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);

-- Namespaces that refuse the defaults.
CREATE TABLE autoprunewithoutdefaults (
    namespace_id bigint PRIMARY KEY REFERENCES top_level_namespaces (id) ON DELETE CASCADE
);

-- lease and leased_until say which worker works on the task and until when; after leased_until
-- any worker may take the task. If a run needs several time slices, the next time slice
-- continues with the repositories whose ids are greater than next_repository.
CREATE TABLE autoprunetaskstatus (
    namespace_id     bigint PRIMARY KEY REFERENCES top_level_namespaces (id) ON DELETE CASCADE,
    last_ran_ms      bigint,
    status           text,
    policies_version bigint NOT NULL DEFAULT 0,
    lease            uuid,
    leased_until     timestamptz,
    run              uuid,
    next_repository  bigint NOT NULL DEFAULT 0
);

CREATE INDEX autoprunetaskstatus_last_ran_ms_idx ON autoprunetaskstatus (last_ran_ms NULLS FIRST);

-- Successive runs of a namespace that found nothing to delete share one row, whose column
-- "times" has the number of these runs.
CREATE TABLE autopruneruns (
    id           uuid PRIMARY KEY,
    namespace_id bigint NOT NULL,
    namespace    text COLLATE "C" NOT NULL,
    state        text NOT NULL CHECK (state IN ('running', 'success', 'failure', 'stopped')),
    started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at     timestamptz,
    times        bigint NOT NULL DEFAULT 1,
    repositories bigint NOT NULL DEFAULT 0,
    tags         bigint NOT NULL DEFAULT 0,
    deleted      bigint NOT NULL DEFAULT 0,
    failed       bigint NOT NULL DEFAULT 0,
    restored     bigint NOT NULL DEFAULT 0,
    busy         interval NOT NULL DEFAULT '0',
    announced    boolean NOT NULL DEFAULT false,
    error        text,
    notices      jsonb
);

CREATE INDEX autopruneruns_namespace_idx ON autopruneruns (namespace, started_at, id);
CREATE INDEX autopruneruns_started_at_idx ON autopruneruns (started_at, id);

-- autopruneruns_repositories says what a run did in a repository. It has rows only for
-- repositories in which the run deleted tags or failed.
CREATE TABLE autopruneruns_repositories (
    run           uuid NOT NULL REFERENCES autopruneruns (id) ON DELETE CASCADE,
    repository_id bigint NOT NULL,
    repository    text COLLATE "C" NOT NULL,
    deleted       bigint NOT NULL DEFAULT 0,
    policies      jsonb NOT NULL DEFAULT '{}',
    error         text,
    PRIMARY KEY (run, repository_id)
);

-- When an undo restores a tag that a run deleted, the policies that selected the tag don't
-- select it again, as long as neither the tag nor the policy changes.
CREATE TABLE autopruneexemptions (
    repository_id bigint NOT NULL,
    tag_id        bigint NOT NULL,
    pushed_at     timestamptz NOT NULL,
    policy        character varying(225) NOT NULL,
    version       bigint NOT NULL,
    PRIMARY KEY (repository_id, tag_id, policy)
);

-- No policy deletes a tag that matches the pattern of a rule, and no client may delete or move
-- it. A rule applies to one repository, to one namespace, or to the whole registry.
CREATE TABLE tagprotectionrules (
    uuid          uuid PRIMARY KEY,
    namespace_id  bigint REFERENCES top_level_namespaces (id) ON DELETE CASCADE,
    repository_id bigint REFERENCES repositories (id) ON DELETE CASCADE,
    pattern       text NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    CHECK (namespace_id IS NOT NULL OR repository_id IS NULL)
);

CREATE INDEX tagprotectionrules_namespace_id_idx ON tagprotectionrules (namespace_id);
CREATE INDEX tagprotectionrules_repository_id_idx ON tagprotectionrules (repository_id);

INSERT INTO settings (name, value) VALUES ('autoprune_defaults_version', '0'), ('tag_protection_version', '0');

-- An undo reads what its run has deleted.
CREATE INDEX auditlog_run_idx ON auditlog (run, time, id) WHERE run IS NOT NULL;

-- tags_pushed_idx has the tags of a repository in the order in which they were pushed.
CREATE INDEX tags_pushed_idx ON tags (repository_id, (COALESCE(updated_at, created_at)), name);
