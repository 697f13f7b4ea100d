// Package model is the protocol of garbage collection as a program small enough
// that every way in which its steps can interleave is tried: clients that push,
// tag, delete and ask; reviewers of manifests and blobs; sweepers; and time. It
// is of no use to the registry as it runs. It stands beside the code so that a
// change of a statement's order, or of what a statement locks, is tried here
// before it is believed.
//
// # How to read it
//
// A process is a program: a list of steps, each of them one SQL statement, or
// one row of a statement that locks several, or one call of the blob store. A
// step is named after the method and the statement that it stands for: "look for
// the method" is how the two are kept alike. Who changes such a statement in
// internal/catalog or in routines/gc_tracking.sql changes its step.
//
//   - database.go is PostgreSQL: rows, snapshots, row locks, unique keys.
//   - world.go says which rows there are, and what holds what.
//   - clients.go has the API's transactions, workers.go the reviewers, sweepers
//     and the reaper.
//   - check.go has time, what must hold always, and what must hold at rest.
//   - explore.go goes through all states, nearest first, so that what it finds is
//     as short as can be; mutations.go has the wrong ways.
//   - scenarios_test.go has the situations; model_test.go explores them.
//
// # What is modelled
//
// Every statement sees what committed before it began, and its own transaction's
// writes. A statement that finds rows and then waits for them, or decides by
// what it read, goes on with the snapshot of its beginning, while others act; a
// row that it waited for is looked at again as it is now; one that was deleted
// isn't there, even if another has come under the same key. Row locks are KEY
// SHARE, NO KEY UPDATE and UPDATE. An insert waits for who inserts or deletes the
// same key, but not for who only locks it; DO UPDATE waits for both. Foreign keys
// lock their targets, and the one of an index's child is checked at the commit.
// Triggers fire when the rows are written, in PostgreSQL's order, each of their
// statements with a snapshot of its own.
//
// A client's transaction that fails with a foreign key, a serialization failure
// or a deadlock runs again whole. Where clients wait for each other in a circle,
// any of them may be the one that does; a circle with a reviewer in it is the
// reviewer's to break. A reviewer's transaction may be rolled back at any point,
// which is its lock timeout as well as its death. Clients may die at any point
// where the scenario says so, sweepers between their steps.
//
// A batch of a reviewer is any one of the due rows, or all of them. A row of a
// queue is due, due soon (the delays of what a deletion sets free, which may be
// short, and the pause after a row was found locked), or due later (the delay of
// a promise). Each scenario is explored with these delays and with none. The
// short delay passes at any moment. The long one passes only between requests,
// since none takes as long.
//
// # What must hold
//
// Always: what a tag, an index or a manifest refers to is there, blobs with
// their links and their objects; an object has one owner; no reviewer meets a
// foreign key, and none deletes a referrer whose subject lives; what a client was
// told exists (asked for, mounted, pushed, put untagged) is there until the delay
// is over or a client deletes it; clients don't wait for each other in a circle,
// except where a scenario says how. And from every state there is a way to rest,
// where every client has its answer, the queues are empty, and nothing is left
// that no tag holds, directly or not: no manifest, blob, link or object.
//
// # What is not
//
// The pages in which the referrers of a deleted subject are queued: all are queued by its
// deletion. Caches, promises answered from memory, attempts and rows that were set aside,
// lost blobs, dry runs, the limits of batches. Layers and the gc_blobs_* tables
// come and go with their manifest's row, by the same statement, and stand for
// themselves in it. A lock that several wait for goes to any of them. PostgreSQL
// looks for a deadlock once, when a wait has lasted deadlock_timeout: if a
// reviewer has closed a circle less than its lock_timeout before a client does
// so, it is the client that runs again. The model gives every circle to the
// reviewer.
//
// # What is open
//
// Clients that wait for each other are in the scenarios with mayDeadlock; one of them
// runs again.
package model
