-- gc_keep_foreign_objects keeps objects of another registry out of the table of pending deletions,
-- unless their import is finished: it writes them to gc_foreign_objects instead. A trigger does this, and
-- not the statements that record pending deletions, so that no statement can leave it out.
--
-- The row lock on the import makes the end of the import wait for this transaction. So the
-- statement that ends it, and moves the rows of gc_foreign_objects, sees the row that is written
-- here; and a transaction that comes later sees that the import is finished.
CREATE OR REPLACE FUNCTION gc_keep_foreign_objects ()
    RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM FROM imports WHERE starts_with(NEW.storage_key, source) AND finished_at IS NULL FOR SHARE;
    IF NOT FOUND AND EXISTS (SELECT FROM imports WHERE starts_with(NEW.storage_key, source)) THEN
        RETURN NEW;
    END IF;
    INSERT INTO gc_foreign_objects (storage_key, size) VALUES (NEW.storage_key, NEW.size) ON CONFLICT DO NOTHING;
    RETURN NULL;
END;
$$;

-- No key of an object that Purser has written contains a "/", so this costs the others nothing.
CREATE OR REPLACE TRIGGER gc_keep_foreign_objects_trigger
    BEFORE INSERT ON gc_doomed_objects
    FOR EACH ROW
    WHEN (position('/' IN NEW.storage_key) > 0)
    EXECUTE FUNCTION gc_keep_foreign_objects();
