-- purser_refuse makes the remaining statements of a batch change nothing. A statement of the
-- batch calls it if a precondition fails, for example if a blob is missing. It stores the
-- reason in the setting purser.refused until the transaction ends. If an earlier statement has
-- stored a reason, purser_refuse keeps that reason and returns it. Later statements call
-- purser_accepted before they change anything. So the transaction commits without their
-- changes. No error is raised, because PostgreSQL would log it, and some refusals happen every
-- day. The commit of a refused batch doesn't wait for the disk, since it does no harm if a
-- crash undoes what the batch has written before the refusal.
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

-- purser_accepted returns true if no earlier statement of the transaction has called
-- purser_refuse.
CREATE OR REPLACE FUNCTION purser_accepted ()
    RETURNS boolean
    LANGUAGE sql STABLE
    AS $$
    SELECT COALESCE(current_setting('purser.refused', true), '') = ''
$$;

-- purser_digest_text converts a digest column, whose first byte names the algorithm, to text
-- such as sha256:….
CREATE OR REPLACE FUNCTION purser_digest_text (digest bytea)
    RETURNS text
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT CASE get_byte(digest, 0) WHEN 1 THEN 'sha256:' ELSE 'sha512:' END || encode(substring(digest FROM 2), 'hex')
$$;

-- purser_require raises an error with the SQLSTATE given by the parameter "state" unless the
-- parameter "ok" is true. Statements call it where purser_refuse would come too late, because
-- the statement has already changed rows.
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

-- purser_condition_holds checks the precondition of a request (If-Match, If-None-Match). The
-- parameter "current" is the digest that the tag or manifest has now, NULL if it doesn't
-- exist. The condition holds if "current" is in if_match and not in if_no_match. An empty
-- element ("*") matches every digest. A NULL array means that the request has no such header.
CREATE OR REPLACE FUNCTION purser_condition_holds (current bytea, if_match bytea[], if_no_match bytea[])
    RETURNS boolean
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT (if_match IS NULL OR COALESCE(current = ANY (if_match) OR ''::bytea = ANY (if_match), false) AND current IS NOT NULL)
        AND (if_no_match IS NULL OR current IS NULL OR NOT (current = ANY (if_no_match) OR ''::bytea = ANY (if_no_match)))
$$;
