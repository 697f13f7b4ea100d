// Package autoprune deletes tags by policies. It judges the tags of each repository by the
// policies that apply there, and deletes the tags that a policy selects.
//
// Four packages below it have parts of the subject. Package policies stores the policies and says
// which of them apply where. Package snapshot reads a repository as data that policies judge. Package
// warnings finds what a policy surely wasn't meant to do. Package forecast says what policies would
// have deleted in the past. Two packages read no database: policy reads the text of a policy, and
// judge says by which rules policies select tags.
//
// A run prunes a namespace, as follows, in one or more time slices:
//
//  1. claim (tasks.go) leases the namespace's task, and [policies.Store.Load] reads its
//     policies and protection rules.
//  2. namespace (time_slice.go) goes through the repositories in the order of their ids. If
//     policies have caps, it does so twice: first it counts what they would delete (count in
//     caps.go) and decides which of them ask (decideCaps).
//  3. [snapshot.Read] opens a snapshot of the repository. A [snapshot.TagReader] reads the
//     tags from it, with their images, exemptions and last-used times, and [judge.Evaluate]
//     judges them.
//  4. Tags that the verdict deletes are gathered in batches. Each batch is deleted in one
//     transaction (delete.go), which locks the task and the versions of the policies
//     (lockTaskAndPolicies), locks the repository and the tags, compares the tags with
//     those that were judged, deletes them, writes the audit log, and adds to the run's
//     counts.
//  5. Tags attached to images that no tag reaches any more, directly or through an index,
//     are deleted in the same way. The transaction first locks the images and checks once
//     more that no tag reaches them. Orphans are deleted with them, after the transaction
//     has looked for their images once more.
//  6. pause or finish (record.go) adds the counts of the time slice to the run's row, and
//     gives up the lease on the task.
//
// The SQL statements of steps 4 and 5 are in delete_tags.go. An undo (undo.go) restores the tags
// that a run has deleted. A preview (preview.go) does steps 1 to 3 without claiming the task, and
// adds up the bytes of the blobs that would become unused.
//
// A [Pruner] works while other pruners use the same database, clients push and delete, and
// administrators change policies. It must never delete a tag that should stay. The
// following paragraphs name each danger and the protection against it.
//
// Two workers in one namespace. A worker claims a namespace's task with SKIP LOCKED, and
// writes a new random lease id into it. Each transaction in which a time slice writes first
// locks the task and looks for this lease id (lockTask, lockTaskAndPolicies). So if two
// workers believe that they have the task, the worker whose lease id was replaced writes
// nothing, neither deletions nor the state of the run, however long its process was
// stopped. One commit contains the deletions, their entries in the audit log, the run's
// counts and its position. So the next worker that claims the task can continue an
// abandoned run from that position.
//
// Changed policies. A change of policies raises a version number and keeps the row with that
// number locked until it commits (package policies). A time slice reads the versions before it
// reads the policies; each deletion locks the versions and compares them. So a deletion either
// commits before the change of policies does, or finds another version and gives up. Before a
// worker deletes the task of a namespace without policies, it locks the task and looks once more
// for policies. A client that creates a policy meanwhile waits for this lock, and then creates
// the task again.
//
// Changed tags. Tags are judged in a snapshot, and locked and compared when they are
// deleted: the row's id, its manifest and its push time must be the same as in the
// snapshot. So a tag that was moved, pushed again, or deleted and created again since the
// snapshot is not deleted, and a tag that another transaction has locked is skipped. The
// newest N tags, which a number_of_tags policy keeps, are determined in the snapshot. If a
// client deletes one of these N later, the run doesn't count again: the result is as if the
// client had deleted it after the run. The same is true of the tags that fit into the bytes of a
// max_bytes policy. A tag that is used later than the snapshot stays in addition to them, since
// lookAgain asks for its last use.
//
// Used tags. A client's use of a tag may be in the memory of any process when the tag is judged.
// So before a batch of tags whose last use matters is deleted, lookAgain has all processes write
// the uses that they have answered (Options.Settle), then reads the state of the statistics, and
// then the uses, in this order. If a process doesn't write its uses, these tags stay. If a process
// has died with uses in memory, the statistics begin later than before, and the run begins anew
// with that. The transaction that deletes reads the uses once more after it has locked the
// repository (lastLook.drop), and gives up if lookAgain was too long ago. A use that comes still
// later is as if it had come after the deletion. See package pullstats for the proof that no use
// is overlooked.
//
// Mistyped policies. Before the first batch of tags that a policy deletes in a namespace, judgeFirst
// asks package warnings what the policy surely wasn't meant to do. It doesn't ask about policies of
// clients that know no confirmations, such as Quay's. If there is a warning that nobody has confirmed,
// judgeFirst stores that and gives up, and the policy waits from then on (rests.go). The row is written
// under the lock of the task, as by [Pruner.ConfirmRest]. The transaction that lets a policy rest, or
// ends that, queues the notice of it, so there is one for each change (rests_notice.go).
//
// Silent reporters. A policy may require reporters of what is deployed. Without them it waits: the time
// slice looks for them when it reads the policies, and stillReported looks again in each transaction
// that deletes, after it has the lock of deletions and by the time of the statement. So a lease that
// ends in between deletes nothing.
//
// Wrong clocks. A worker claims nothing while clocks disagree or are in doubt (Options.Clock). A
// repository's tags are judged at its snapshot's time; a snapshot whose time can't be right isn't
// judged, and the run goes on in a later time slice. So it doesn't matter when the clock is set.
//
// Deleted repositories. Each transaction that deletes tags first locks the repository's row
// against deletion, as a push does. If the row is gone, the worker goes on to the next
// repository.
//
// Attached tags. They are deleted after all other tags, when it is known which images have
// lost their tags. The transaction locks the image and the indexes above it, and then
// checks once more that no tag reaches the image; a client that tags a manifest or puts an
// index needs the same locks and waits. For an orphan, the transaction blocks pushes to the
// repository and looks for the missing image once more. An attached tag may itself be the
// image of further attached tags; these are deleted in another pass. If the process dies in
// this phase, the attached tags that are left become orphans once garbage collection has
// deleted the image.
//
// Time slices. A worker spends one time slice on a namespace before it takes the next
// namespace. It interrupts a repository only where that wastes little work: an evaluation
// is valid in one snapshot only and can't be kept for a later slice. Therefore the deletion
// after an evaluation goes on for at least as long as the evaluation took, even if the
// slice is over. An evaluation that takes longer than a slice pauses, and the worker prunes
// other namespaces in nested slices (share). An evaluation in a nested slice can't pause in
// the same way: the nested slice ends, and the repository is evaluated again in a slice of
// its own. The run counts a repository's tags with the first deletion in it, or when the
// run has finished the repository, so a second evaluation doesn't count them twice.
//
// Caps. The number of tags that a policy with a cap may delete in a run is determined after the
// count, and stored with the run. Tags that come later may let the policy select more. Therefore
// each transaction that deletes tags adds them to the number that the run has deleted by the
// policy, stores this number with the run, and rolls back if it is too great (deletedBy). The
// transaction also marks the approval that it uses with the run, so that no other run uses it.
// Only transactions that have locked the task change questions and approvals (autopruneasks).
//
// Undo restores tags whose names aren't in use, with their old creation and update times,
// and in the same transaction exempts them from the policies that deleted them. An
// exemption names the tag's new row and the policy's version. It ends when the row is deleted, when
// somebody ends it, and when the policy gets a rule that is newer than this version. Only a run that has ended can be
// undone, so no run deletes while it is being undone.
//
// Lock order. A transaction locks the task before settings, tags, review queues, the run and
// the questions of policies. While workers delete, they wait at most 200 ms for a lock, which
// is less than deadlock_timeout; so in a deadlock the worker fails and never the client. A
// transaction that deletes a namespace locks the namespace before the task. Therefore a
// worker's transaction that has locked the task must not need a lock on the namespace (see
// lockTask).
//
// # Decisions
//
// Pruning doesn't run at a fixed interval. A worker prunes one namespace after another as long as
// it finds tags to delete. After a namespace without such tags it sleeps for 99 times as long as
// looking at the namespace took, unless an unfinished run waits (Options.IdleShare). So any number
// of namespaces with nothing to do costs only one hundredth of a core. A task has a lease, and no
// transaction is open for as long as a namespace is pruned.
//
// Undo reads the audit log to learn which tags a run deleted. There is no other record of them.
//
// A push of the same manifest to the same tag counts as a push. So policies by age, which judge by
// the time of the push, don't delete a tag that is pushed every night.
package autoprune
