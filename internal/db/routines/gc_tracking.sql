-- These triggers fill the review queues of garbage collection. When a change may have left a
-- blob or manifest without a reference, they queue it with the time from which it may be
-- reviewed.
--
-- The triggers are statement-level with transition tables: if a statement deletes a thousand
-- rows, one INSERT queues all of their blobs or manifests. The rows that this INSERT adds are
-- distinct and ordered by key. So its ON CONFLICT never meets a row of the same INSERT, and
-- two statements lock rows of the queue in the same order. GREATEST keeps the later time if a
-- review is queued already, so no event moves a review to an earlier time. A new event clears
-- set_aside_at, so that a failed review is tried again. For manifests, unused_since gets the time
-- of the last event: see purser_unused_since.
--
-- Each trigger function contains the same INSERT … ON CONFLICT. If all of them called one
-- common function, inserting and deleting a single tag would cost 6 % more CPU time of the
-- PostgreSQL backend (measured over 3,000 rounds); 10,000 tags in one statement would cost the
-- same. The pushes of single tags must be fast.
--
-- PostgreSQL allows a trigger with transition tables neither a column list nor several events.
-- So each event has its own trigger, and the trigger on updated tags compares old and new rows
-- to find the tags that were moved.

-- gc_review_after returns the time from which a blob or manifest may be reviewed after the
-- event e. That is now, or the last trusted time if the clock is behind, plus the event's
-- configured delay (default one day) plus a random time of up to a tenth of the delay, at most
-- an hour, so that a burst of events doesn't become a burst of reviews. Nothing is added to a
-- delay of zero. Triggers call it once per statement.
CREATE OR REPLACE FUNCTION gc_review_after (e text)
    RETURNS timestamptz
    LANGUAGE plpgsql VOLATILE
    AS $$
DECLARE
    delay interval;
    t timestamptz;
BEGIN
    SELECT COALESCE((SELECT value FROM gc_review_after_defaults WHERE event = e), interval '1 day'), GREATEST(now(), (SELECT trusted_at FROM clock))
    INTO delay, t;
    RETURN t + delay + random() * LEAST(delay / 10, interval '1 hour');
END;
$$;

CREATE OR REPLACE FUNCTION gc_track_blob_uploads ()
    RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
    after_blob_upload timestamptz := gc_review_after('blob_upload');
BEGIN
    INSERT INTO gc_blob_review_queue AS q (digest, review_after, event)
    SELECT n.digest, after_blob_upload, 'blob_upload'
    FROM new_rows n
    ORDER BY n.digest
    ON CONFLICT (digest) DO UPDATE SET
        review_after = GREATEST(q.review_after, EXCLUDED.review_after),
        review_count = 0,
        event = EXCLUDED.event,
        set_aside_at = NULL;
    RETURN NULL;
END;
$$;

CREATE OR REPLACE FUNCTION gc_track_configuration_blobs ()
    RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO gc_blobs_configurations (top_level_namespace_id, repository_id, manifest_id, digest)
    SELECT top_level_namespace_id, repository_id, id, configuration_blob_digest
    FROM new_rows
    WHERE configuration_blob_digest IS NOT NULL
    ORDER BY configuration_blob_digest
    ON CONFLICT (digest, manifest_id) DO NOTHING;
    RETURN NULL;
END;
$$;

CREATE OR REPLACE FUNCTION gc_track_layer_blobs ()
    RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO gc_blobs_layers (top_level_namespace_id, repository_id, layer_id, digest)
    SELECT top_level_namespace_id, repository_id, id, digest
    FROM new_rows
    ORDER BY digest
    ON CONFLICT (digest, layer_id) DO NOTHING;
    RETURN NULL;
END;
$$;

