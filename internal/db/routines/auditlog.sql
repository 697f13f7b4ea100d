-- An entry of the audit log says by namespace_id to which namespace it belongs, since somebody else
-- may make a namespace under the name of one that was deleted. The trigger looks for the id where
-- the statement that writes the entry doesn't know it: by the repository, else by the name, which
-- nobody else can have at that moment. Pulls are written a moment after they happened, and many at
-- once, so their statement gives the id by the repository, and they never get one by the name.
-- Entries without an id are shown to operators only. An entry about a repository in the trash gets
-- the id too, so deleted_at doesn't matter.
--
-- In the same way an entry says by repository_id to which repository it belongs. An entry about a
-- deletion gives the id itself, or has none because the row is gone: its path may be another
-- repository's already.
CREATE OR REPLACE FUNCTION purser_auditlog_namespace ()
    RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF NEW.repository_id IS NOT NULL THEN -- whatever its deleted_at
        SELECT r.top_level_namespace_id INTO NEW.namespace_id FROM repositories r WHERE r.id = NEW.repository_id;
    END IF;
    IF NEW.namespace_id IS NULL THEN
        SELECT n.id INTO NEW.namespace_id FROM live_namespaces n WHERE n.name = NEW.namespace;
    END IF;
    IF NEW.repository_id IS NULL AND NEW.repository IS NOT NULL AND NEW.kind NOT IN ('delete_repo', 'purge_repo') THEN
        SELECT r.id INTO NEW.repository_id FROM live_repositories r
        WHERE r.top_level_namespace_id = NEW.namespace_id AND r.path = NEW.repository;
    END IF;
    RETURN NEW;
END;
$$;

CREATE OR REPLACE TRIGGER auditlog_namespace BEFORE INSERT ON auditlog
    FOR EACH ROW WHEN (NEW.namespace_id IS NULL AND NEW.namespace IS NOT NULL AND NEW.kind <> 'pull_repo')
    EXECUTE FUNCTION purser_auditlog_namespace();
