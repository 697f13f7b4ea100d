// Package testscale says how much a test does: little in "make test", which people wait for, and
// more with the build tag "all", with which "make test-all" runs at night. With this tag the
// tests of files that begin with //go:build all run too.
package testscale

import "flag"

// Pick returns quick, or with the build tag "all" the value all: a number of examples, of
// seeds, or the time that a storm takes.
func Pick[T any](quick, all T) T {
	if All {
		return all
	}
	return quick
}

// Properties sets how many examples rapid tries for each property: 30, or 1,000 with the build
// tag "all". A TestMain calls it; the flag -rapid.checks wins.
func Properties() {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if given {
		return
	}
	n := "30"
	if All {
		n = "1000"
	}
	if err := flag.Set("rapid.checks", n); err != nil {
		panic(err) // the package doesn't import rapid
	}
}