-- gc_track_blob_sizes gives the new size of a blob to the manifests that use it. Only a blob that was
-- lost and that was pushed again with another size changes. A put locks the rows of its blobs FOR
-- KEY SHARE, and reads their sizes in a later statement. So either the put has the lock first; then
-- this function waits for it, and its last statements see the put's rows. Or this function has the
-- lock first; then the put waits and reads the new size.
CREATE OR REPLACE FUNCTION gc_track_blob_sizes ()
    RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
    changed bytea[] := ARRAY(SELECT n.digest FROM new_rows n JOIN old_rows o ON o.digest = n.digest WHERE n.size <> o.size ORDER BY n.digest);
BEGIN
    IF cardinality(changed) = 0 THEN
        RETURN NULL;
    END IF;
    PERFORM FROM blobs WHERE digest = ANY (changed) ORDER BY digest FOR UPDATE;
    UPDATE layers l SET blob_size = b.size FROM blobs b
    WHERE b.digest = ANY (changed) AND l.digest = b.digest AND l.blob_size <> b.size;
    UPDATE manifests m SET configuration_blob_size = b.size FROM blobs b
    WHERE b.digest = ANY (changed) AND m.configuration_blob_digest = b.digest AND m.configuration_blob_size <> b.size;
    RETURN NULL;
END;
$$;

-- gc_link_missing_children is called for manifests that are pushed after an index that lists
-- them. It turns their rows in missing_children into rows of manifest_references, which make
-- them children of the index. Element i of the three arrays is the key of the i-th manifest.
-- The function locks the indexes in a fixed order. If another transaction is deleting an
-- index, the function waits for it, and then inserts no row for that index. It doesn't see
-- rows of missing_children that are committed after its first statement has begun; the review
-- of the manifest finds these rows.
CREATE OR REPLACE FUNCTION gc_link_missing_children (namespaces bigint[], repositories bigint[], ids bigint[])
    RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO manifest_references (top_level_namespace_id, repository_id, parent_id, child_id)
    SELECT listed.namespace, listed.repository, listed.parent_id, listed.id
    FROM (
        SELECT w.namespace, w.repository, w.id, c.parent_id
        FROM unnest(namespaces, repositories, ids) AS w (namespace, repository, id)
        CROSS JOIN LATERAL (
            SELECT digest FROM manifests
            WHERE top_level_namespace_id = w.namespace AND repository_id = w.repository AND id = w.id
            OFFSET 0) m
        CROSS JOIN LATERAL (
            SELECT parent_id FROM missing_children
            WHERE child_digest = m.digest AND repository_id = w.repository AND top_level_namespace_id = w.namespace
            OFFSET 0) c
        ORDER BY c.parent_id) listed
    CROSS JOIN LATERAL (
        SELECT FROM manifests
        WHERE top_level_namespace_id = listed.namespace AND repository_id = listed.repository AND id = listed.parent_id
        FOR KEY SHARE) parent
    ON CONFLICT DO NOTHING;

    DELETE FROM missing_children c
    USING (
        SELECT w.namespace, w.repository, w.id, m.digest
        FROM unnest(namespaces, repositories, ids) AS w (namespace, repository, id)
        CROSS JOIN LATERAL (
            SELECT digest FROM manifests
            WHERE top_level_namespace_id = w.namespace AND repository_id = w.repository AND id = w.id
            OFFSET 0) m) k
    WHERE c.child_digest = k.digest AND c.repository_id = k.repository AND c.top_level_namespace_id = k.namespace
        AND EXISTS (
            SELECT FROM manifest_references x
            WHERE x.top_level_namespace_id = k.namespace AND x.repository_id = k.repository
                AND x.parent_id = c.parent_id AND x.child_id = k.id OFFSET 0);
END;
$$;

-- gc_track_manifest_uploads queues new manifests for review, except those that the same
-- statement has tagged: a tagged manifest is queued when its tag is deleted.
CREATE OR REPLACE FUNCTION gc_track_manifest_uploads ()
    RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
    after_manifest_upload timestamptz := gc_review_after('manifest_upload');
