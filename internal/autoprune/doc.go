// Package autoprune decides which tags of a repository policies delete, and deletes them.
//
// [ParsePolicy] reads a policy, [oci.ParseTagPattern] the pattern of a protection rule,
// [Combine] returns the policies that apply to a repository, and [Evaluate] judges the
// repository's tags. The rules of evaluation:
//
//   - Policies by age and by last use come first. Policies by number count the tags that
//     remain after them. A tag is deleted if any policy selects it.
//   - A policy that can't be judged makes no other policy delete more. Tags that a
//     last_pulled policy might take, but can't judge for lack of statistics, are not counted.
//     Beside a policy that can't be read, policies by number select nothing, since the
//     unreadable policy might come first.
//   - A protected tag stays, whatever selects it.
//   - Missing knowledge is no reason to delete: without pull statistics for the whole of its
//     age a last_pulled policy selects nothing, and the verdict says why.
//   - Signatures, SBOMs and attestations that are attached to an image of the repository
//     are never selected and never counted. An attached tag is deleted when its image loses
//     its last tag in the same run. A tag whose image isn't in the repository, an orphan, is a
//     tag like any other, unless a policy asks for the removal of orphans.
//   - The verdict depends on the set of tags, never on their order.
//
// Evaluation is pure: the tags come from a sequence that the caller can run again, so that
// a large repository is read page by page and never held in memory; [Evaluate] says what it
// keeps.
//
// A run prunes a namespace, as follows, in one or more time slices:
//
//  1. claim (tasks.go) takes the namespace's task, and load (rules_load.go) reads its
//     policies and protection rules.
//  2. namespace (time_slice.go) goes through the repositories in the order of their ids.
//  3. readSnapshot (snapshot.go) opens a snapshot of the repository. tagReader
//     (tag_reader.go) reads the tags from it, with their images, exemptions and last uses,
//     and Evaluate (evaluate.go) judges them.
//  4. Tags that the verdict deletes are collected in batches. A batch is deleted in one
//     transaction (delete.go): lockTaskAndPolicies, lock the repository, lock the tags,
//     compare them with what was judged, delete, write the audit log, count.
//  5. Tags attached to images that no tag reaches any more, and orphans, are deleted in the
//     same way, after their images were locked and looked at again.
//  6. pause or finish (record.go) adds the counts to the run, and returns the task.
//
// The statements of steps 3 to 5 stand in snapshot.go and delete_tags.go. An undo (undo.go,
// undo_tags.go) goes the opposite way. A preview (preview.go) does steps 1 to 3, without the
// task, and adds up what would become unused (unused.go).
//
// A [Pruner] stores the policies and prunes by them, at the same time as other pruners on
// the same database, clients, and people who change policies. It must not delete a tag that
// should stay. Each of the following concerns has its protection.
//
// Two workers. A worker takes a namespace's task with SKIP LOCKED, and a lease with an id
// that is new each time. Each transaction in which a time slice writes first locks the task
// and looks for this lease (lockTask, lockTaskAndPolicies). So when two workers believe they
// have the task, the one whose lease was replaced writes nothing, neither deletions nor the
// state of the run, however long it was stopped. Each commit is complete: the deletions,
// their entries in the audit log, the run's counts and its position. The next worker that
// takes the task continues an abandoned run from that position.
//
// Changed policies. A change of policies first raises a version number (a namespace's in
// its task; that of the defaults and that of the protection rules in settings) and keeps
// that row locked until it commits. A time slice reads the versions, then the policies;
// each deletion locks the versions and compares. So a deletion either commits before the
// change does, or finds another version and gives up. The task of a namespace without
// policies is deleted under the same lock, after another look for policies; a client that
// creates a policy waits for that, and makes the task again.
//
// The default policy of the configuration is a row like the registry's other defaults. Each
// process sets this row to its own setting before it prunes for the first time (configure),
// under the same lock and with a new version. So if processes have different settings, all
// use that of the process which started last.
//
// Changed tags. Tags are judged in a snapshot, and locked and compared when they are
// deleted: the row's id, its manifest and its push time must be those that were judged. A
// tag that was moved, pushed again, or deleted and created again is not deleted, and a tag
// that another transaction has locked is skipped. The newest N tags are determined in the
// snapshot: if a client deletes one of them after that, the result is as if it had done so
// after the run.
//
// Deleted repositories. Each deletion locks the repository's row against being deleted, as
// a push does. If the row is gone, the worker leaves the repository.
//
// Attached tags. They are deleted last, when their images have lost their tags. The
// deletion locks the image and the indexes above it, which tagging a manifest or putting an
// index also needs, and then looks at them again. If an image is missing, the deletion
// looks for it again while nobody can push to the repository. Tags attached to an attached
// tag need another pass. If the process dies here, the attached tags that are left become
// orphans once garbage collection has deleted the image.
//
// Time. A namespace gets a time slice. It is interrupted in the middle of a repository only
// where that costs little, since a judgement belongs to one snapshot and can't be kept.
// Therefore the deletion after a judgement goes on for at least as long as the judgement
// took, and a judgement that outlasts the slice pauses to let other namespaces have theirs
// (share). A nested slice, in such a pause, can't pause itself: it ends, and the repository
// is judged again in a slice of its own. The run counts a repository's tags with the first
// deletion there, or when the run has been through it, so that a second judgement doesn't
// count them twice.
//
// Undo restores tags whose names are free, with the times they had, and in the same
// transaction exempts them from the policies that took them. An exemption belongs to the
// new row, its time and the policy's version: it ends with a push to the tag and when the
// policy is saved. A run that hasn't ended can't be undone, and a run that has ended
// deletes nothing.
//
// Lock order. The task comes before settings, tags, queues and the run. While they delete,
// workers wait for a lock for 200 ms at most, less than deadlock_timeout, so in a deadlock
// it is never a client that fails. A transaction that deletes a namespace locks the
// namespace before the task; so no worker's transaction that has locked the task may need
// the namespace (see lockTask).
package autoprune
