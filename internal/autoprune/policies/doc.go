// Package policies stores the policies by which auto-pruning deletes tags, and says which of them apply
// in a repository now, and which of these wait.
//
// A [Store] lists, creates, changes and deletes policies of the registry, of a namespace and of a
// repository, and exceptions and exemptions from them. [Store.Load] reads the [Set] of a namespace:
// its policies, with all because of which they wait, such as grace periods, warnings that nobody has
// confirmed and reporters that are silent. [Set.Of] gives the rules by which package judge judges a
// repository.
//
// A change of policies first raises a version number and keeps the row with that number locked until
// it commits ([Store.Change]). The version of a namespace's policies is in the row of its task; the
// versions of the registry's defaults and of the protection rules are in the table settings. Package
// autoprune locks and compares the versions in each transaction that deletes tags. So once a change
// has been answered, nothing is deleted by the old policies.
//
// The default policy of the configuration is a row in the table of the registry's default policies.
// Each process writes the default policy of its own configuration into this row before it prunes for
// the first time ([Store.Configure]). Like a change of a policy, this raises the version number of the
// default policies and locks it. So if the configurations of processes differ, all processes use the
// default policy of the process that started last.
//
// If a policy is deleted, or keeps less than before, other policies may delete what it kept from them.
// These wait for the grace period (uncovered.go).
//
// A transaction that adds a policy locks its owner against deletion, first the namespace and then the
// repository, and then the namespace's task, as a transaction does that deletes a namespace. A policy
// that keeps untagged manifests holds once its client has the answer: the transaction ends only after
// the deletions that were under way (waitForReviews).
package policies