BEGIN
    INSERT INTO gc_manifest_review_queue AS q (top_level_namespace_id, repository_id, manifest_id, review_after, event, unused_since)
    SELECT n.top_level_namespace_id, n.repository_id, n.id, after_manifest_upload, 'manifest_upload', now()
    FROM new_rows n
    WHERE NOT EXISTS (
        SELECT FROM tags t
        WHERE t.top_level_namespace_id = n.top_level_namespace_id
            AND t.repository_id = n.repository_id
            AND t.manifest_id = n.id
        OFFSET 0)
    ORDER BY 1, 2, 3
    ON CONFLICT (top_level_namespace_id, repository_id, manifest_id) DO UPDATE SET
        review_after = GREATEST(q.review_after, EXCLUDED.review_after),
        review_count = 0,
        event = EXCLUDED.event,
        unused_since = GREATEST(q.unused_since, EXCLUDED.unused_since),
        set_aside_at = NULL;

    IF EXISTS (
        SELECT FROM new_rows n
        CROSS JOIN LATERAL (
            SELECT FROM missing_children
            WHERE child_digest = n.digest AND repository_id = n.repository_id
                AND top_level_namespace_id = n.top_level_namespace_id
            OFFSET 0) c)
    THEN
        PERFORM gc_link_missing_children(
            array_agg(n.top_level_namespace_id), array_agg(n.repository_id), array_agg(n.id))
        FROM new_rows n;
    END IF;
    RETURN NULL;
END;
$$;

-- gc_queue_referrers queues for review the referrers of deleted subjects. Element i of the
-- arrays describes the i-th subject: its namespace, repository and digest, the range of the
-- referrers' manifest ids (firsts[i] <= id < nexts[i]; NULL: no upper bound), and the time of
-- the review.
CREATE OR REPLACE FUNCTION gc_queue_referrers (namespaces bigint[], repositories bigint[], subjects bytea[], firsts bigint[], nexts bigint[], times timestamptz[])
    RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO gc_manifest_review_queue AS q (top_level_namespace_id, repository_id, manifest_id, review_after, event, unused_since)
    SELECT m.top_level_namespace_id, m.repository_id, m.id, w.review_after, 'subject_delete', LEAST(now(), w.review_after)
    FROM unnest(namespaces, repositories, subjects, firsts, nexts, times) AS w (namespace, repository, subject, first_id, next_id, review_after)
    CROSS JOIN LATERAL ( -- OFFSET 0: a join may read the whole repository
        SELECT top_level_namespace_id, repository_id, id FROM manifests
        WHERE top_level_namespace_id = w.namespace
            AND repository_id = w.repository
            AND subject_digest = w.subject
            AND id >= w.first_id AND id < COALESCE(w.next_id, 9223372036854775807)
        OFFSET 0) m
    ORDER BY 1, 2, 3
    ON CONFLICT (top_level_namespace_id, repository_id, manifest_id) DO UPDATE SET
        review_after = GREATEST(q.review_after, EXCLUDED.review_after),
        review_count = 0,
        event = EXCLUDED.event,
        unused_since = GREATEST(q.unused_since, EXCLUDED.unused_since),
        set_aside_at = NULL;
END;
$$;

-- gc_page_of_referrers finds the first "page" referrers of a subject whose manifest ids are at
-- least "first", in the order of these ids. It returns the id of the first of them (first_id)
-- and the id of the next referrer after them (next_id; NULL if there is none). If no referrer
-- has an id of at least "first", it returns no row.
--
-- The conditions and the ORDER BY of this function's queries are written so that only the
-- database index on subject_digest serves them all. If the condition were subject_digest = …
-- and the order were by id alone, the planner might read the manifests of all repositories
-- through their primary key. The comparison of rows, (subject_digest, id) >= …, tells the index scan where to start;
-- subject_digest <= … tells it where to end.
CREATE OR REPLACE FUNCTION gc_page_of_referrers (namespace bigint, repository bigint, subject bytea, first bigint, page integer)
    RETURNS TABLE (first_id bigint, next_id bigint)
    LANGUAGE plpgsql STABLE ROWS 1
    AS $$
