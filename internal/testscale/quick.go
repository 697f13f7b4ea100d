//go:build !all

package testscale

// All says whether the tests are built with the tag "all".
const All = false
