-- Access control: accounts and their credentials, teams, grants, the keys that sign registry
-- tokens, sessions of browsers, failed log-ins, and certificates that ACME has issued.
--
-- No secret of an account is stored as such. A password is stored as an argon2id hash. A secret
-- that Purser has generated has 160 random bits or more, so its SHA-256 can't be reversed by
-- guessing; it is stored as that, and is found by an index without computing a slow hash.

-- +goose Up
SET LOCAL lock_timeout = '500ms';

-- is_public says who may pull: true is everybody, or every account if auth.anonymous_pull is
-- off; false is only those with a role; NULL follows the setting auth.default_visibility.
-- Repositories from before there was access control have NULL, so closing a registry opens none
-- of them. The column visibility is kept for replicas of the first release during an upgrade.
ALTER TABLE repositories ADD COLUMN is_public boolean;
UPDATE repositories SET is_public = false WHERE visibility = 'private';

CREATE OR REPLACE VIEW live_repositories AS
SELECT r.top_level_namespace_id, r.id, r.path, r.created_at, r.is_public
FROM repositories r JOIN top_level_namespaces n ON n.id = r.top_level_namespace_id;

-- With these indexes, a list for a client who may read few repositories reads only these.
CREATE INDEX repositories_namespace_path_idx ON repositories (top_level_namespace_id, path);
CREATE INDEX repositories_public_path_idx ON repositories (path) WHERE is_public;
CREATE INDEX repositories_public_id_idx ON repositories (id) WHERE is_public;
CREATE INDEX repositories_public_namespace_idx ON repositories (top_level_namespace_id, id) WHERE is_public;
COMMENT ON COLUMN repositories.is_public IS 'whether everybody may pull; NULL: as auth.default_visibility says';
COMMENT ON COLUMN repositories.visibility IS 'of the first release, which had no access control; see is_public';

CREATE TABLE accounts (
    id                     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name                   text COLLATE "C" NOT NULL UNIQUE,
    kind                   text NOT NULL CHECK (kind IN ('user', 'robot')),
    top_level_namespace_id bigint REFERENCES top_level_namespaces ON DELETE CASCADE,
    source                 text NOT NULL DEFAULT 'local' CHECK (source IN ('local', 'htpasswd', 'oidc', 'ldap')),
    subject                text COLLATE "C",
    email                  text,
    description            text NOT NULL DEFAULT '',
    password_hash          text,
    superuser              boolean NOT NULL DEFAULT false,
    repository_patterns    text[],
    actions                text[],
    created_at             timestamptz NOT NULL DEFAULT now(),
    disabled_at            timestamptz,
    last_used_at           timestamptz,
    CHECK ((kind = 'robot') = (top_level_namespace_id IS NOT NULL)),
    CHECK (kind = 'user' OR NOT superuser)
);
CREATE UNIQUE INDEX accounts_source_subject_idx ON accounts (source, subject) WHERE subject IS NOT NULL;
CREATE INDEX accounts_top_level_namespace_id_idx ON accounts (top_level_namespace_id, name);
COMMENT ON TABLE accounts IS 'people and robots';
COMMENT ON COLUMN accounts.name IS 'of a robot: namespace+name';
COMMENT ON COLUMN accounts.top_level_namespace_id IS 'of a robot: the namespace that it belongs to';
COMMENT ON COLUMN accounts.source IS 'who checks the password';
COMMENT ON COLUMN accounts.subject IS 'the account''s identity at its source: issuer and subject of OpenID Connect, or the DN of LDAP';
COMMENT ON COLUMN accounts.repository_patterns IS 'the only repositories that it may use; NULL: no such limit';
COMMENT ON COLUMN accounts.actions IS 'the only actions that it may do; NULL: no such limit';
COMMENT ON COLUMN accounts.last_used_at IS 'of its last log-in, to within some minutes';

CREATE TABLE credentials (
    id                  uuid PRIMARY KEY,
    account_id          bigint NOT NULL REFERENCES accounts ON DELETE CASCADE,
    kind                text NOT NULL CHECK (kind IN ('robot', 'personal', 'refresh', 'federated')),
    title               text NOT NULL DEFAULT '',
    secret_hash         bytea NOT NULL UNIQUE,
    repository_patterns text[],
    actions             text[],
    created_at          timestamptz NOT NULL DEFAULT now(),
    expires_at          timestamptz,
    last_used_at        timestamptz
);
CREATE INDEX credentials_account_id_idx ON credentials (account_id, created_at);
CREATE INDEX credentials_expires_at_idx ON credentials (expires_at) WHERE expires_at IS NOT NULL;
COMMENT ON TABLE credentials IS 'secrets that Purser has generated for accounts';
COMMENT ON COLUMN credentials.secret_hash IS 'SHA-256 of the secret';

