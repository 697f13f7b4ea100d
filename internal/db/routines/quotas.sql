-- These triggers keep the numbers of namespacequotas: the bytes of a namespace's blobs, each
-- blob counted once however many of the namespace's repositories have it, its repositories and
-- its tags. Since triggers do it, every change counts: by a push, a mount, garbage collection,
-- pruning, undo, the clean-up of deleted repositories, or psql. They also refuse what would
-- exceed a hard limit, so no committed state does.
--
-- What a namespace uses is the sum of its row of namespacequotas and of its eight rows of
-- namespacequotaslots, its slots. A transaction changes one slot, by its connection, so commits of
-- one namespace seldom wait for each other.
--
-- Why the numbers are exact. A blob counts once, so whoever links or unlinks it must know whether
-- another repository of the namespace has it. The trigger first takes an advisory lock for
-- namespace and digest, and keeps it until the transaction ends (purser_quota_lock). In a later
-- statement, which sees everything that was committed before it began (READ COMMITTED), it looks
-- which of the blobs are still, or already, linked to another repository. So the transactions
-- that link or unlink one blob in a namespace come one after another, from this lock to their
-- commit; each sees the changes of those before it and none of those after it, and adds the
-- difference that it makes itself. It doesn't matter which other locks the transactions take, nor
-- in which order they changed rows before their triggers ran.
--
-- Why no hard limit is exceeded. Each slot has room: up to this its numbers may grow. The row and
-- the rooms of all slots together are never more than the hard limit, and no slot grows beyond its
-- room; so the sum of all that was committed never exceeds the limit. A change that doesn't fit
-- into its slot's room locks the row and all slots. Then it knows what the namespace uses,
-- refuses the change or accepts it, adds the slots up in the row, and gives each an equal share of
-- what is left. Far below the limit that is rare; close to it, commits come one after another.
-- If a limit or the row's numbers change, the slots are closed (purser_quota_close); so they are
-- while the namespace uses more than a limit. Who changes limits by psql must do that too.
--
-- The locks of a trigger are the last ones that a transaction waits for (see the package comment
-- of catalog): a client's transaction that has them waits for no other row or advisory lock, so
-- they are held only for as long as the commit takes. Therefore the triggers' names sort behind
-- those of the other triggers on these tables, and the deletion of a manifest, which deletes tags
-- first and other rows later, counts its tags at its end (purser_quota_later). The order is: locks
-- of blobs by their key; then either one slot, or the row and all slots. A transaction that has
-- changed its slot and then adds something for which the slot has no room breaks this order. Of
-- Purser's transactions only one adds in two statements: the push of a lost blob whose size was
-- wrong. PostgreSQL ends such a deadlock, and the push runs again.
-- A transaction that has waited for its slot, and finds that the room was used meanwhile, has the
-- lock; it fails with a serialization failure, and runs again.
-- Workers may wait for other locks while they have these; their lock_timeout is below
-- deadlock_timeout, so in a deadlock the worker gives up.
--
-- A namespace without a row of namespacequotas costs one look into that table.

-- purser_quota_slots returns the sums over the slots of a namespace.
CREATE OR REPLACE FUNCTION purser_quota_slots (namespace bigint, OUT bytes bigint, OUT repositories bigint, OUT tags bigint)
    LANGUAGE sql STABLE
    AS $$
    SELECT COALESCE(sum(s.bytes), 0)::bigint, COALESCE(sum(s.repositories), 0)::bigint, COALESCE(sum(s.tags), 0)::bigint
    FROM namespacequotaslots s WHERE s.namespace_id = namespace
$$;

-- shown_quotas shows the quotas of namespaces that exist, as package quota reads them. A limit
-- of 0 is none.
CREATE OR REPLACE VIEW shown_quotas AS
SELECT q.id, n.name, q.namespace_id,
    COALESCE(q.bytes_limit, 0) AS bytes_limit,
    COALESCE(q.repositories_limit, 0) AS repositories_limit,
    COALESCE(q.tags_limit, 0) AS tags_limit,
    q.bytes + s.bytes AS bytes, q.repositories + s.repositories AS repositories, q.tags + s.tags AS tags,
    q.counted, q.created_at,
    ARRAY(SELECT l.id FROM namespacequotalimits l WHERE l.namespace_id = q.namespace_id ORDER BY l.percent, l.kind DESC) AS step_ids,
    ARRAY(SELECT l.kind FROM namespacequotalimits l WHERE l.namespace_id = q.namespace_id ORDER BY l.percent, l.kind DESC) AS kinds,
    ARRAY(SELECT l.percent FROM namespacequotalimits l WHERE l.namespace_id = q.namespace_id ORDER BY l.percent, l.kind DESC) AS percents
FROM live_namespaces n
JOIN namespacequotas q ON q.namespace_id = n.id
CROSS JOIN LATERAL purser_quota_slots(q.namespace_id) s;

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

