// Package autoprune decides which tags of a repository may go.
//
// [ParsePolicy] reads a policy, [oci.ParseTagPattern] the pattern of a protection rule,
// [Combine] says which policies apply to a repository, and [Evaluate] judges the
// repository's tags. What holds:
//
//   - Policies by age and by last use come first. Those by number count what remains
//     after them. A tag goes if any policy selects it.
//   - A policy that can't be judged costs no other tag: what one might take that rests
//     for lack of statistics doesn't count, and beside one that can't be read nothing is
//     counted, since it might come first.
//   - A protected tag stays, whatever selects it.
//   - What is unknown is no reason: without pull statistics for the whole of its
//     age a last_pulled policy selects nothing, and the verdict says why.
//   - Signatures, SBOMs and attestations that are attached to an image of the repository
//     are never selected and never counted. One goes when its image loses its last tag
//     in the same run. One whose image isn't in the repository, an orphan, is a tag like
//     any other, unless a policy asks for the removal of orphans.
//   - The verdict depends on the set of tags, never on their order.
//
// Evaluation is pure: the tags come from a sequence that the caller can run again,
// so that a large repository is read page by page and never held in memory;
// [Evaluate] says what it keeps.
//
// A [Pruner] keeps the policies and prunes by them, beside others on the same
// database, clients, and people who change policies. Why nothing goes that should
// stay:
//
// One worker. A worker takes a namespace's task with SKIP LOCKED, and a lease that
// has a name of its own each time. Whatever a turn writes, it writes in a
// transaction that first locks the task and looks for its lease (keep, hold). So of
// two that believe to have the task, the one whose lease was replaced writes
// nothing, neither tags nor what it knows of the run, however long it was stopped.
// What is written is whole at each commit: the tags that are gone, their entries in
// the audit log, the run's counts and where the run is; a run that was left is gone
// on with from there by whoever takes the task next.
//
// Policies of the moment. Each change of policies raises a number (of the namespace
// in its task, of the defaults and of the protection rules in settings) before it
// changes them, and keeps that row locked to its end. A turn reads the numbers, then
// the policies; each deletion locks the numbers and compares. So a deletion either
// ends before the change does, or finds another number and gives up. The task of a
// namespace without policies is deleted under the same lock, after a new look for
// policies; who creates one then waits, and makes the task again.
//
// The default policy of the configuration is a row like the registry's other defaults.
// Each process makes it the one of its setting before it prunes for the first time
// (configure), under the same lock and with a new number, so processes with different
// settings all go by that of the one that started last.
//
// Tags of the moment. Tags are judged in a snapshot, and locked and compared when
// they are deleted: the row, its manifest and the time of its push must be those that
// were judged. A tag that was moved, pushed again, or deleted and made again isn't the
// one that was judged. One that somebody is changing is left alone. What the newest N
// are is judged in the snapshot: if a client deletes one of them after that, it is as
// if it had done so after the run.
//
// Repositories of the moment. Each deletion locks the repository's row against being
// deleted, as a push does, and finds it there, or leaves the repository.
//
// Attached tags go last, when their images have lost their tags. The image and the
// indexes above it are locked, which who tags a manifest or puts an index needs, and
// then looked at again; an image that isn't there is looked for again while nobody can
// push to the repository. What is attached to an attached tag needs another pass. What a
// process that dies here leaves is an orphan when garbage collection has taken the image.
//
// Time. A namespace has a turn's time, and is left in the middle of a repository only
// where that costs little: what was judged goes by one snapshot and can't be kept, so the
// deletion that follows goes on for as long as the judgement took, and a judgement that
// outlasts the turn pauses for turns of others (share). A turn in such a pause doesn't
// pause itself: it ends, and the repository is judged again in a turn of its own. The
// run's tags are counted with the first deletion in a repository, or when the run has
// been through it, so that what is judged again isn't counted again.
//
// Undo makes tags anew where there is none by the name, with the times they had, and in
// the same transaction exempts them from the policies that took them. An exemption is
// of the new row, its time and the policy's version: it ends with a push and with
// the saving of the policy. A run that hasn't ended isn't undone, and one that has
// ended deletes nothing.
//
// Who waits for whom. The task comes before settings, tags, queues and the run.
// Workers wait 200 ms at most for a lock while they delete, less than PostgreSQL takes
// to look for a deadlock, so it is never a client that loses. Whoever deletes a
// namespace has it before the task; so no transaction of a worker that holds the
// task may need the namespace (see keep).
package autoprune
