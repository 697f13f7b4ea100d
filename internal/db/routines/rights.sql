-- Revoke EXECUTE on the registry's functions from PUBLIC, whatever the default privileges of
-- the database are. Triggers still work: PostgreSQL checks the right to a trigger function
-- when the trigger is created, not when it fires. Functions that a trigger function calls run
-- with the rights of the role that changes the table, which is the owner or a member of the
-- owner's role.
DO $$
DECLARE
    f record;
BEGIN
    FOR f IN
        SELECT DISTINCT p.oid::regprocedure AS name
        FROM pg_catalog.pg_proc p, pg_catalog.aclexplode(COALESCE(p.proacl, pg_catalog.acldefault('f', p.proowner))) a
        WHERE p.pronamespace = current_schema()::regnamespace AND a.grantee = 0
            AND (starts_with(p.proname, 'gc_') OR starts_with(p.proname, 'purser_'))
    LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f.name);
    END LOOP;
END;
$$;