-- purser_quota_room returns a slot's share of what is left of a limit: 2^62 if there is no limit,
-- and -2^62, into which nothing fits, if more is used than the limit. 0 would let a slot below 0
-- grow back to 0.
CREATE OR REPLACE FUNCTION purser_quota_room (most bigint, used bigint)
    RETURNS bigint
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT CASE WHEN most IS NULL THEN 4611686018427387904 WHEN most < used THEN -4611686018427387904 ELSE (most - used) / 8 END
$$;

-- purser_quota_fits says whether a slot has room for what is added. Less always fits.
CREATE OR REPLACE FUNCTION purser_quota_fits (s namespacequotaslots, more_bytes bigint, more_repositories bigint, more_tags bigint)
    RETURNS boolean
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT (more_bytes <= 0 OR s.bytes + more_bytes <= s.bytes_room)
        AND (more_repositories <= 0 OR s.repositories + more_repositories <= s.repositories_room)
        AND (more_tags <= 0 OR s.tags + more_tags <= s.tags_room)
$$;

-- purser_quota_add adds to what a namespace uses, if the namespace has a quota. A quota whose
-- content isn't counted yet refuses nothing.
CREATE OR REPLACE FUNCTION purser_quota_add (namespace bigint, more_bytes bigint, more_repositories bigint, more_tags bigint)
    RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    mine integer := pg_backend_pid() % 8;
    fits boolean;
BEGIN
    -- This look takes no lock: purser_quota_share must not wait while the transaction has a slot.
    SELECT s.slot IS NOT NULL AND purser_quota_fits(s, more_bytes, more_repositories, more_tags) INTO fits
    FROM namespacequotas q LEFT JOIN namespacequotaslots s ON s.namespace_id = q.namespace_id AND s.slot = mine
    WHERE q.namespace_id = namespace;
    IF fits IS NULL THEN -- there is no quota
        RETURN;
    END IF;
    IF NOT fits THEN
        PERFORM purser_quota_share(namespace, more_bytes, more_repositories, more_tags);
        RETURN;
    END IF;
    UPDATE namespacequotaslots s
    SET bytes = s.bytes + more_bytes, repositories = s.repositories + more_repositories, tags = s.tags + more_tags
    WHERE s.namespace_id = namespace AND s.slot = mine AND purser_quota_fits(s, more_bytes, more_repositories, more_tags);
    IF NOT FOUND THEN -- the row was locked all the same
        RAISE EXCEPTION 'another transaction has used the room of the slot meanwhile' USING ERRCODE = 'serialization_failure';
    END IF;
END;
$$;

-- purser_quota_share adds up the slots of a namespace and what is added now, refuses what exceeds
-- a hard limit, and shares out what is left.
CREATE OR REPLACE FUNCTION purser_quota_share (namespace bigint, more_bytes bigint, more_repositories bigint, more_tags bigint)
    RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    q namespacequotas%ROWTYPE;
    bytes_most bigint;
    repositories_most bigint;
    tags_most bigint;
BEGIN
    PERFORM FROM namespacequotas WHERE namespace_id = namespace FOR NO KEY UPDATE;
    PERFORM FROM namespacequotaslots WHERE namespace_id = namespace ORDER BY slot FOR NO KEY UPDATE;
    UPDATE namespacequotas u
    SET bytes = u.bytes + s.bytes + more_bytes, repositories = u.repositories + s.repositories + more_repositories,
        tags = u.tags + s.tags + more_tags
    FROM purser_quota_slots(namespace) s
    WHERE u.namespace_id = namespace
    RETURNING u.* INTO q;
    IF q.counted AND q.hard_percent IS NOT NULL THEN
        bytes_most := purser_quota_part(q.bytes_limit, q.hard_percent);
        repositories_most := purser_quota_part(q.repositories_limit, q.hard_percent);
        tags_most := purser_quota_part(q.tags_limit, q.hard_percent);
        PERFORM purser_quota_check('bytes', bytes_most, q.bytes, more_bytes),
            purser_quota_check('repositories', repositories_most, q.repositories, more_repositories),
            purser_quota_check('tags', tags_most, q.tags, more_tags);
    END IF;
    UPDATE namespacequotaslots
    SET bytes = 0, repositories = 0, tags = 0,
        bytes_room = purser_quota_room(bytes_most, q.bytes),
        repositories_room = purser_quota_room(repositories_most, q.repositories),
        tags_room = purser_quota_room(tags_most, q.tags)
    WHERE namespace_id = namespace;
END;
$$;

