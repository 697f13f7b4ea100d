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

-- purser_condition_holds compares the digest that a tag has now, NULL for none, with
-- the conditions of a write: one of if_match, and none of if_no_match. An empty
-- element stands for every digest, NULL for no condition.
CREATE OR REPLACE FUNCTION purser_condition_holds (current bytea, if_match bytea[], if_no_match bytea[])
    RETURNS boolean
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT (if_match IS NULL OR COALESCE(current = ANY (if_match) OR ''::bytea = ANY (if_match), false) AND current IS NOT NULL)
        AND (if_no_match IS NULL OR current IS NULL OR NOT (current = ANY (if_no_match) OR ''::bytea = ANY (if_no_match)))
$$;
