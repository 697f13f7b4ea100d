-- These triggers notify other processes of changes, so that these processes drop the results
-- that they have cached.
--
-- Triggers send the notifications, and not the code that makes the change, so that every
-- change of a row is covered: by a push, garbage collection, pruning or psql. A process that
-- keeps a cache has a row in replicas. It needs no notification of its own changes, since it
-- drops them from its cache itself: on the connections that make them it sets purser.replica
-- to its id. A trigger sends a notification only if another process keeps a cache, since each
-- notification slows commits. The payload is a letter and a list of repository paths, under
-- 8,000 bytes: "t" means that tags of these repositories changed, "a" that anything in them
-- may have changed. The payload "*" means that anything in any repository may have changed.
--
-- A change in the trash is notified as "*": when it commits, the repository may have been restored,
-- under a name that the trigger can't know. Pushes lock the repository's row, so only deletions
-- by reviews and updates of blobs can come that late.

CREATE OR REPLACE FUNCTION purser_others_listen ()
    RETURNS boolean
    LANGUAGE sql STABLE
    AS $$
    SELECT EXISTS (
        SELECT FROM replicas
        WHERE id::text <> COALESCE(current_setting('purser.replica', true), ''))
$$;

CREATE OR REPLACE FUNCTION purser_notify_paths (kind text, paths text[])
    RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    batch text := kind;
    p text;
BEGIN
    IF cardinality(paths) > 500 OR '*' = ANY (paths) THEN
        PERFORM pg_notify('purser_changed', '*');
        RETURN;
    END IF;
    FOREACH p IN ARRAY paths LOOP
        IF length(batch) + length(p) > 7000 THEN
            PERFORM pg_notify('purser_changed', batch);
            batch := kind;
        END IF;
        batch := batch || ' ' || p;
    END LOOP;
    IF batch <> kind THEN
        PERFORM pg_notify('purser_changed', batch);
    END IF;
END;
$$;

CREATE OR REPLACE FUNCTION purser_notify_deleted ()
    RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF EXISTS (SELECT FROM old_rows) AND purser_others_listen() THEN
        PERFORM purser_notify_paths(TG_ARGV[0], ARRAY(
            SELECT CASE WHEN in_trash THEN '*' ELSE path END FROM named_repositories
            WHERE id = ANY (ARRAY(SELECT DISTINCT repository_id FROM old_rows LIMIT 501))));
    END IF;
    RETURN NULL;
END;
$$;

CREATE OR REPLACE FUNCTION purser_notify_inserted ()
    RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF EXISTS (SELECT FROM new_rows) AND purser_others_listen() THEN
        PERFORM purser_notify_paths(TG_ARGV[0], ARRAY(
            SELECT path FROM repositories WHERE id = ANY (ARRAY(SELECT DISTINCT repository_id FROM new_rows LIMIT 501))));
    END IF;
    RETURN NULL;
END;
$$;

-- Deleting a namespace deletes all its repositories, and an update puts it into the trash or
-- brings it back. Therefore the notification has the payload "*", which invalidates everything
-- that is cached.
CREATE OR REPLACE FUNCTION purser_notify_namespaces ()
    RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF EXISTS (SELECT FROM old_rows) AND purser_others_listen() THEN
        PERFORM pg_notify('purser_changed', TG_ARGV[0]);
    END IF;
    RETURN NULL;
END;
$$;

CREATE OR REPLACE FUNCTION purser_notify_repositories ()
    RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF purser_others_listen() THEN
        PERFORM purser_notify_paths(TG_ARGV[0], ARRAY(SELECT path FROM old_rows LIMIT 501));
    END IF;
    RETURN NULL;
END;
$$;

-- A blob's row is updated only when a check finds that the store has lost the blob's object or
-- has it again, or when a client pushes a lost blob again. So ordinary pushes never fire this
-- trigger.
CREATE OR REPLACE FUNCTION purser_notify_blobs ()
    RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF EXISTS (SELECT FROM old_rows) AND purser_others_listen() THEN
        PERFORM purser_notify_paths(TG_ARGV[0], ARRAY(
            SELECT CASE WHEN in_trash THEN '*' ELSE path END FROM named_repositories WHERE id = ANY (ARRAY(
                SELECT DISTINCT repository_id FROM repository_blobs
                WHERE blob_digest = ANY (ARRAY(SELECT digest FROM old_rows)) LIMIT 501))));
    END IF;
    RETURN NULL;
END;
$$;

DO $$
DECLARE
    d record;
    t regclass;
BEGIN
    FOR d IN
        SELECT * FROM (VALUES
            ('tags', 'INSERT', 'purser_notify_inserted', 't', 'REFERENCING NEW TABLE AS new_rows'),
            ('tags', 'UPDATE', 'purser_notify_inserted', 't', 'REFERENCING NEW TABLE AS new_rows'),
            ('tags', 'DELETE', 'purser_notify_deleted', 't', 'REFERENCING OLD TABLE AS old_rows'),
            ('manifests', 'DELETE', 'purser_notify_deleted', 'a', 'REFERENCING OLD TABLE AS old_rows'),
            ('repository_blobs', 'DELETE', 'purser_notify_deleted', 'a', 'REFERENCING OLD TABLE AS old_rows'),
            ('blobs', 'UPDATE', 'purser_notify_blobs', 'a', 'REFERENCING OLD TABLE AS old_rows'),
            ('repositories', 'UPDATE', 'purser_notify_repositories', 'a', 'REFERENCING OLD TABLE AS old_rows'),
            ('repositories', 'DELETE', 'purser_notify_repositories', 'a', 'REFERENCING OLD TABLE AS old_rows'),
            ('top_level_namespaces', 'UPDATE', 'purser_notify_namespaces', '*', 'REFERENCING OLD TABLE AS old_rows'),
            ('top_level_namespaces', 'DELETE', 'purser_notify_namespaces', '*', 'REFERENCING OLD TABLE AS old_rows')
        ) AS v (tbl, event, fn, kind, tables)
    LOOP
        FOR t IN
            SELECT d.tbl::regclass
            UNION ALL
            SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = d.tbl::regclass
        LOOP
            EXECUTE format('CREATE OR REPLACE TRIGGER %I AFTER %s ON %s %s FOR EACH STATEMENT EXECUTE FUNCTION %I(%L)',
                'purser_notify_' || lower(d.event) || '_trigger', d.event, t, d.tables, d.fn, d.kind);
        END LOOP;
    END LOOP;
END;
$$;