CREATE TABLE robotfederations (
    id         uuid PRIMARY KEY,
    account_id bigint NOT NULL REFERENCES accounts ON DELETE CASCADE,
    issuer     text NOT NULL,
    audience   text NOT NULL,
    claims     jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX robotfederations_account_id_idx ON robotfederations (account_id);
COMMENT ON TABLE robotfederations IS 'rules that let a token of another issuer log in as a robot';
COMMENT ON COLUMN robotfederations.claims IS 'names of claims, each with the pattern that its value must match';

CREATE TABLE teams (
    id                     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    top_level_namespace_id bigint NOT NULL REFERENCES top_level_namespaces ON DELETE CASCADE,
    name                   text COLLATE "C" NOT NULL,
    role                   text CHECK (role IN ('reader', 'writer', 'maintainer', 'administrator')),
    description            text NOT NULL DEFAULT '',
    created_at             timestamptz NOT NULL DEFAULT now(),
    UNIQUE (top_level_namespace_id, name)
);
COMMENT ON COLUMN teams.role IS 'of its members in the namespace; NULL: none';

CREATE TABLE teammembers (
    team_id    bigint NOT NULL REFERENCES teams ON DELETE CASCADE,
    account_id bigint NOT NULL REFERENCES accounts ON DELETE CASCADE,
    synced     boolean NOT NULL DEFAULT false,
    PRIMARY KEY (team_id, account_id)
);
CREATE INDEX teammembers_account_id_idx ON teammembers (account_id, team_id);
COMMENT ON COLUMN teammembers.synced IS 'a member by a group of OpenID Connect or LDAP, until a log-in without that group';

CREATE TABLE teamgroups (
    team_id    bigint NOT NULL REFERENCES teams ON DELETE CASCADE,
    source     text NOT NULL CHECK (source IN ('oidc', 'ldap')),
    group_name text COLLATE "C" NOT NULL,
    PRIMARY KEY (source, group_name, team_id)
);
CREATE INDEX teamgroups_team_id_idx ON teamgroups (team_id);
COMMENT ON TABLE teamgroups IS 'groups whose members become members of a team when they log in';

CREATE TABLE grants (
    id                     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    top_level_namespace_id bigint NOT NULL REFERENCES top_level_namespaces ON DELETE CASCADE,
    repository_id          bigint REFERENCES repositories ON DELETE CASCADE,
    account_id             bigint REFERENCES accounts ON DELETE CASCADE,
    team_id                bigint REFERENCES teams ON DELETE CASCADE,
    role                   text NOT NULL CHECK (role IN ('reader', 'writer', 'maintainer', 'administrator')),
    created_at             timestamptz NOT NULL DEFAULT now(),
    CHECK (num_nonnulls(account_id, team_id) = 1),
    UNIQUE NULLS NOT DISTINCT (top_level_namespace_id, repository_id, account_id, team_id)
);
CREATE INDEX grants_account_id_idx ON grants (account_id, top_level_namespace_id) WHERE account_id IS NOT NULL;
CREATE INDEX grants_team_id_idx ON grants (team_id, top_level_namespace_id) WHERE team_id IS NOT NULL;
CREATE INDEX grants_repository_id_idx ON grants (repository_id);
COMMENT ON TABLE grants IS 'roles of accounts and teams in a namespace or a repository';
COMMENT ON COLUMN grants.repository_id IS 'NULL: the role is in the whole namespace';

CREATE TABLE stars (
    account_id    bigint NOT NULL REFERENCES accounts ON DELETE CASCADE,
    repository_id bigint NOT NULL REFERENCES repositories ON DELETE CASCADE,
    created_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (account_id, repository_id)
);
CREATE INDEX stars_repository_id_idx ON stars (repository_id);
COMMENT ON TABLE stars IS 'repositories to which accounts have given a star; repositories.starred_at is the star of whoever is not logged in';

CREATE TABLE tokenkeys (
    id          text COLLATE "C" PRIMARY KEY,
    private_key bytea NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    signs_from  timestamptz NOT NULL,
    signs_until timestamptz NOT NULL,
    valid_until timestamptz NOT NULL
);
COMMENT ON TABLE tokenkeys IS 'Ed25519 keys that sign registry tokens';
COMMENT ON COLUMN tokenkeys.signs_from IS 'no replica signs with it before, so that all of them know it by then';
COMMENT ON COLUMN tokenkeys.valid_until IS 'when the last token that it may have signed has expired';

CREATE TABLE sessions (
    secret_hash  bytea PRIMARY KEY,
    id           uuid NOT NULL UNIQUE,
    account_id   bigint NOT NULL REFERENCES accounts ON DELETE CASCADE,
    created_at   timestamptz NOT NULL DEFAULT now(),
    last_used_at timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz NOT NULL,
    address      text,
    user_agent   text
);
CREATE INDEX sessions_account_id_idx ON sessions (account_id);
CREATE INDEX sessions_expires_at_idx ON sessions (expires_at);
COMMENT ON TABLE sessions IS 'log-ins of browsers';

-- Failed log-ins are counted for a short time only, so the table needs no write-ahead log: after
-- a crash of PostgreSQL it is empty. The functions of routines/loginfailures.sql write it.
CREATE UNLOGGED TABLE loginfailures (
    subject    bytea PRIMARY KEY,
    failures   double precision NOT NULL,
    updated_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL
);
CREATE INDEX loginfailures_expires_at_idx ON loginfailures (expires_at);
COMMENT ON TABLE loginfailures IS 'recent failed log-ins by account and by address, and where each account has logged in lately';
COMMENT ON COLUMN loginfailures.subject IS 'a (account), d (address) or p (an account at an address where it has logged in), and 16 bytes of a hash';
COMMENT ON COLUMN loginfailures.failures IS 'failed log-ins and those in progress, as of updated_at; the number decays with time';
COMMENT ON COLUMN loginfailures.expires_at IS 'when the row says no more than a missing row, and may be deleted';

CREATE TABLE acmecertificates (
    name       text COLLATE "C" PRIMARY KEY,
    content    bytea NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE acmecertificates IS 'accounts, certificates and challenges of ACME, which all replicas share';
