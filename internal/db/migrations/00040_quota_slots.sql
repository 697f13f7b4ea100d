-- What a namespace uses is the sum of its row of namespacequotas and of its slots. A commit
-- changes one slot, so commits of one namespace wait for each other only if they use the same
-- slot, and for a row of namespacequotas only near a limit. routines/quotas.sql has the rules.
--
-- The triggers of the version before go on to change the row until they are replaced; the sum
-- stays right. A new slot is closed, so that the first commit that adds something shares out the room.

-- +goose Up
CREATE TABLE namespacequotaslots (
    namespace_id      bigint NOT NULL REFERENCES namespacequotas (namespace_id) ON DELETE CASCADE,
    slot              integer NOT NULL CHECK (slot >= 0),
    bytes             bigint NOT NULL DEFAULT 0,
    repositories      bigint NOT NULL DEFAULT 0,
    tags              bigint NOT NULL DEFAULT 0,
    bytes_room        bigint NOT NULL DEFAULT -4611686018427387904,
    repositories_room bigint NOT NULL DEFAULT -4611686018427387904,
    tags_room         bigint NOT NULL DEFAULT -4611686018427387904,
    PRIMARY KEY (namespace_id, slot)
) WITH (fillfactor = 50);
COMMENT ON TABLE namespacequotaslots IS 'what commits have changed of what namespaces with a quota use, since it was last added up in namespacequotas';
COMMENT ON COLUMN namespacequotaslots.bytes IS 'the change; negative if more was deleted than pushed';
COMMENT ON COLUMN namespacequotaslots.bytes_room IS 'up to which bytes may grow here; the rooms of all slots together are at most what is left of the hard limit';
COMMENT ON COLUMN namespacequotas.bytes IS 'what the namespace used when its slots were last added up; while counted is false, without what was there before the quota';
INSERT INTO namespacequotaslots (namespace_id, slot)
    SELECT namespace_id, s FROM namespacequotas, generate_series(0, 7) AS s;
