-- The history of pulls says how many pulls there were on each day, in UTC: of the registry
-- (pullhistory), of a namespace, of a repository, of a tag and of a manifest. The transaction
-- that adds pulls to the statistics adds them to the history too.
--
-- For a tag or manifest, the row of its statistics has the pulls of the newest day on which it
-- was pulled (day, day_pulls). The history table has the pulls of earlier days. So counting
-- writes a row of history only when a tag or manifest is pulled for the first time on another
-- day. The UPDATE that does this returns in earlier_day and earlier_pulls what is to be added
-- to the history table. It returns them through columns because RETURNING can't return the
-- values from before the update. No other statement reads these two columns.
--
-- The history of the registry and of a namespace has the pulls of deleted repositories too, and
-- that of a repository the pulls of deleted tags and manifests.
--
-- A process of an older version would count without the history. So triggers refuse the
-- UPDATEs by which such a process would record that it has counted, and newer processes count
-- these pulls instead.

-- +goose Up
SET LOCAL lock_timeout = '500ms';

ALTER TABLE tagpullstatistics ADD COLUMN day date, ADD COLUMN day_pulls bigint, ADD COLUMN earlier_day date, ADD COLUMN earlier_pulls bigint;
ALTER TABLE manifestpullstatistics ADD COLUMN day date, ADD COLUMN day_pulls bigint, ADD COLUMN earlier_day date, ADD COLUMN earlier_pulls bigint;

COMMENT ON COLUMN tagpullstatistics.day IS 'the newest day with pulls; NULL: no pull since there is a history';
COMMENT ON COLUMN tagpullstatistics.day_pulls IS 'pulls of that day';
COMMENT ON COLUMN tagpullstatistics.earlier_day IS 'what the last count has added to tagpullhistory: a day, or NULL';
COMMENT ON COLUMN tagpullstatistics.earlier_pulls IS 'pulls that were added for earlier_day';
COMMENT ON COLUMN manifestpullstatistics.day IS 'the newest day with pulls; NULL: no pull since there is a history';
COMMENT ON COLUMN manifestpullstatistics.day_pulls IS 'pulls of that day';
COMMENT ON COLUMN manifestpullstatistics.earlier_day IS 'what the last count has added to manifestpullhistory: a day, or NULL';
COMMENT ON COLUMN manifestpullstatistics.earlier_pulls IS 'pulls that were added for earlier_day';

CREATE TABLE tagpullhistory (
    repository_id bigint NOT NULL,
    tag_name      text COLLATE "C" NOT NULL,
    day           date NOT NULL,
    pulls         bigint NOT NULL,
    PRIMARY KEY (repository_id, tag_name, day)
);
CREATE INDEX tagpullhistory_day_idx ON tagpullhistory (day);

CREATE TABLE manifestpullhistory (
    repository_id   bigint NOT NULL,
    manifest_digest text COLLATE "C" NOT NULL,
    day             date NOT NULL,
    pulls           bigint NOT NULL,
    PRIMARY KEY (repository_id, manifest_digest, day)
);
CREATE INDEX manifestpullhistory_day_idx ON manifestpullhistory (day);

-- Rows of today are updated often. The free space keeps the new versions on the same pages.
CREATE TABLE repositorypullhistory (
    repository_id bigint NOT NULL,
    day           date NOT NULL,
    namespace_id  bigint NOT NULL,
    pulls         bigint NOT NULL,
    PRIMARY KEY (repository_id, day)
) WITH (fillfactor = 80);
CREATE INDEX repositorypullhistory_day_idx ON repositorypullhistory (day);
CREATE INDEX repositorypullhistory_namespace_idx ON repositorypullhistory (namespace_id, day);

CREATE TABLE namespacepullhistory (
    namespace_id bigint NOT NULL,
    day          date NOT NULL,
    pulls        bigint NOT NULL,
    PRIMARY KEY (namespace_id, day)
) WITH (fillfactor = 50);
CREATE INDEX namespacepullhistory_day_idx ON namespacepullhistory (day);

CREATE TABLE pullhistory (
    day   date PRIMARY KEY,
    pulls bigint NOT NULL
) WITH (fillfactor = 50);

ALTER TABLE pullstatisticsprocessingstate ADD COLUMN history_since timestamptz NOT NULL DEFAULT now();
COMMENT ON COLUMN pullstatisticsprocessingstate.history_since IS 'every pull since then that was counted is in the history';
COMMENT ON COLUMN pullstatisticsprocessingstate.reads IS 'set to 3 by an UPDATE that moves the watermark; a trigger compares it and sets it to NULL';
COMMENT ON COLUMN redisprocessingstate.protocol IS 'set to 3 by an UPDATE that moves last_processed_timestamp or keys_processed_count; a trigger compares it and sets it to NULL';

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION purser_pullstatistics_readers() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (NEW.last_processed_xid, NEW.last_processed_log_id) IS DISTINCT FROM (OLD.last_processed_xid, OLD.last_processed_log_id)
        AND NEW.reads IS DISTINCT FROM 3 THEN
        RAISE EXCEPTION 'this version of Purser can''t count what newer ones log: they do it'
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Finish the upgrade: stop the processes of the older version.';
    END IF;
    NEW.reads := NULL;
    RETURN NEW;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION purser_pullstatistics_readers() FROM PUBLIC;

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION purser_redis_flushed() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NEW.protocol IS DISTINCT FROM 3 THEN
        IF NEW.keys_processed_count <> OLD.keys_processed_count THEN
            RAISE EXCEPTION 'this version of Purser can''t count in the history of pulls: newer ones do it'
                USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Finish the upgrade: stop the processes of the older version.';
        END IF;
        NEW.last_processed_timestamp := OLD.last_processed_timestamp;
    END IF;
    NEW.protocol := NULL;
    RETURN NEW;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION purser_redis_flushed() FROM PUBLIC;
