-- Functions about holds: what is deployed somewhere stays. See package hold.

-- purser_holds_lock takes the lock of transactions that delete tags or manifests. It is shared:
-- these transactions don't wait for each other, only for the end of a report, which takes the
-- lock exclusively just before it commits. 1886745447 is the key space of this advisory lock.
CREATE OR REPLACE FUNCTION purser_holds_lock ()
    RETURNS void
    LANGUAGE sql VOLATILE
    AS $$
    SELECT pg_advisory_xact_lock_shared(1886745447, 0)
$$;

-- purser_any_holds returns whether any holds are in force in the namespace.
CREATE OR REPLACE FUNCTION purser_any_holds (namespace bigint)
    RETURNS boolean
    LANGUAGE sql STABLE
    AS $$
    SELECT EXISTS (
        SELECT FROM holdreporters r
        WHERE r.expires_at > now() AND r.digests > 0 AND (r.namespace_id IS NULL OR r.namespace_id = namespace) OFFSET 0)
$$;

-- purser_held returns those of the given manifests of a repository that are held, with one row
-- for each manifest and reporter: the reporter's name, a digest that it holds, what uses this
-- digest there, and when this hold ends.
--
-- A manifest is held if somebody holds its digest or that of a relative. The relatives are the
-- indexes that list the manifest, the manifest's subject, the relatives of these indexes and of
-- this subject, and everything that one of all these lists. So with an index, its children and
-- the manifests attached to them are held; and with a child, its index and its siblings. A held
-- signature doesn't hold the image that it signs. A subject counts even if the registry doesn't
-- have it.
--
-- The CTE up has, for each given manifest (start), the manifest itself and all manifests above
-- it. The CTE below has what is below each of those: it is keyed by the manifest above (top) and
-- not by the given one, so that an index of a thousand children is walked once, and not once for
-- each child. UNION ends cycles. "Plans" in package db says why lookups have OFFSET 0 or compare
-- with BETWEEN and name the order of the index that must answer them. Without enable_sort = off,
-- statistics from an empty table made the planner read the whole primary key of
-- manifest_references for each manifest and sort the result. The function sets the planner's
-- switches itself, because a session keeps its plans, and some callers have turned off hash joins,
-- by which up and found are joined.
CREATE OR REPLACE FUNCTION purser_held (namespace bigint, repository bigint, manifests bigint[])
    RETURNS TABLE (manifest_id bigint, reporter text, digest bytea, used_by text, expires_at timestamptz)
    LANGUAGE plpgsql STABLE
    SET enable_hashjoin = on
    SET enable_nestloop = on
    SET enable_seqscan = off
    SET enable_sort = off
    SET enable_incremental_sort = off
    SET plan_cache_mode = force_generic_plan
    AS $$