-- purser_quota_close closes the slots of a namespace (see purser_quota_room), so that the next
-- change that adds something is compared with the limits. The transaction has locked or changed the row
-- of namespacequotas before.
CREATE OR REPLACE FUNCTION purser_quota_close (namespace bigint)
    RETURNS void
    LANGUAGE sql VOLATILE
    AS $$
    UPDATE namespacequotaslots
    SET bytes_room = -4611686018427387904, repositories_room = -4611686018427387904, tags_room = -4611686018427387904
    WHERE namespace_id = namespace
$$;

-- purser_quota_uploads returns the bytes that the unfinished uploads of a namespace take or were
-- promised, without those of the upload `own`. What was promised to a request that doesn't renew it
-- any more doesn't count.
CREATE OR REPLACE FUNCTION purser_quota_uploads (namespace bigint, own uuid)
    RETURNS bigint
    LANGUAGE sql STABLE
    AS $$
    SELECT LEAST(COALESCE(sum(GREATEST(u.size, CASE WHEN u.promised_until < now() THEN 0 ELSE u.expected END)), 0), 4611686018427387904)::bigint
    FROM uploads u WHERE u.namespace_id = namespace AND u.id <> own
$$;

-- purser_quota_promised is purser_quota_uploads with the promises that aren't renewed any more.
CREATE OR REPLACE FUNCTION purser_quota_promised (namespace bigint, own uuid)
    RETURNS bigint
    LANGUAGE sql STABLE
    AS $$
    SELECT LEAST(COALESCE(sum(GREATEST(u.size, u.expected)), 0), 4611686018427387904)::bigint
    FROM uploads u WHERE u.namespace_id = namespace AND u.id <> own
$$;

-- purser_quota_reserve promises an upload room for `needed` bytes in all, and for up to `ahead`
-- more: a quarter of what is left then, at least 64 KiB if there are so many. It returns how many
-- bytes the upload may have: 2^62 if the quota limits nothing now, NULL if there is no quota or
-- nothing was promised, and minus the number if it is beyond the limit. It raises the error PQ001 if
-- what the namespace uses, what its other unfinished uploads take or were promised, and what is needed
-- exceed the hard limit on bytes. It never refuses bytes that it has promised to the same request
-- before, or that earlier requests have left.
--
-- Nor is a blob refused that the namespace has: its bytes count already. Whoever names the digest of
-- such a blob may send as many bytes as it has, beyond the limit if need be. One request at a time may
-- do so: no other request of the namespace may be running that was promised room, unless all
-- unfinished uploads fit below the limit. When such a request fails, it ends its upload
-- (Catalog.AbandonUpload), so the namespace has no more than one blob beyond the limit, and only for a
-- moment. What uploads without a request take doesn't matter: it would be in the way of others until
-- the uploads expire.
--
-- Promises of one namespace are made one after another: from the advisory lock on, a transaction
-- sees all that were committed. It has locked the upload's row before and waits for nothing else
-- later. So promises never exceed the limit together, whatever the number of requests and replicas.
-- A commit, which doesn't take this lock, moves an upload's bytes from the unfinished uploads to the
-- namespace's blobs. So one statement reads both: two could count the bytes in neither.
-- Blobs that are committed without a promise, because they are small or are copied within the store, may
-- use room that was promised; the triggers then refuse those commits that come last.
--
-- A promise to a request that runs ends after `lease`, unless the request renews it; NULL: the
-- request ends now. A promise that is over isn't just left out of the sum, since its request may
-- renew it at this moment: where there is no room without it, it is taken back, in its row. A
-- request that renews it then waits for this row, and finds it taken back. A row that is locked now counts, since
-- its request may be alive, and waiting for it would be a deadlock: it may wait for this lock.
--
-- What was taken back has a time at which it was over, by which Catalog.ReapUploads finds the dead
-- upload. It is a minute ago at least: a renewal that began before the promise was over compares it
-- with the time of its own beginning, some seconds ago.
CREATE OR REPLACE FUNCTION purser_quota_reserve (upload uuid, fence bigint, namespace text, needed bigint, ahead bigint, digest bytea, lease interval)
    RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
    id_of bigint;
    promised bigint;
    most bigint;
    used bigint;
    others bigint;
    room bigint;
    known bigint; -- size of the blob, if the namespace has it