BEGIN
    SELECT m.id INTO first_id FROM manifests m
    WHERE m.top_level_namespace_id = namespace AND m.repository_id = repository
        AND (m.subject_digest, m.id) >= (subject, first) AND m.subject_digest <= subject
    ORDER BY m.subject_digest, m.id LIMIT 1;
    IF first_id IS NULL THEN
        RETURN;
    END IF;
    SELECT m.id INTO next_id FROM manifests m
    WHERE m.top_level_namespace_id = namespace AND m.repository_id = repository
        AND (m.subject_digest, m.id) >= (subject, first_id) AND m.subject_digest <= subject
    ORDER BY m.subject_digest, m.id OFFSET page LIMIT 1;
    RETURN NEXT;
END;
$$;

-- gc_queue_more_referrers locks the row of gc_subject_review_queue that has been due longest,
-- and queues the next "page" referrers of this deleted subject for review. Then it sets the
-- row's next_id to the next referrer, or deletes the row if there is none. It returns false if
-- no row is due.
--
-- If the subject was pushed again, its referrers have their subject again, and the function
-- only deletes the row: the next deletion of the subject will queue the referrers from the
-- beginning. The function locks the row before it looks for the subject's manifest. So if
-- another transaction is deleting the manifest again, either the function sees that the
-- manifest was deleted, or that transaction waits for the lock and writes a new row. If the
-- function can't lock a referrer's row in gc_manifest_review_queue, it postpones the subject's
-- row by 5 s.
CREATE OR REPLACE FUNCTION gc_queue_more_referrers (page integer)
    RETURNS boolean
    LANGUAGE plpgsql
    AS $$
DECLARE
    s gc_subject_review_queue%ROWTYPE;
    first_id bigint;
    behind bigint;
BEGIN
    SELECT q.* INTO s FROM gc_subject_review_queue q
    WHERE q.expand_after <= now() ORDER BY q.expand_after LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF s.subject_digest IS NULL THEN
        RETURN false;
    END IF;

    IF EXISTS (SELECT FROM repositories r WHERE r.id = s.repository_id)
        AND NOT EXISTS (
            SELECT FROM manifests m
            WHERE m.top_level_namespace_id = s.top_level_namespace_id AND m.repository_id = s.repository_id
                AND m.digest = s.subject_digest)
    THEN
        SELECT p.first_id, p.next_id INTO first_id, behind
        FROM gc_page_of_referrers(s.top_level_namespace_id, s.repository_id, s.subject_digest, s.next_id, page) p;
    END IF;
    IF first_id IS NOT NULL THEN
        BEGIN
            PERFORM gc_queue_referrers(ARRAY[s.top_level_namespace_id], ARRAY[s.repository_id], ARRAY[s.subject_digest],
                ARRAY[first_id], ARRAY[behind], ARRAY[s.review_after]);
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            UPDATE gc_subject_review_queue q SET expand_after = now() + interval '5 s'
            WHERE q.subject_digest = s.subject_digest AND q.repository_id = s.repository_id
                AND q.top_level_namespace_id = s.top_level_namespace_id;
            RETURN true;
        END;
    END IF;

    IF behind IS NULL THEN
        DELETE FROM gc_subject_review_queue q
        WHERE q.subject_digest = s.subject_digest AND q.repository_id = s.repository_id
            AND q.top_level_namespace_id = s.top_level_namespace_id;
    ELSE
        UPDATE gc_subject_review_queue q SET next_id = behind, expand_after = now()
        WHERE q.subject_digest = s.subject_digest AND q.repository_id = s.repository_id
            AND q.top_level_namespace_id = s.top_level_namespace_id;
    END IF;
    RETURN true;
END;
$$;

