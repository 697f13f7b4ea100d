-- purser_time returns the time from which dates in the future are counted, such as the end of what is in
-- the trash: now(), but not before the last time at which the clock was trusted. Counted from a clock
-- that is behind, they would be over when it is right again.
CREATE OR REPLACE FUNCTION purser_time ()
    RETURNS timestamptz
    LANGUAGE plpgsql STABLE
    AS $$
BEGIN
    RETURN GREATEST(now(), (SELECT trusted_at FROM clock));
END;
$$;

-- purser_today returns the day, UTC. Days are counted so wherever a table has a row for each.
CREATE OR REPLACE FUNCTION purser_today ()
    RETURNS date
    LANGUAGE sql STABLE
    AS $$
SELECT (now() AT TIME ZONE 'UTC')::date;
$$;

-- purser_push_time returns the time of a push of a tag: now(), unless the clock is wrong or was.
-- Policies order tags by this time, so it is after that of all tags of the repository: they may have
-- been pushed while the clock was ahead, for a moment that no process has noticed. And it isn't before
-- the last time at which the clock was trusted. PL/pgSQL keeps the plan between pushes; a function in
-- SQL is planned in each.
CREATE OR REPLACE FUNCTION purser_push_time (namespace bigint, repository bigint)
    RETURNS timestamptz
    LANGUAGE plpgsql STABLE
    AS $$
BEGIN
    RETURN GREATEST(now(), (SELECT trusted_at FROM clock), (
        SELECT COALESCE(updated_at, created_at) + interval '1 microsecond' FROM tags
        WHERE top_level_namespace_id = namespace AND repository_id = repository
        ORDER BY COALESCE(updated_at, created_at) DESC LIMIT 1));
END;
$$;
