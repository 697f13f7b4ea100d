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
// repeats the random choices of an earlier run.
//
// "make test" runs the tests in files without the build tag all: each client and each capability
// once, in a few minutes. A test that belongs to them takes at most 20 s on an idle machine, and
// waits for what it expects, with a limit of a minute or more, so that it passes on a busy machine
// too. The tag all adds the other tests: further cases, kills again and again, the soak, helm, cosign
// and the API of a Kubernetes cluster; and the tests called TestOps of upgrades, failovers, proxies,
// systemd and the procedures of the documentation ("make ops").
// PURSER_TEST_EARLIER_BINARY=PATH names the binary, such as that of a release, from which they upgrade.
package e2e
