// Package snapshot reads a repository as data that policies judge: its tags, with their images,
// exemptions, last uses, types, labels and platforms, what manifests store, and which manifests
// nothing would need once some tags are gone. It changes nothing but what it remembers of
// configurations, and knows nothing of tasks, runs and deletions.
//
// [Read] opens a snapshot, a REPEATABLE READ transaction. A [TagReader] reads the tags from it,
// page by page, as [judge.Evaluate] wants them. The policies of a run, a preview, a forecast and a
// warning are thus judged by the same data. [Unused] and [Reader.UnusedBytes] find what garbage
// collection could delete once tags are gone.
//
// Previews and forecasts look at two repositories at once, each in a snapshot of its own, while no
// other preview needs the place ([InOrder]).
//
// Configurations of images. Labels and platforms are in blobs in the store. Before the snapshot
// of a repository is opened, [Reader.ReadConfigurations] reads those that a policy
// needs and that nobody has read yet, for a bounded time, and stores what they say in
// configurationattributes. No transaction is open while the store is read. A policy selects
// nothing of which a configuration is missing, and no other policy deletes more for that reason
// (doubt.go of package judge). What a configuration says never changes, so nothing is looked at
// again before tags are deleted. The transaction that stores rows locks blobs' rows FOR KEY SHARE
// and nothing else.
//
// A max_bytes policy needs to know what manifests store. The sizes are read in the same snapshot, from
// the most recently used tag on, up to where the policy's bytes are exceeded. So no more is read than
// what stays. The rows of layers have the sizes of their blobs, in the index by which a manifest's
// layers are found, so nothing is looked up by a digest.
package snapshot
