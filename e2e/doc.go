// Package e2e tests the purser binary with the clients that users have.
//
// Its tests build cmd/purser once (with the race detector if "go test" has -race), start it as
// a user does, and send requests with crane, skopeo, podman, regctl, oras-go, containerd,
// Docker, a browser and plain HTTP. Each test has a registry and directories of its own, and
// uses only the command line and the network. If a program that a test needs isn't installed,
// the test is skipped, or fails if the environment variable CI is set.
//
// With PURSER_TEST_TARGET=HOST:PORT, the tests of clients run against another registry that
// speaks plain HTTP, to find out whether a client or Purser causes a result.
// PURSER_TEST_BINARY=PATH names a purser binary to test, which then isn't built.
// PURSER_TEST_SOAK=10m makes the soak test longer ("make soak"), and PURSER_TEST_SOAK_SEED
// repeats the random choices of an earlier run. The build tag e2e_all adds tests with helm, cosign
// and the API of a Kubernetes cluster. The tag ops adds upgrades, failovers, proxies and systemd ("make ops");
// PURSER_TEST_EARLIER_BINARY=PATH names the binary, such as that of a release, from which to upgrade.
package e2e
