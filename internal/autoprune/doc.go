// Package autoprune decides which tags of a repository may go.
//
// [ParsePolicy] reads a policy, [oci.ParseTagPattern] the pattern of a protection rule,
// [Combine] says which policies apply to a repository, and [Evaluate] judges the
// repository's tags. What holds:
//
//   - A tag goes if any policy selects it; policies don't know of each other, so
//     one more policy never keeps a tag that went without it.
//   - A protected tag stays, whatever selects it.
//   - What is unknown is no reason: without pull statistics for the whole of its
//     age a last_pulled policy selects nothing, and the verdict says why.
//   - Signatures, SBOMs and attestations (companions) are never selected and never
//     counted. One goes when its image loses its last tag in the same run, or when
//     its image isn't in the repository.
//   - The verdict depends on the set of tags, never on their order.
//
// The package is pure: the tags come from a sequence that the caller can run
// again, so that a large repository is read page by page and never held in
// memory; [Evaluate] says what it keeps.
package autoprune
