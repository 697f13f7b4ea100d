-- An entry of the audit log may stand for several pulls. A row here may stand for several
-- pulls by digest, or HEAD requests, of one client: time and port are those of the first.
-- later has, as varints, the microseconds since the one before and the port of each other.
--
-- A process of an older version would count such an entry as one pull. It may still run
-- during an upgrade, so the watermark moves only for who says, in the same statement, that
-- it knows the numbers: reads. Others get an error, and what they didn't count is left for
-- those who can.

-- +goose Up
ALTER TABLE pullstatisticspending ADD COLUMN later bytea;
ALTER TABLE pullstatisticsprocessingstate ADD COLUMN reads smallint;

COMMENT ON COLUMN pullstatisticspending.later IS 'the requests behind the first, NULL: there are none';
COMMENT ON COLUMN pullstatisticsprocessingstate.reads IS 'set to 2 by an UPDATE that moves the watermark; a trigger compares it and sets it to NULL';

-- +goose StatementBegin
CREATE FUNCTION purser_pullstatistics_readers() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (NEW.last_processed_xid, NEW.last_processed_log_id) IS DISTINCT FROM (OLD.last_processed_xid, OLD.last_processed_log_id)
        AND NEW.reads IS DISTINCT FROM 2 THEN
        RAISE EXCEPTION 'this version of Purser can''t count what newer ones log: they do it'
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Finish the upgrade: stop the processes of the older version.';
    END IF;
    NEW.reads := NULL;
    RETURN NEW;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION purser_pullstatistics_readers() FROM PUBLIC;

CREATE TRIGGER pullstatistics_readers BEFORE UPDATE ON pullstatisticsprocessingstate
    FOR EACH ROW EXECUTE FUNCTION purser_pullstatistics_readers();
