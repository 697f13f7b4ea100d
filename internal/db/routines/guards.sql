-- purser_refuse lets a batch of statements, sent in one round trip, change nothing once
-- one of them has found what it must not find: a blob is missing, a condition doesn't
-- hold. It notes the reason until the transaction ends, and returns the first that was
-- noted. Statements that follow ask purser_accepted before they change anything, so that
-- the transaction commits without them, and no error is raised for what happens every
-- day. What the transaction has written before it was refused need not survive a crash,
-- so nobody waits until the disk has it.
CREATE OR REPLACE FUNCTION purser_refuse (reason text)
    RETURNS text
    LANGUAGE plpgsql
    AS $$
DECLARE
    first text := current_setting('purser.refused', true);
BEGIN
    IF first <> '' THEN
        RETURN first;
    END IF;
    PERFORM set_config('purser.refused', reason, true), set_config('synchronous_commit', 'off', true);
    RETURN reason;
END;
$$;

-- purser_accepted says whether purser_refuse was not called before the statement, in
-- its transaction.
CREATE OR REPLACE FUNCTION purser_accepted ()
    RETURNS boolean
    LANGUAGE sql STABLE
    AS $$
    SELECT COALESCE(current_setting('purser.refused', true), '') = ''
$$;

-- purser_require ends the transaction with SQLSTATE state unless ok. It is for what
-- purser_refuse comes too late for, since the statement has changed something already;
-- and for processes of the first release, whose batches rely on it.
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
