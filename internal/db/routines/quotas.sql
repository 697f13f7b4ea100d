-- These triggers keep the numbers of namespacequotas: the bytes of a namespace's blobs, each
-- blob counted once however many of the namespace's repositories have it, its repositories and
-- its tags. Since triggers do it, every change counts: by a push, a mount, garbage collection,
-- pruning, undo, the clean-up of deleted repositories, or psql. They also refuse what would
-- exceed a hard limit, so no committed state does.
--
-- Why the numbers are exact. A trigger first locks the namespace's row of namespacequotas, and
-- keeps the lock until the transaction ends. In a later statement, which sees everything that
-- was committed before it began (READ COMMITTED), it looks which of the blobs are still, or
-- already, linked to another repository of the namespace. So the transactions that change what
-- a namespace uses come one after another, from this lock to their commit; each sees the changes
-- of those before it and none of those after it, and adds the difference that it makes itself.
-- It doesn't matter which other locks the transactions take, nor in which order they changed
-- rows before their triggers ran.
--
-- The lock is the last one that a transaction waits for (see the package comment of catalog): a
-- client's transaction that has it waits for no other row or advisory lock, so it is held only
-- for as long as the commit takes. Therefore the triggers' names sort behind those of the other
-- triggers on these tables, and the deletion of a manifest, which deletes tags first and other
-- rows later, counts its tags at its end (purser_quota_later). Several namespaces are locked in
-- the order of their ids. Workers may wait for other locks while they have it; their
-- lock_timeout is below deadlock_timeout, so in a deadlock the worker gives up.
--
-- A namespace without a row of namespacequotas costs one look into that table.

-- shown_quotas shows the quotas of namespaces that exist, as package catalog reads them. A limit
-- of 0 is none.
CREATE OR REPLACE VIEW shown_quotas AS
SELECT q.id, n.name, q.namespace_id,
    COALESCE(q.bytes_limit, 0) AS bytes_limit,
    COALESCE(q.repositories_limit, 0) AS repositories_limit,
    COALESCE(q.tags_limit, 0) AS tags_limit,
    q.bytes, q.repositories, q.tags, q.counted, q.created_at,
    ARRAY(SELECT l.id FROM namespacequotalimits l WHERE l.namespace_id = q.namespace_id ORDER BY l.percent, l.kind DESC) AS step_ids,
    ARRAY(SELECT l.kind FROM namespacequotalimits l WHERE l.namespace_id = q.namespace_id ORDER BY l.percent, l.kind DESC) AS kinds,
    ARRAY(SELECT l.percent FROM namespacequotalimits l WHERE l.namespace_id = q.namespace_id ORDER BY l.percent, l.kind DESC) AS percents
FROM top_level_namespaces n JOIN namespacequotas q ON q.namespace_id = n.id;

-- purser_quota_part returns percent hundredths of a limit, rounded down; NULL if there is no limit.
CREATE OR REPLACE FUNCTION purser_quota_part (most bigint, percent integer)
    RETURNS bigint
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT most / 100 * percent + most % 100 * percent / 100
$$;

-- purser_quota_check raises the error PQ001 if something is added to what a namespace uses and
-- the sum exceeds a hard limit. The error's detail is JSON with the numbers.
CREATE OR REPLACE FUNCTION purser_quota_check (what text, most bigint, used bigint, more bigint)
    RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF more > 0 AND used > most THEN
        RAISE EXCEPTION 'the quota of the namespace is exceeded: %', what
            USING ERRCODE = 'PQ001',
                DETAIL = json_build_object('quota', what, 'limit', most, 'used', used - more, 'needed', more);
    END IF;
END;
$$;

-- purser_quota_add adds to what a namespace uses, if the namespace has a quota. A quota whose
-- content isn't counted yet refuses nothing.
CREATE OR REPLACE FUNCTION purser_quota_add (namespace bigint, more_bytes bigint, more_repositories bigint, more_tags bigint)
    RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    q namespacequotas%ROWTYPE;
BEGIN
    UPDATE namespacequotas u
    SET bytes = u.bytes + more_bytes, repositories = u.repositories + more_repositories, tags = u.tags + more_tags
    WHERE u.namespace_id = namespace
    RETURNING u.* INTO q;
    IF q.counted AND q.hard_percent IS NOT NULL THEN
        PERFORM purser_quota_check('bytes', purser_quota_part(q.bytes_limit, q.hard_percent), q.bytes, more_bytes),
            purser_quota_check('repositories', purser_quota_part(q.repositories_limit, q.hard_percent), q.repositories, more_repositories),
            purser_quota_check('tags', purser_quota_part(q.tags_limit, q.hard_percent), q.tags, more_tags);
    END IF;
