// Package oci implements the basic types of the OCI Distribution Specification:
// repository names, tags, digests, media types, manifests, request ranges and error
// codes.
//
// The package is pure: its functions depend only on their arguments, keep no state, and import
// no other package of Purser. Every value that it accepts is valid by the specification, so
// other packages don't check it again. All checks take time linear in their input. Checks of
// names and digests, which run for each request, allocate nothing if they succeed.
package oci