#variable_conflict use_column
BEGIN
    IF NOT purser_any_holds(namespace) THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH RECURSIVE up (start, id, digest, subject) AS (
        SELECT m.id, m.id, m.digest, m.subject_digest
        FROM (SELECT DISTINCT g.id FROM unnest(manifests) AS g (id)) w
        CROSS JOIN LATERAL (
            SELECT o.id, o.digest, o.subject_digest FROM manifests o
            WHERE o.top_level_namespace_id = namespace AND o.repository_id = repository AND o.id BETWEEN w.id AND w.id
            ORDER BY o.id LIMIT 1) m
        UNION
        SELECT u.start, a.id, a.digest, a.subject_digest
        FROM up u
        CROSS JOIN LATERAL (
            SELECT p.id, p.digest, p.subject_digest
            FROM (
                SELECT x.parent_id FROM manifest_references x
                WHERE x.top_level_namespace_id = namespace AND x.repository_id = repository AND x.child_id BETWEEN u.id AND u.id
                ORDER BY x.child_id OFFSET 0) x
            CROSS JOIN LATERAL (
                SELECT o.id, o.digest, o.subject_digest FROM manifests o
                WHERE o.top_level_namespace_id = namespace AND o.repository_id = repository AND o.id BETWEEN x.parent_id AND x.parent_id
                ORDER BY o.id LIMIT 1) p
            UNION ALL
            SELECT s.id, s.digest, s.subject_digest
            FROM (
                SELECT o.id, o.digest, o.subject_digest FROM manifests o
                WHERE o.top_level_namespace_id = namespace AND o.repository_id = repository AND o.digest BETWEEN u.subject AND u.subject
                ORDER BY o.digest LIMIT 1) s) a
    ), tops AS MATERIALIZED (
        SELECT DISTINCT u.id, u.digest, u.subject FROM up u
    ), below (top, id, digest) AS (
        SELECT t.id, t.id, t.digest FROM tops t
        UNION
        SELECT b.top, c.id, c.digest
        FROM below b
        CROSS JOIN LATERAL (
            SELECT x.child_id FROM manifest_references x
            WHERE x.repository_id = repository AND x.top_level_namespace_id = namespace AND x.parent_id BETWEEN b.id AND b.id
            ORDER BY x.parent_id, x.child_id OFFSET 0) x
        CROSS JOIN LATERAL (
            SELECT o.id, o.digest FROM manifests o
            WHERE o.top_level_namespace_id = namespace AND o.repository_id = repository AND o.id BETWEEN x.child_id AND x.child_id
            ORDER BY o.id LIMIT 1) c
    ), found AS MATERIALIZED (
        SELECT DISTINCT ON (d.top, r.id) d.top, r.id AS reporter_id, r.name, h.digest, h.used_by, LEAST(r.expires_at, h.ends_at + r.postponed) AS expires_at
        FROM (
            SELECT b.top, b.digest FROM below b
            UNION ALL
            SELECT t.id, t.subject FROM tops t WHERE t.subject IS NOT NULL) d
        CROSS JOIN LATERAL (
            SELECT o.reporter_id, o.digest, o.used_by, o.ends_at FROM holds o
            WHERE o.digest BETWEEN d.digest AND d.digest ORDER BY o.digest OFFSET 0) h
        CROSS JOIN LATERAL (
            SELECT o.id, o.name, o.expires_at, o.postponed FROM holdreporters o
            WHERE o.id BETWEEN h.reporter_id AND h.reporter_id AND o.expires_at > now() AND (o.namespace_id IS NULL OR o.namespace_id = namespace)
                AND (h.ends_at IS NULL OR h.ends_at + o.postponed > now())
            ORDER BY o.id LIMIT 1) r
        ORDER BY d.top, r.id, d.digest
    )
    SELECT DISTINCT ON (u.start, f.reporter_id) u.start, f.name, f.digest, f.used_by, f.expires_at
    FROM up u JOIN found f ON f.top = u.id
    ORDER BY u.start, f.reporter_id, u.id = u.start DESC, f.digest;
END;
$$;

-- purser_held_names says who holds the images that the names of tags refer to, as in
-- sha256-….sig, the name of a signature's tag: the name has the first 64 digits of the image's
-- digest. Other names are ignored. The image is held if somebody holds its digest, even if the
-- repository doesn't have it, or that of a relative: see purser_held.
CREATE OR REPLACE FUNCTION purser_held_names (namespace bigint, repository bigint, names text[])
    RETURNS TABLE (name text, reporter text, digest bytea, used_by text, expires_at timestamptz)
    LANGUAGE plpgsql STABLE
    SET enable_seqscan = off
    SET plan_cache_mode = force_generic_plan
    AS $$
#variable_conflict use_column
BEGIN
    IF NOT purser_any_holds(namespace) THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH images AS MATERIALIZED (
        SELECT t.name, d.first, CASE WHEN t.name LIKE 'sha512-%' THEN d.first || decode(repeat('ff', 32), 'hex') ELSE d.first END AS last
        FROM unnest(names) AS t (name)
        CROSS JOIN LATERAL (
            SELECT decode(CASE WHEN t.name LIKE 'sha512-%' THEN '02' ELSE '01' END || substring(t.name FROM 8 FOR 64), 'hex') AS first
            WHERE t.name ~ '^sha(256|512)-[0-9a-f]{64}' OFFSET 0) d
    )
    SELECT i.name, r.name, h.digest, h.used_by, LEAST(r.expires_at, h.ends_at + r.postponed)
    FROM images i
    CROSS JOIN LATERAL (
        SELECT o.reporter_id, o.digest, o.used_by, o.ends_at FROM holds o
        WHERE o.digest BETWEEN i.first AND i.last ORDER BY o.digest OFFSET 0) h
    CROSS JOIN LATERAL (
        SELECT o.name, o.expires_at, o.postponed FROM holdreporters o
        WHERE o.id BETWEEN h.reporter_id AND h.reporter_id AND o.expires_at > now() AND (o.namespace_id IS NULL OR o.namespace_id = namespace)
                AND (h.ends_at IS NULL OR h.ends_at + o.postponed > now())
        ORDER BY o.id LIMIT 1) r
    UNION
    SELECT i.name, m.reporter, m.digest, m.used_by, m.expires_at
    FROM images i
    CROSS JOIN LATERAL (
        SELECT o.id FROM manifests o
        WHERE o.top_level_namespace_id = namespace AND o.repository_id = repository AND o.digest BETWEEN i.first AND i.last
        ORDER BY o.digest OFFSET 0) o
    CROSS JOIN LATERAL purser_held(namespace, repository, ARRAY[o.id]) m;
END;
$$;
