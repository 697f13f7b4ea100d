// Package oci implements the basic types of the OCI Distribution Specification:
// repository names, tags, digests, media types, manifests, request ranges and error
// codes.
//
// Package oci is pure: its functions depend only on their arguments and keep no state, and it
// imports no other package of Purser. Every value that it accepts is valid by the
// specification, so other packages don't check the value again. All checks take time linear in
// their input. Checks of names and digests, which run for each request, allocate nothing if
// they succeed.
package oci
