// Package loosefk deletes or updates rows (children) that refer to deleted rows (parents),
// where PostgreSQL's foreign keys can't: if parents and children are in different
// databases, or if an ON DELETE CASCADE would delete a million rows within a client's
// request.
//
// A loose foreign key is a definition: when a row of the parent table is deleted, the rows
// of the child table that refer to it are deleted, lose the reference, or get a value in
// another column. This happens in two steps. When a client deletes parents, a trigger
// writes their keys into the table loose_foreign_keys_deleted_records, the table of deleted
// records. Later a [Worker] reads these records and cleans up the children in bounded
// batches. Parent and child may be in different databases. PostgreSQL 14 or newer is
// enough: no superuser, no extension.
//
// To introduce a loose foreign key:
//
//   - write the definition into a YAML file, and read it with [Load];
//   - install the table of deleted records ([Schema.Install]);
//   - put triggers on the parent table ([Schema.TrackRecordDeletions]);
//   - run a worker ([New], [Worker.Run]);
//   - only then drop the foreign key that the definition replaces.
//
// Package generate writes definitions and migrations for existing foreign keys. Package
// doctor finds what is missing or wrong. Package loosefktest helps to test an application's
// loose foreign keys. Packages metrics and redislock connect a worker to Prometheus and
// Redis.
//
// A [Schema] names the PostgreSQL schema that contains the table of deleted records, and
// the tables that definitions and calls name without a schema. A table of another schema is
// named "schema.name". [Database.Schema] tells a worker the schema; the functions that
// install tables and triggers are methods of [Schema].
//
// # Why no child is missed
//
// The trigger inserts the deleted record in the transaction that deletes the parent, so a
// record is committed exactly if the deletion is. A record stays pending until, for each
// definition in turn, a query that waits for locked rows instead of skipping them has
// changed all children of the parent that it found, and has found fewer than its limit.
// Then no child is left, and the worker marks the record as processed. Each query is a
// transaction of its own and can be repeated: if a worker is killed at any point, the
// record stays pending and the next worker continues. If two workers process the same
// record, the second finds no children, which does no harm: the lock that keeps workers
// from processing the same parent table only saves work.
//
// If a client inserts a parent again under its old key, its children belong to the new row
// and must stay. If parent and child are in one database, each query leaves out the parents
// that exist in the snapshot in which it sees the children, and is rolled back if a parent
// was inserted again while the query waited for locks. If they are in two databases, the
// worker looks up the parents before each query.
//
// The worker may miss a child that is inserted while another transaction deletes its
// parent: the child's transaction still sees the parent, and the worker doesn't see the
// child yet. If parent and child are in one database, [Schema.GuardInserts] prevents this:
// its trigger takes the same lock on the parent as a foreign key. If they are in two
// databases, the worker searches for children a second time after [Options.SecondLook], by
// default an hour; doctor.Audit finds children that were committed even later.
//
// The table of deleted records is partitioned by its column `partition`. The default value
// of this column decides to which partition a new record goes. Deleting processed records
// one by one would bloat the table. Instead, a worker adds a partition every day and sets
// the default to the new partition's number; it detaches a partition whose records are all
// processed, and drops it days later.
//
// A worker first detaches a partition and then searches it for pending records, in one
// transaction that it rolls back if it finds one; in the opposite order, a record whose
// insert was under way would be lost. This rotation never makes a client's delete fail: a
// default partition accepts records with a number for which there is no partition, and a
// step of the rotation that would have to wait for other transactions gives up after a
// moment and is tried again.
//
// # Decisions
//
// A child is found by its place (tableoid and ctid), so the child's table needs no primary key, and
// may be partitioned. The worker's statement locks children, and counts those that it found and
// those that it deleted. If the numbers differ, a child has moved to another place in between, and
// the worker looks for it again.
//
// A deleted record says by a negative cleanup_attempts that it waits for the second look, the later
// search for children on another server. So the second look needs no column that the published
// design doesn't have. The table has one such column, primary_key_text, for keys that aren't
// integers.
package loosefk