BEGIN
    SELECT q.namespace_id INTO id_of
    FROM live_namespaces n JOIN namespacequotas q ON q.namespace_id = n.id WHERE n.name = namespace;
    IF id_of IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT CASE WHEN u.promised_until < now() THEN u.size ELSE u.expected END INTO promised
    FROM uploads u WHERE u.id = upload AND u.attempt = fence AND u.status = 1 FOR NO KEY UPDATE;
    IF promised IS NULL THEN -- the request has lost the upload, which it is told by another statement
        RETURN NULL;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('uploads', id_of));
    SELECT purser_quota_part(q.bytes_limit, q.hard_percent), q.bytes + s.bytes, purser_quota_promised(id_of, upload)
    INTO most, used, others
    FROM namespacequotas q CROSS JOIN LATERAL purser_quota_slots(q.namespace_id) s
    WHERE q.namespace_id = id_of AND q.counted;
    IF most IS NULL THEN
        UPDATE uploads u SET expected = needed, promised_until = now() + lease, namespace_id = id_of WHERE u.id = upload;
        RETURN 4611686018427387904;
    END IF;
    IF most - used - others < needed AND needed > promised THEN
        UPDATE uploads u SET expected = u.size, promised_until = LEAST(u.promised_until, now() - interval '1 minute')
        FROM (
            SELECT o.id FROM uploads o
            WHERE o.namespace_id = id_of AND o.id <> upload AND o.expected > o.size AND o.promised_until < now() FOR NO KEY UPDATE SKIP LOCKED) dead
        WHERE u.id = dead.id;
        SELECT q.bytes + s.bytes, purser_quota_promised(id_of, upload) INTO used, others
        FROM namespacequotas q CROSS JOIN LATERAL purser_quota_slots(q.namespace_id) s
        WHERE q.namespace_id = id_of;
    END IF;
    room := most - used - others - needed;
    IF room < 0 AND needed > promised THEN
        SELECT b.size INTO known FROM blobs b
        WHERE b.digest = purser_quota_reserve.digest
            AND EXISTS (SELECT FROM repository_blobs l WHERE l.blob_digest = b.digest AND l.top_level_namespace_id = id_of);
        IF needed <= known AND (others <= most - used OR NOT EXISTS (
            SELECT FROM uploads u
            WHERE u.namespace_id = id_of AND u.id <> upload AND u.expected > u.size AND u.promised_until IS NOT NULL))
        THEN
            UPDATE uploads u SET expected = known, promised_until = now() + lease, namespace_id = id_of WHERE u.id = upload;
            RETURN -known;
        END IF;
        RAISE EXCEPTION 'the quota of the namespace is exceeded: bytes'
            USING ERRCODE = 'PQ001',
                DETAIL = json_build_object('quota', 'bytes', 'limit', most, 'used', used + others, 'unfinished', others, 'needed', needed);
    END IF;
    promised := needed + GREATEST(LEAST(ahead, GREATEST(room / 4, 65536), room), 0);
    UPDATE uploads u SET expected = promised, promised_until = now() + lease, namespace_id = id_of WHERE u.id = upload;
    RETURN promised;
END;
$$;

-- purser_quota_lock takes the locks of blobs in namespaces: for a few blobs one each, for many the
-- locks of the whole namespaces, since PostgreSQL has room for some thousand locks in all.
CREATE OR REPLACE FUNCTION purser_quota_lock (namespaces bigint[], digests bytea[])
    RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF cardinality(namespaces) * cardinality(digests) > 64 THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('quota', n))
        FROM (SELECT n FROM unnest(namespaces) n ORDER BY 1) o;
    ELSE
        PERFORM pg_advisory_xact_lock_shared(hashtextextended('quota', n))
        FROM (SELECT n FROM unnest(namespaces) n ORDER BY 1) o;
        PERFORM pg_advisory_xact_lock(key)
        FROM (SELECT DISTINCT hashtextextended(encode(d, 'hex'), n) AS key FROM unnest(namespaces) n, unnest(digests) d ORDER BY 1) o;
    END IF;
END;
$$;

-- purser_quota_limited returns those of the namespaces that have a quota, NULL if none has.
CREATE OR REPLACE FUNCTION purser_quota_limited (namespaces bigint[])
    RETURNS bigint[]
    LANGUAGE plpgsql STABLE
    AS $$
BEGIN
    RETURN NULLIF(ARRAY(SELECT namespace_id FROM namespacequotas WHERE namespace_id = ANY (namespaces)), '{}');
END;
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
    limited := purser_quota_limited(ARRAY(SELECT DISTINCT top_level_namespace_id FROM new_rows));
    IF limited IS NULL THEN
        RETURN NULL;
    END IF;
    PERFORM purser_quota_lock(limited, ARRAY(SELECT DISTINCT blob_digest FROM new_rows WHERE top_level_namespace_id = ANY (limited)));
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
    limited := purser_quota_limited(ARRAY(SELECT DISTINCT top_level_namespace_id FROM old_rows));
    IF limited IS NULL THEN
        RETURN NULL;
    END IF;
    PERFORM purser_quota_lock(limited, ARRAY(SELECT DISTINCT blob_digest FROM old_rows WHERE top_level_namespace_id = ANY (limited)));
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
    limited := purser_quota_limited(ARRAY(
        SELECT DISTINCT top_level_namespace_id FROM repository_blobs WHERE blob_digest = ANY (changed)));
    IF limited IS NULL THEN
        RETURN NULL;
    END IF;
    PERFORM purser_quota_lock(limited, changed);
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
