// Package loosefk keeps the children of deleted rows from staying behind where
// PostgreSQL's foreign keys can't: across databases, and where an ON DELETE
// CASCADE would delete a million rows inside somebody's request.
//
// A loose foreign key is a definition: when a row of the parent table goes, the
// rows of the child table that name it in a column are deleted, lose the
// reference, or get a value in another column. Not at once: a trigger on the
// parent writes the keys of deleted rows into the table
// loose_foreign_keys_deleted_records, and a [Worker] cleans up behind them in
// bounded batches. Parent and child may live in different databases. Nothing but
// PostgreSQL 14 or newer is needed: no superuser, no extension.
//
// The order of things: write the definitions ([Load]), install the table of
// deleted records ([Install]), put triggers on the parents
// ([TrackRecordDeletions]), run a worker ([New], [Worker.Run]), and only then
// drop the foreign keys that the definitions replace.
//
// # Why it is right
//
// The trigger's insert is part of the transaction that deletes the parent, so a
// committed deletion always has its record, and a record always a committed
// deletion. A record stays pending until, for each definition in turn, a query
// that waits for locked rows has found no child left; only then is it marked
// processed. Every query is a transaction of its own and all of them may be
// repeated: a worker that is killed anywhere leaves records pending, and the next
// one goes on. Two workers on the same records do the same deletes twice, so the
// lock that keeps them apart saves work and guards nothing.
//
// What was deleted must stay deleted: when a parent is inserted again under its
// old id its children belong to it. Where both live in one database each query
// leaves out the parents that exist, by the snapshot by which it sees the
// children, and is undone if one has come back while it waited for them; else the
// parents are looked up before each query.
//
// A child that is inserted while its parent goes may be missed: its transaction
// sees the parent, and the worker doesn't see the child yet. In one database
// [GuardInserts] closes this, by the lock that a foreign key would take. Across
// two, children on another server are looked for a second time, an hour later,
// and [Worker.Audit] finds what came even after that.
//
// The table of deleted records is partitioned by a number that only grows.
// Deleting its processed records one by one would bloat it; instead, a partition
// whose records are all processed is detached and later dropped, and a new one
// takes over every day. A partition is detached first and searched for pending
// records then, in the same transaction: the other way round, a record whose
// insert was under way would be lost. Deletes never fail because of rotation: a
// default partition takes what has no other, and what would have to wait for
// others gives up after a moment and is tried again.
package loosefk