-- purser_unused_since returns since when nothing references the manifest that a row of
-- gc_manifest_review_queue is about, if nothing does. That is the time of the last event, which the
-- event has written into unused_since (created_at is for a row without one). A hold or the trash
-- postpones the review without an event; then it is the time of the review minus the event's
-- delay, if that is later. Alone, this difference would be wrong: when a delay becomes longer, it
-- is before the event. If a policy keeps the manifest, its row has the event keep_untagged, and the
-- time in unused_since: see retain in package gc.
CREATE OR REPLACE FUNCTION purser_unused_since (e text, unused_since timestamptz, review_after timestamptz)
    RETURNS timestamptz
    LANGUAGE sql STABLE
    AS $$
    SELECT CASE WHEN e = 'keep_untagged' AND unused_since IS NOT NULL THEN unused_since
        ELSE GREATEST(unused_since, review_after - COALESCE((
            SELECT value FROM gc_review_after_defaults
            WHERE event = CASE e WHEN 'circle' THEN 'manifest_list_delete' WHEN 'keep_untagged' THEN 'manifest_upload' ELSE e END), interval '1 day')) END
$$;

-- gc_planned_manifest_reviews shows the rows of gc_manifest_review_queue, and also, in the
-- same columns, the referrers of deleted subjects that still have to be queued.
CREATE OR REPLACE VIEW gc_planned_manifest_reviews AS
SELECT top_level_namespace_id, repository_id, manifest_id, review_after, review_count, created_at, event, set_aside_at, last_error
FROM gc_manifest_review_queue
UNION ALL
SELECT s.top_level_namespace_id, s.repository_id, m.id, s.review_after, 0, s.created_at, 'subject_delete', NULL, NULL
FROM gc_subject_review_queue s
CROSS JOIN LATERAL (
    SELECT id FROM manifests
    WHERE top_level_namespace_id = s.top_level_namespace_id AND repository_id = s.repository_id
        AND subject_digest = s.subject_digest AND id >= s.next_id) m
WHERE NOT EXISTS (
    SELECT FROM gc_manifest_review_queue q
    WHERE q.manifest_id = m.id AND q.repository_id = s.repository_id AND q.top_level_namespace_id = s.top_level_namespace_id);

-- When manifests are deleted, gc_track_deleted_manifests queues their configuration blobs,
-- deletes the manifests' own rows from gc_manifest_review_queue, and queues their referrers.
-- For each deleted manifest it queues up to a hundred referrers at once, fewer if the
-- statement deletes many manifests. If there are more referrers, it also writes a row into
-- gc_subject_review_queue. It writes this row before it locks the referrers' rows, since
-- gc_queue_more_referrers locks rows of the two queues in this order too.
--
-- gc_track_deleted_manifests, gc_track_deleted_manifest_lists and gc_track_deleted_tags don't
-- queue manifests of a deleted repository: loose foreign keys delete all of its manifests
-- anyway.
CREATE OR REPLACE FUNCTION gc_track_deleted_manifests ()
    RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
    after_subject_delete timestamptz := gc_review_after('subject_delete');
    after_manifest_delete timestamptz := gc_review_after('manifest_delete');
    page integer := (SELECT GREATEST(4, LEAST(100, 1000 / GREATEST(1, count(*)))) FROM old_rows);
    namespaces bigint[];
    repositories bigint[];
    subjects bytea[];
    firsts bigint[];
    nexts bigint[];
    times timestamptz[];