END;
$$;

-- purser_quota_lock locks the rows of namespacequotas of those of the namespaces that have one,
-- in the order of their ids, and returns their ids.
CREATE OR REPLACE FUNCTION purser_quota_lock (namespaces bigint[])
    RETURNS bigint[]
    LANGUAGE sql VOLATILE
    AS $$
    SELECT array_agg(namespace_id) FROM (
        SELECT namespace_id FROM namespacequotas
        WHERE namespace_id = ANY (namespaces)
        ORDER BY namespace_id
        FOR NO KEY UPDATE) locked
$$;

-- For each blob that a statement has linked, purser_quota_count_links counts the namespace's
-- links to it. If there are no more than the statement has inserted, the blob is new to the
-- namespace. A link that existed already isn't in new_rows.
CREATE OR REPLACE FUNCTION purser_quota_count_links ()
    RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
    limited bigint[];
    d record;
BEGIN
    limited := purser_quota_lock(ARRAY(SELECT DISTINCT top_level_namespace_id FROM new_rows));
    IF limited IS NULL THEN
        RETURN NULL;
    END IF;
    FOR d IN
        SELECT n.namespace, sum(b.size)::bigint AS bytes
        FROM (
            SELECT top_level_namespace_id AS namespace, blob_digest AS digest, count(*) AS links
            FROM new_rows WHERE top_level_namespace_id = ANY (limited) GROUP BY 1, 2) n
        CROSS JOIN LATERAL (SELECT size FROM blobs WHERE digest = n.digest OFFSET 0) b
        CROSS JOIN LATERAL (
            SELECT count(*) AS links FROM (
                SELECT FROM repository_blobs o
                WHERE o.blob_digest = n.digest AND o.top_level_namespace_id = n.namespace LIMIT n.links + 1) o) there
        WHERE there.links <= n.links
        GROUP BY n.namespace HAVING sum(b.size) > 0
        ORDER BY n.namespace
    LOOP
        PERFORM purser_quota_add(d.namespace, d.bytes, 0, 0);
    END LOOP;
    RETURN NULL;
END;
$$;

-- For each blob of which a statement has deleted links, purser_quota_count_unlinks looks whether
-- the namespace has a link to it left. If it has none, the blob's bytes don't count any more. If
-- the blob's row was deleted before its links, its size isn't known, and the bytes stay counted
-- until the next recount: garbage collection deletes the links first.
CREATE OR REPLACE FUNCTION purser_quota_count_unlinks ()
    RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
    limited bigint[];
    d record;
BEGIN
    limited := purser_quota_lock(ARRAY(SELECT DISTINCT top_level_namespace_id FROM old_rows));
    IF limited IS NULL THEN
        RETURN NULL;
    END IF;
    FOR d IN
        SELECT o.namespace, sum(b.size)::bigint AS bytes
        FROM (
            SELECT DISTINCT top_level_namespace_id AS namespace, blob_digest AS digest
            FROM old_rows WHERE top_level_namespace_id = ANY (limited)) o
        CROSS JOIN LATERAL (SELECT size FROM blobs WHERE digest = o.digest OFFSET 0) b
        WHERE NOT EXISTS (
            SELECT FROM repository_blobs l
            WHERE l.blob_digest = o.digest AND l.top_level_namespace_id = o.namespace OFFSET 0)
        GROUP BY o.namespace HAVING sum(b.size) > 0
        ORDER BY o.namespace
    LOOP
        PERFORM purser_quota_add(d.namespace, -d.bytes, 0, 0);
    END LOOP;
    RETURN NULL;
END;
$$;

-- A blob's size changes only if its row was wrong and a client pushes the lost blob again.
CREATE OR REPLACE FUNCTION purser_quota_count_sizes ()
    RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
    changed bytea[] := ARRAY(SELECT o.digest FROM old_rows o JOIN new_rows n ON n.digest = o.digest WHERE n.size <> o.size);
    limited bigint[];
    d record;
BEGIN
    IF cardinality(changed) = 0 THEN
        RETURN NULL;
    END IF;
    limited := purser_quota_lock(ARRAY(
        SELECT DISTINCT top_level_namespace_id FROM repository_blobs WHERE blob_digest = ANY (changed)));
    FOR d IN
        SELECT l.top_level_namespace_id AS namespace, sum(n.size - o.size)::bigint AS bytes
        FROM (
            SELECT DISTINCT top_level_namespace_id, blob_digest FROM repository_blobs
            WHERE blob_digest = ANY (changed) AND top_level_namespace_id = ANY (limited)) l
        JOIN old_rows o ON o.digest = l.blob_digest
        JOIN new_rows n ON n.digest = l.blob_digest
        GROUP BY 1 ORDER BY 1
    LOOP
        PERFORM purser_quota_add(d.namespace, d.bytes, 0, 0);
    END LOOP;
    RETURN NULL;
