//go:build all

package e2e

// thorough: see fast_test.go.
const thorough = true
