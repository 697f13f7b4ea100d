// Package loosefk cleans up the children of deleted rows where PostgreSQL's foreign keys
// can't: across databases, and where an ON DELETE CASCADE would delete a million rows
// within a client's request.
//
// A loose foreign key is a definition: when a row of the parent table is deleted, the rows
// of the child table that refer to it are deleted, lose the reference, or get a value in
// another column. This happens later: a trigger on the parent writes the keys of deleted
// rows into the table loose_foreign_keys_deleted_records, and a [Worker] cleans up their
// children in bounded batches. Parent and child may live in different databases. PostgreSQL
// 14 or newer is enough: no superuser, no extension.
//
// To introduce one: write the definitions ([Load]), install the table of deleted records
// ([Schema.Install]), put triggers on the parents ([Schema.TrackRecordDeletions]), run a
// worker ([New], [Worker.Run]), and only then drop the foreign keys that the definitions
// replace. Package generate writes definitions and migrations for foreign keys that exist,
// package doctor finds what is missing or wrong, package loosefktest has helpers for tests,
// and packages metrics and redislock connect a worker to Prometheus and Redis.
//
// A [Schema] is the schema of the table of deleted records, and of tables that are named
// without a schema. A worker gets it as [Database.Schema]; the functions that install are
// its methods. A table of another schema is named "schema.name", in definitions and calls.
//
// # Why no child is missed
//
// The trigger's insert is part of the transaction that deletes the parent, so each
// committed deletion has a record, and each record belongs to a committed deletion. A
// record stays pending until, for each definition in turn, a query that waits for locked
// rows has found no more children; only then is the record marked processed. Every query is
// a transaction of its own and can be repeated: a worker that is killed at any point leaves
// records pending, and the next one continues. Two workers on the same records attempt the
// same deletes, which does no harm: the lock that keeps them apart only saves work.
//
// When a parent is inserted again under its old id, its children belong to the new row and
// must stay. If both tables live in one database, each query leaves out the parents that
// exist in the snapshot in which it sees the children, and is rolled back if a parent has
// come back while it waited for locks. Across databases, the parents are looked up before
// each query.
//
// A child that is inserted while its parent is being deleted may be missed: the child's
// transaction still sees the parent, and the worker doesn't see the child yet. If both
// tables are in one database, [Schema.GuardInserts] prevents this, with the lock that a
// foreign key would take. If they are in two databases, the worker looks a second time for
// children on another server, an hour later, and doctor.Audit finds children that were
// committed even later.
//
// The table of deleted records is partitioned by a number that only grows. Deleting
// processed records one by one would bloat the table; instead a new partition takes over
// every day, and a partition whose records are all processed is detached and later dropped.
// One transaction first detaches the partition and then searches it for pending records: in
// the opposite order, a record whose insert was under way would be lost. Rotation never
// makes a delete fail: a default partition takes records that fit no other, and a step that
// would wait for other transactions gives up after a moment and is tried again.
package loosefk
