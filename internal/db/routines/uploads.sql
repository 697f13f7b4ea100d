-- purser_upload_belongs says whether an upload belongs to the repository that has the path now. The
-- other parameters are the ids of the namespace and of the repository that the upload belongs to; 0 or
-- NULL: there was none of that name when the upload began and when its state was last saved. A name may
-- be used again by somebody else, an id never is.
CREATE OR REPLACE FUNCTION purser_upload_belongs (path text, namespace bigint, repository bigint)
    RETURNS boolean
    LANGUAGE sql STABLE
    AS $$
    SELECT COALESCE(namespace, 0) IN (0, (
            SELECT n.id FROM live_namespaces n WHERE n.name = split_part(purser_upload_belongs.path, '/', 1)))
        AND COALESCE(repository, 0) IN (0, (
            SELECT r.id FROM live_repositories r WHERE r.path = purser_upload_belongs.path))
$$;
