// Package oci implements the basic types of the OCI Distribution Specification:
// repository names, tags, digests, media types, manifests, request ranges and error
// codes.
//
// Package oci is pure: its functions depend only on their arguments and keep no state, and it
// imports no other package of Purser. Every value that it accepts is valid by the
// specification, so other packages don't check the value again. All checks take time linear in
// their input. Checks of names and digests, which run for each request, allocate nothing if
// they succeed.
//
// Patterns of tags are in this package, since policies (package autoprune) and protection rules
// (package catalog) both use them.
//
// Two parsers of Purser read JSON strictly, and differ in what they do with a member that they
// don't know. The parser of manifests, in this package, skips such members at any depth without
// recursion, since a manifest may have them. The parser of policies, in package autoprune, refuses
// the policy, and says which members there are.
package oci
