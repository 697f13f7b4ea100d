//go:build !all

package e2e

// thorough says that this is the run of all tests. Some tests, which also run without the tag
// all, then go on for longer or use more clients.
const thorough = false
