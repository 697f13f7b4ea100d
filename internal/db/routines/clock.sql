-- purser_push_time returns the time of a push of a tag: now(), unless the clock is wrong or was.
-- Policies order tags by this time. If the clock is behind, what is pushed now would count as older
-- than all else; and after it was ahead, as older than what was pushed then. So the time isn't before
-- the last one at which the clock was trusted, and it is after that of all tags of the repository.
CREATE OR REPLACE FUNCTION purser_push_time (namespace bigint, repository bigint)
    RETURNS timestamptz
    LANGUAGE plpgsql STABLE
    AS $$
DECLARE
    c clock%ROWTYPE;
BEGIN
    SELECT * INTO c FROM clock;
    IF c.doubt IS NULL AND now() >= COALESCE(GREATEST(c.trusted_at, c.confirmed_to), '-infinity') THEN
        RETURN now();
    END IF;
    RETURN GREATEST(now(), c.trusted_at, (
        SELECT COALESCE(t.updated_at, t.created_at) + interval '1 microsecond' FROM tags t
        WHERE t.top_level_namespace_id = namespace AND t.repository_id = repository
        ORDER BY COALESCE(t.updated_at, t.created_at) DESC LIMIT 1));
END;
$$;