END;
$$;

CREATE OR REPLACE FUNCTION purser_quota_count_tags ()
    RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
    d record;
BEGIN
    FOR d IN SELECT top_level_namespace_id AS namespace, count(*) AS n FROM new_rows GROUP BY 1 ORDER BY 1 LOOP
        PERFORM purser_quota_add(d.namespace, 0, 0, d.n);
    END LOOP;
    RETURN NULL;
END;
$$;

CREATE OR REPLACE FUNCTION purser_quota_count_deleted_tags ()
    RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
    later text := current_setting('purser.quota_later', true);
    d record;
BEGIN
    IF later <> '' THEN
        PERFORM set_config('purser.quota_later', (later::bigint + (SELECT count(*) FROM old_rows))::text, true);
        RETURN NULL;
    END IF;
    FOR d IN SELECT top_level_namespace_id AS namespace, count(*) AS n FROM old_rows GROUP BY 1 ORDER BY 1 LOOP
        PERFORM purser_quota_add(d.namespace, 0, 0, -d.n);
    END LOOP;
    RETURN NULL;
END;
$$;

-- purser_quota_later says that the tags which the transaction deletes from now on, all of one
-- namespace, are counted by purser_quota_now. The transaction must call purser_quota_now when it
-- waits for no further lock.
CREATE OR REPLACE FUNCTION purser_quota_later ()
    RETURNS void
    LANGUAGE sql VOLATILE
    AS $$
    SELECT set_config('purser.quota_later', '0', true)
$$;

CREATE OR REPLACE FUNCTION purser_quota_now (namespace bigint)
    RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    n bigint := NULLIF(current_setting('purser.quota_later', true), '')::bigint;
BEGIN
    PERFORM set_config('purser.quota_later', '', true);
    IF n > 0 THEN
        PERFORM purser_quota_add(namespace, 0, 0, -n);
    END IF;
END;
$$;

CREATE OR REPLACE FUNCTION purser_quota_count_repositories ()
    RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
    d record;
BEGIN
    FOR d IN SELECT top_level_namespace_id AS namespace, count(*) AS n FROM new_rows GROUP BY 1 ORDER BY 1 LOOP
        PERFORM purser_quota_add(d.namespace, 0, d.n, 0);
    END LOOP;
    RETURN NULL;
END;
$$;

CREATE OR REPLACE FUNCTION purser_quota_count_deleted_repositories ()
    RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
    d record;
BEGIN
    FOR d IN SELECT top_level_namespace_id AS namespace, count(*) AS n FROM old_rows GROUP BY 1 ORDER BY 1 LOOP
        PERFORM purser_quota_add(d.namespace, 0, -d.n, 0);
    END LOOP;
    RETURN NULL;
END;
$$;

-- A statement-level trigger fires only for statements that name the trigger's table. So each
-- trigger is made on the partitioned table and on each partition too.
DO $$
DECLARE
    d record;
    t regclass;
BEGIN
    FOR d IN
        SELECT * FROM (VALUES
            ('repository_blobs', 'INSERT', 'purser_quota_count_links', 'REFERENCING NEW TABLE AS new_rows'),
            ('repository_blobs', 'DELETE', 'purser_quota_count_unlinks', 'REFERENCING OLD TABLE AS old_rows'),
            ('blobs', 'UPDATE', 'purser_quota_count_sizes', 'REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows'),
            ('tags', 'INSERT', 'purser_quota_count_tags', 'REFERENCING NEW TABLE AS new_rows'),
            ('tags', 'DELETE', 'purser_quota_count_deleted_tags', 'REFERENCING OLD TABLE AS old_rows'),
            ('repositories', 'INSERT', 'purser_quota_count_repositories', 'REFERENCING NEW TABLE AS new_rows'),
            ('repositories', 'DELETE', 'purser_quota_count_deleted_repositories', 'REFERENCING OLD TABLE AS old_rows')
        ) AS v (tbl, event, fn, tables)
    LOOP
        FOR t IN
            SELECT d.tbl::regclass
            UNION ALL
            SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = d.tbl::regclass
        LOOP
            EXECUTE format('CREATE OR REPLACE TRIGGER %I AFTER %s ON %s %s FOR EACH STATEMENT EXECUTE FUNCTION %I()',
                d.fn || '_trigger', d.event, t, d.tables, d.fn);
        END LOOP;
    END LOOP;
END;
$$;
