// Package e2e drives the real binary with real clients.
//
// Its tests build cmd/purser once (with the race detector when they have it),
// start it as a user does, and speak to it with crane, skopeo, podman, regctl,
// oras-go, containerd, Docker, a browser and plain HTTP. What holds inside: each test has its own registry and
// its own directories; nothing is reached but through the command line and the
// network; a test that lacks a program skips, and fails when CI is set.
//
// PURSER_TEST_TARGET=HOST:PORT points the clients' tests at another registry
// that speaks plain HTTP, to tell what a client does from what Purser does.
// PURSER_TEST_BINARY=PATH tests a purser that is built already.
// PURSER_TEST_SOAK=10m makes the soak test longer ("make soak"), and
// PURSER_TEST_SOAK_SEED repeats what one did.
// The build tag e2e_all adds helm and cosign.
package e2e
