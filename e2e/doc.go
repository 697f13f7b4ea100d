// Package e2e drives the real binary with real clients.
//
// Its tests build cmd/purser once (with the race detector when they have it),
// start it as a user does, and speak to it with crane, skopeo, podman, regctl,
// oras-go, containerd, Docker, a browser and plain HTTP. Each test has a registry and
// directories of its own, and uses only the command line and the network. A test whose
// program isn't installed is skipped; if CI is set it fails.
//
// PURSER_TEST_TARGET=HOST:PORT runs the clients' tests against another registry
// that speaks plain HTTP, to find out whether the client or Purser causes a result.
// PURSER_TEST_BINARY=PATH tests a purser that is built already.
// PURSER_TEST_SOAK=10m makes the soak test longer ("make soak"), and
// PURSER_TEST_SOAK_SEED repeats the random choices of an earlier run.
// The build tag e2e_all adds helm and cosign.
package e2e