BEGIN
    DELETE FROM gc_manifest_review_queue q
    USING old_rows o
    WHERE q.top_level_namespace_id = o.top_level_namespace_id
        AND q.repository_id = o.repository_id
        AND q.manifest_id = o.id;

    SELECT array_agg(o.top_level_namespace_id), array_agg(o.repository_id), array_agg(o.digest),
        array_agg(p.first_id), array_agg(p.next_id), array_agg(after_subject_delete)
    INTO namespaces, repositories, subjects, firsts, nexts, times
    FROM (
        SELECT o.* FROM (SELECT DISTINCT top_level_namespace_id, repository_id, digest FROM old_rows) o
        WHERE EXISTS (SELECT FROM repositories r WHERE r.id = o.repository_id)
            AND EXISTS (
                SELECT FROM manifests m
                WHERE m.top_level_namespace_id = o.top_level_namespace_id
                    AND m.repository_id = o.repository_id
                    AND m.subject_digest = o.digest
                OFFSET 0)
        OFFSET 0) o
    CROSS JOIN LATERAL gc_page_of_referrers(o.top_level_namespace_id, o.repository_id, o.digest, 0, page) p;

    IF subjects IS NOT NULL THEN
        INSERT INTO gc_subject_review_queue AS s (top_level_namespace_id, repository_id, subject_digest, next_id, review_after)
        SELECT w.* FROM unnest(namespaces, repositories, subjects, nexts, times) AS w (namespace, repository, subject, next_id, review_after)
        WHERE w.next_id IS NOT NULL
        ORDER BY w.subject, w.repository, w.namespace
        ON CONFLICT (subject_digest, repository_id, top_level_namespace_id) DO UPDATE SET
            next_id = EXCLUDED.next_id,
            review_after = GREATEST(s.review_after, EXCLUDED.review_after),
            created_at = EXCLUDED.created_at,
            expand_after = EXCLUDED.expand_after;
        PERFORM gc_queue_referrers(namespaces, repositories, subjects, firsts, nexts, times);
    END IF;

    INSERT INTO gc_blob_review_queue AS q (digest, review_after, event)
    SELECT o.digest, after_manifest_delete, 'manifest_delete'
    FROM (SELECT DISTINCT configuration_blob_digest AS digest
          FROM old_rows
          WHERE configuration_blob_digest IS NOT NULL) o
    ORDER BY o.digest
    ON CONFLICT (digest) DO UPDATE SET
        review_after = GREATEST(q.review_after, EXCLUDED.review_after),
        review_count = 0,
        event = EXCLUDED.event,
        set_aside_at = NULL;
    RETURN NULL;
END;
$$;

CREATE OR REPLACE FUNCTION gc_track_deleted_layers ()
    RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
    after_layer_delete timestamptz := gc_review_after('layer_delete');
BEGIN
    INSERT INTO gc_blob_review_queue AS q (digest, review_after, event)
    SELECT o.digest, after_layer_delete, 'layer_delete'
    FROM (SELECT DISTINCT digest FROM old_rows) o
    ORDER BY o.digest
    ON CONFLICT (digest) DO UPDATE SET
        review_after = GREATEST(q.review_after, EXCLUDED.review_after),
        review_count = 0,
        event = EXCLUDED.event,
        set_aside_at = NULL;
    RETURN NULL;
END;
$$;

CREATE OR REPLACE FUNCTION gc_track_deleted_manifest_lists ()
    RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
    after_manifest_list_delete timestamptz := gc_review_after('manifest_list_delete');
BEGIN
    INSERT INTO gc_manifest_review_queue AS q (top_level_namespace_id, repository_id, manifest_id, review_after, event, unused_since)
    SELECT o.*, after_manifest_list_delete, 'manifest_list_delete', now()
    FROM (SELECT DISTINCT top_level_namespace_id, repository_id, child_id FROM old_rows) o
    WHERE EXISTS (SELECT FROM repositories r WHERE r.id = o.repository_id)
    ORDER BY 1, 2, 3
    ON CONFLICT (top_level_namespace_id, repository_id, manifest_id) DO UPDATE SET
        review_after = GREATEST(q.review_after, EXCLUDED.review_after),
        review_count = 0,
        event = EXCLUDED.event,
        unused_since = GREATEST(q.unused_since, EXCLUDED.unused_since),
        set_aside_at = NULL;
    RETURN NULL;
