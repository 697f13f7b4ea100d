package loosefk

// keyColumnSQL is the column of {relation} by which deletions are recorded, or
// NULL. It is of an integer type, uuid, text or varchar, and: called id and unique;
// or else the primary key, in a partitioned table apart from what that is
// partitioned by; or else called id, where there is no primary key.
const keyColumnSQL = `
        SELECT k.attname::text
        FROM (
            SELECT a.attname,
                a.attname = 'id' AND EXISTS (
                    SELECT FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class r ON r.oid = i.indrelid
                    WHERE i.indrelid = a.attrelid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
                        AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1]) AND (i.indnkeyatts = 1 OR r.relkind = 'p')) AS is_id,
                (SELECT i.indkey[0:i.indnkeyatts - 1]::int2[] FROM pg_catalog.pg_index i
                    WHERE i.indrelid = a.attrelid AND i.indisprimary) AS columns,
                (SELECT d.partattrs::int2[] FROM pg_catalog.pg_partitioned_table d WHERE d.partrelid = a.attrelid) AS partition,
                a.attnum
            FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
            WHERE a.attrelid = {relation} AND a.attnum > 0 AND NOT a.attisdropped
                AND CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END IN (
                    'int2'::regtype, 'int4'::regtype, 'int8'::regtype, 'uuid'::regtype, 'text'::regtype, 'varchar'::regtype)) k
        WHERE k.is_id OR k.columns IS NULL AND k.attname = 'id' OR k.attnum = ANY (k.columns) AND NOT EXISTS (
            SELECT FROM unnest(k.columns) o (num) WHERE o.num <> k.attnum AND o.num <> ALL (COALESCE(k.partition, '{}')))
        ORDER BY k.is_id DESC, k.attnum = ANY (COALESCE(k.partition, '{}'))
        LIMIT 1`
