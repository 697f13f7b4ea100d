// Package oci holds the vocabulary of the OCI Distribution Specification:
// repository names, tags, digests, media types, manifests, request ranges and
// error codes.
//
// The package is pure: it reads and writes nothing outside its arguments,
// keeps no state and imports no other package of Purser. What it accepts is
// valid by the specification, so the layers above never validate again. Every
// check runs in time linear in its input, and the checks of names and digests,
// which each request runs, allocate nothing when they succeed.
package oci
