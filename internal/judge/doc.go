// Package judge says which tags of a repository policies delete. It reads no database and changes
// nothing: package autoprune gives it the tags, and does what it says.
//
// [Combine] returns the policies that apply to a repository, and [Evaluate] judges the
// repository's tags by them. The rules of evaluation:
//
//   - Policies by age and by last use are applied first. Policies by number and by bytes
//     (max_bytes.go) count the tags that are then left, each by itself. A tag is deleted if any
//     policy selects it.
//   - A policy by number may count in groups, for each platform, and images instead of tags
//     (policy.Counting). A tag in no group stays, and so does one of which not all platforms are known. If
//     there are too many groups, such policies select nothing.
//   - A policy of the method untagged selects no tags (package autoprune).
//   - A policy that can't be judged never makes another policy delete more. If pull
//     statistics are missing, a last_pulled policy can't be judged; policies that count
//     then don't count the tags that it might select. If a policy can't be read, policies that
//     count select nothing, because the unreadable policy might have to select tags before
//     they count. If it isn't known whether a policy's selectors select a tag, the
//     policy doesn't select it; policies that count don't count it if the policy might take it
//     first; and if the policy has keep rules, nothing deletes it.
//   - A protected tag is never deleted, even if a policy selects it. Neither is a tag that a
//     keep rule or the least number of any of the policies keeps. These, a protection rule and
//     an undo only take tags away from those that are deleted: tags are counted so that none
//     of them makes a policy delete a tag that it would otherwise keep. A policy that can't be
//     read and may have keep rules stops all others.
//   - A policy with the mode off has no effect; one with the mode observe has none but its
//     keep rules and its least number. A policy that waits, such as outside its windows of time,
//     deletes nothing, but other policies select what they would select if it didn't wait. So
//     a policy that waits never makes another policy delete more.
//   - A tag is never deleted because statistics are missing. A last_pulled policy selects
//     nothing, and the verdict says why, unless pull statistics cover the policy's whole
//     age. A max_bytes policy selects nothing without statistics, and doesn't count tags of which
//     they don't know the last use.
//   - Signatures, SBOMs and attestations that are attached to an image of the repository
//     are never selected and never counted. An attached tag is deleted when its image loses
//     its last tag in the same run. An orphan is an attached tag whose image isn't in the
//     repository. It is judged like any other tag, unless a policy asks for the removal of
//     orphans.
//   - The verdict depends only on the set of tags, never on the order in which they are
//     read.
//
// Evaluation has no side effects. It reads the tags from a sequence that it can run a
// second time, so a large repository is read page by page and never held in memory as a
// whole. [Evaluate] says how much memory it needs.
package judge
