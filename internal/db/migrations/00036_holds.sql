-- Holds keep manifests that are deployed somewhere: see package hold.
--
-- The lease is in the reporter's row, so a report that changes nothing updates one row however
-- many digests it has, and all holds of a reporter end together, by the clock.
--
-- holds has no foreign key to manifests, since a digest may be held before its manifest arrives.
-- It has none to holdreporters either: the check would double the time of a first report. The
-- view live_holds ignores the holds of a reporter that is gone, and the watcher deletes them in
-- pages.

-- +goose Up
SET LOCAL lock_timeout = '500ms';

CREATE TABLE holdreporters (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace_id   bigint REFERENCES top_level_namespaces (id) ON DELETE CASCADE,
    name           text COLLATE "C" NOT NULL,
    kind           text NOT NULL DEFAULT '',
    lease          interval NOT NULL,
    revision       bigint NOT NULL DEFAULT 0,
    digests        bigint NOT NULL DEFAULT 0,
    account        text COLLATE "C",
    created_at     timestamptz NOT NULL DEFAULT now(),
    reported_at    timestamptz NOT NULL DEFAULT now(),
    expires_at     timestamptz NOT NULL,
    silent_told_at timestamptz,
    ended_told_at  timestamptz,
    UNIQUE NULLS NOT DISTINCT (namespace_id, name)
);
CREATE INDEX holdreporters_expires_at_idx ON holdreporters (expires_at);
COMMENT ON TABLE holdreporters IS 'who reports what is deployed: clusters, hosts, pipelines';
COMMENT ON COLUMN holdreporters.namespace_id IS 'where its holds are in force; NULL: in every namespace';
COMMENT ON COLUMN holdreporters.kind IS 'kubernetes, docker and so on: for people';
COMMENT ON COLUMN holdreporters.revision IS 'rises with each change of its digests';
COMMENT ON COLUMN holdreporters.digests IS 'number of its holds';
COMMENT ON COLUMN holdreporters.account IS 'who sent the last report';
COMMENT ON COLUMN holdreporters.expires_at IS 'when its holds end, unless it reports again';
COMMENT ON COLUMN holdreporters.silent_told_at IS 'when it was told that no report has come for half of the lease; NULL: it was not';
COMMENT ON COLUMN holdreporters.ended_told_at IS 'when it was told that its holds have ended; NULL: it was not';

CREATE TABLE holds (
    digest      bytea NOT NULL,
    reporter_id bigint NOT NULL,
    used_by     text NOT NULL DEFAULT '',
    since       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (digest, reporter_id)
);
CREATE INDEX holds_reporter_id_idx ON holds (reporter_id, digest);
COMMENT ON TABLE holds IS 'digests that reporters hold';
COMMENT ON COLUMN holds.used_by IS 'what uses it there, such as a pod: for people';

CREATE VIEW live_holds AS
    SELECT h.digest, h.used_by, h.since, r.id AS reporter_id, r.name AS reporter, r.namespace_id, r.expires_at
    FROM holds h JOIN holdreporters r ON r.id = h.reporter_id
    WHERE r.expires_at > now();

ALTER TABLE autopruneruns ADD COLUMN held bigint NOT NULL DEFAULT 0, ADD COLUMN held_by jsonb;
COMMENT ON COLUMN autopruneruns.held IS 'tags that policies selected and that stayed because they are held';
COMMENT ON COLUMN autopruneruns.held_by IS 'number of these tags by the name of a reporter that holds them';
