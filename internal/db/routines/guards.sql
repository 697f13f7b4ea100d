-- purser_require ends the transaction with SQLSTATE state unless ok. It lets a
-- batch of statements, sent in one round trip, stop at the first that finds
-- what it must not find.
CREATE OR REPLACE FUNCTION purser_require (ok boolean, state text)
    RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF ok IS NOT TRUE THEN
        RAISE EXCEPTION 'requirement not met' USING ERRCODE = state;
    END IF;
END;
$$;
