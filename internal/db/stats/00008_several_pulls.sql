-- An entry of the audit log may stand for several pulls. So a row of pullstatisticspending may
-- stand for several pulls by digest, or HEAD requests, of one client. Its columns "time" and
-- "port" are those of the first request. Its column "later" describes each further request by
-- two varints: the microseconds since the request before it, and its port.
--
-- A process of an older version, which may still run during an upgrade, would count an audit
-- entry that stands for several pulls as one pull. So a trigger lets a process move the
-- position up to which the audit log was read only if the same UPDATE sets the column "reads"
-- to 2, by which the process declares that it counts such entries correctly. An older process
-- gets an error and counts nothing; newer processes count the entries instead.

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