END;
$$;

CREATE OR REPLACE FUNCTION gc_track_deleted_tags ()
    RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
    pruned boolean := COALESCE(current_setting('purser.pruning', true), '') = 'on'; -- of this transaction
    after timestamptz := CASE WHEN pruned THEN gc_review_after('tag_prune') ELSE gc_review_after('tag_delete') END;
BEGIN
    INSERT INTO gc_manifest_review_queue AS q (top_level_namespace_id, repository_id, manifest_id, review_after, event, unused_since)
    SELECT o.*, after, CASE WHEN pruned THEN 'tag_prune' ELSE 'tag_delete' END, now()
    FROM (SELECT DISTINCT top_level_namespace_id, repository_id, manifest_id FROM old_rows) o
    WHERE EXISTS (SELECT FROM repositories r WHERE r.id = o.repository_id)
    ORDER BY 1, 2, 3
    ON CONFLICT (top_level_namespace_id, repository_id, manifest_id) DO UPDATE SET
        review_after = GREATEST(q.review_after, EXCLUDED.review_after),
        review_count = 0,
        event = EXCLUDED.event,
        unused_since = GREATEST(q.unused_since, EXCLUDED.unused_since),
        set_aside_at = NULL;
    RETURN NULL;
END;
$$;

CREATE OR REPLACE FUNCTION gc_track_switched_tags ()
    RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
    after_tag_switch timestamptz := gc_review_after('tag_switch');
BEGIN
    INSERT INTO gc_manifest_review_queue AS q (top_level_namespace_id, repository_id, manifest_id, review_after, event, unused_since)
    SELECT s.*, after_tag_switch, 'tag_switch', now()
    FROM (SELECT DISTINCT o.top_level_namespace_id, o.repository_id, o.manifest_id
          FROM old_rows o
          JOIN new_rows n ON n.id = o.id
          WHERE n.manifest_id <> o.manifest_id) s
    ORDER BY 1, 2, 3
    ON CONFLICT (top_level_namespace_id, repository_id, manifest_id) DO UPDATE SET
        review_after = GREATEST(q.review_after, EXCLUDED.review_after),
        review_count = 0,
        event = EXCLUDED.event,
        unused_since = GREATEST(q.unused_since, EXCLUDED.unused_since),
        set_aside_at = NULL;
    RETURN NULL;
END;
$$;

-- A statement-level trigger fires only for statements that name the trigger's table. So each
-- trigger is made on the partitioned table and, for statements that name a partition, on each
-- partition too.
DO $$
DECLARE
    d record;
    t regclass;
BEGIN
    FOR d IN
        SELECT * FROM (VALUES
            ('blobs', 'INSERT', 'gc_track_blob_uploads', 'REFERENCING NEW TABLE AS new_rows'),
            ('blobs', 'UPDATE', 'gc_track_blob_sizes', 'REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows'),
            ('manifests', 'INSERT', 'gc_track_configuration_blobs', 'REFERENCING NEW TABLE AS new_rows'),
            ('manifests', 'INSERT', 'gc_track_manifest_uploads', 'REFERENCING NEW TABLE AS new_rows'),
            ('layers', 'INSERT', 'gc_track_layer_blobs', 'REFERENCING NEW TABLE AS new_rows'),
            ('manifests', 'DELETE', 'gc_track_deleted_manifests', 'REFERENCING OLD TABLE AS old_rows'),
            ('layers', 'DELETE', 'gc_track_deleted_layers', 'REFERENCING OLD TABLE AS old_rows'),
            ('manifest_references', 'DELETE', 'gc_track_deleted_manifest_lists', 'REFERENCING OLD TABLE AS old_rows'),
            ('tags', 'DELETE', 'gc_track_deleted_tags', 'REFERENCING OLD TABLE AS old_rows'),
            ('tags', 'UPDATE', 'gc_track_switched_tags', 'REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows')
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
