-- purser_refuse makes the remaining statements of a batch change nothing. A statement of the
-- batch calls it when a precondition fails: a blob is missing, or a condition doesn't hold.
-- It stores the reason in a setting that lasts until the transaction ends, and returns the
-- reason that was stored first. Later statements call purser_accepted before they change
-- anything, so the transaction commits without their changes, and no error is raised (and
-- logged) for everyday refusals. What the transaction wrote before the refusal may be lost
-- in a crash, so its commit doesn't wait for the disk.
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

-- purser_digest_text returns the text of a digest column: its first byte names the algorithm.
CREATE OR REPLACE FUNCTION purser_digest_text (digest bytea)
    RETURNS text
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT CASE get_byte(digest, 0) WHEN 1 THEN 'sha256:' ELSE 'sha512:' END || encode(substring(digest FROM 2), 'hex')
$$;

-- purser_require raises an error with SQLSTATE state unless ok is true. It is for cases in
-- which purser_refuse is too late, because the statement has already changed rows, and for
-- processes of the first release, whose batches call it.
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

-- purser_condition_holds says whether a tag's current digest (NULL: no tag) meets the
-- conditions of a write: it must be one of if_match, and none of if_no_match. An empty
-- element matches every digest; a NULL array means that there is no such condition.
CREATE OR REPLACE FUNCTION purser_condition_holds (current bytea, if_match bytea[], if_no_match bytea[])
    RETURNS boolean
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT (if_match IS NULL OR COALESCE(current = ANY (if_match) OR ''::bytea = ANY (if_match), false) AND current IS NOT NULL)
        AND (if_no_match IS NULL OR current IS NULL OR NOT (current = ANY (if_no_match) OR ''::bytea = ANY (if_no_match)))
$$;
