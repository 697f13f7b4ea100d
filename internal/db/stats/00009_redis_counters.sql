-- A counter in Redis grows as long as it exists, and redispullcounters says how much of each
-- counter the statistics have. A flush adds the difference to the statistics, so a flush may
-- be repeated, and two flushes may run at once. Before this version, a flush moved counts into
-- a batch of Redis keys, and the state of the batch in redisflushbatches told whether its
-- counts were in the statistics.
--
-- During an upgrade, processes of the older version may still flush their keys. They don't
-- know the new counters, so a trigger keeps these processes from recording that all counts in
-- Redis were flushed.

-- +goose Up
CREATE TABLE redispullcounters (
    id         uuid PRIMARY KEY,
    born       bigint NOT NULL,
    counted    bigint NOT NULL,
    seq        bigint NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);

COMMENT ON TABLE redispullcounters IS 'what the statistics have of each counter in Redis';
COMMENT ON COLUMN redispullcounters.id IS 'the first 16 bytes of the SHA-256 of the counter''s key in Redis';
COMMENT ON COLUMN redispullcounters.born IS 'the sequence number of the counter''s first pull: a counter that was deleted and made again has a greater one';
COMMENT ON COLUMN redispullcounters.counted IS 'how many of the counter''s pulls are in the statistics';
COMMENT ON COLUMN redispullcounters.seq IS 'the sequence number of the last pull that is in the statistics';
COMMENT ON COLUMN redispullcounters.updated_at IS 'when a flush last found the counter in Redis';

ALTER TABLE pullrecorders ADD COLUMN protocol smallint NOT NULL DEFAULT 1;
COMMENT ON COLUMN pullrecorders.protocol IS 'how the process counts in Redis: 1 in keys whose counts are claimed, 2 in counters that grow';

ALTER TABLE redisprocessingstate ADD COLUMN flush bigint NOT NULL DEFAULT 0, ADD COLUMN redis_flush bigint NOT NULL DEFAULT 0, ADD COLUMN protocol smallint;
COMMENT ON COLUMN redisprocessingstate.flush IS 'the number of the newest flush';
COMMENT ON COLUMN redisprocessingstate.redis_flush IS 'the newest flush that Redis was told of: a Redis that remembers an older one has lost data. redis_epoch is that of batches';
COMMENT ON COLUMN redisprocessingstate.protocol IS 'set to 2 by an UPDATE that moves last_processed_timestamp; a trigger compares it and sets it to NULL';

-- +goose StatementBegin
CREATE FUNCTION purser_redis_flushed() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NEW.protocol IS DISTINCT FROM 2 THEN
        NEW.last_processed_timestamp := OLD.last_processed_timestamp;
    END IF;
    NEW.protocol := NULL;
    RETURN NEW;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION purser_redis_flushed() FROM PUBLIC;

CREATE TRIGGER redis_flushed BEFORE UPDATE ON redisprocessingstate
    FOR EACH ROW EXECUTE FUNCTION purser_redis_flushed();
