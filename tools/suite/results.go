package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// event is one line of "go test -json"; see "go doc test2json".
type event struct {
	Action      string
	Package     string
	ImportPath  string // of "build-output" and "build-fail"
	FailedBuild string
	Test        string
	Elapsed     float64
	Output      string
}

// name says which test of which package in which step.
type name struct{ step, pkg, test string }

// outcome is a test, or with test "" the package, that has ended.
type outcome struct {
	name
	seconds float64
	again   string // the command that runs it alone
	output  string // of a failure: the last lines
}

// results has the tests of all steps.
type results struct {
	passed, failed, skipped int // tests without their subtests
	times                   []outcome
	failures                []outcome
	running                 map[name]bool
	output                  map[name]*strings.Builder
	builds                  map[string]*strings.Builder // what compilers said, by import path
	reported                map[name]bool               // a package with a failing test of its own
	subtests                map[name]float64            // seconds of the subtests that have ended
	skips                   map[string]int              // how many tests gave a reason
}

func newResults() *results {
	return &results{running: map[name]bool{}, output: map[name]*strings.Builder{},
		builds: map[string]*strings.Builder{}, reported: map[name]bool{}, subtests: map[name]float64{}, skips: map[string]int{}}
}

// read reads the events of the command args and prints a line for each package.
func (r *results) read(events io.Reader, s step, args []string) error {
	in := bufio.NewReader(events)
	for {
		text, err := in.ReadBytes('\n')
		if len(text) > 0 {
			var e event
			if json.Unmarshal(text, &e) != nil {
				fmt.Printf("%s", text) // not from test2json
			} else {
				r.take(e, s, args)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *results) take(e event, s step, args []string) {
	n := name{s.name, e.Package, e.Test}
	switch e.Action {
	case "build-output":
		appendTo(r.builds, e.ImportPath, e.Output)
	case "start", "run":
		r.running[n] = true
	case "output":
		appendTo(r.output, n, e.Output)
	case "pass", "fail", "skip":
		r.end(e, n, args)
		delete(r.running, n)
		delete(r.output, n)
	}
}

func appendTo[K comparable](m map[K]*strings.Builder, key K, text string) {
	if m[key] == nil {
		m[key] = &strings.Builder{}
	}
	m[key].WriteString(text)
}

// end takes the end of a test or of a package.
func (r *results) end(e event, n name, args []string) {
	o := outcome{name: n, seconds: e.Elapsed, again: alone(args, n)}
	if text := r.output[n]; text != nil {
		o.output = text.String()
	}
	if n.test == "" {
		r.endPackage(e, o)
		return
	}
	if e.Action == "fail" {
		r.reported[name{n.step, n.pkg, ""}] = true
		r.failures = append(r.failures, o)
		fmt.Printf("--- FAIL: %s %s (%.1f s)\n%s", n.pkg, n.test, o.seconds, indent(excerpt(o.output, failureLines)))
	}
	r.add(n, o.seconds)
	if strings.Contains(n.test, "/") {
		return
	}
	o.seconds = max(o.seconds, r.subtests[n])
	delete(r.subtests, n)
	r.times = append(r.times, o)
	switch e.Action {
	case "pass":
		r.passed++
	case "fail":
		r.failed++
	case "skip":
		r.skipped++
		r.addSkip(n.test, o.output)
	}
}

// add adds the time of a subtest to that of the test around it, which ends later. The time that
// Go tells of a test lacks its parallel subtests.
func (r *results) add(n name, seconds float64) {
	i := strings.LastIndex(n.test, "/")
	if i < 0 {
		return
	}
	around := name{n.step, n.pkg, n.test[:i]}
	r.subtests[around] += max(seconds, r.subtests[n])
	delete(r.subtests, n)
}

// addSkip counts a skipped test under the reason that it gave: many need the same program.
func (r *results) addSkip(test, output string) {
	reason := test + " gave no reason"
	for line := range strings.Lines(output) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "===") && !strings.HasPrefix(line, "---") {
			reason = sourcePlace.ReplaceAllString(line, "")
		}
	}
	r.skips[reason]++
}

// sourcePlace matches the file and line that stand before what a test logs.
var sourcePlace = regexp.MustCompile(`^[\w.-]+\.go:\d+: `)

func (r *results) endPackage(e event, o outcome) {
	if e.Action == "skip" || strings.Contains(o.output, "[no test files]") {
		return
	}
	fmt.Printf("%-6s %s %.1f s\n", map[string]string{"pass": "ok", "fail": "FAIL"}[e.Action], o.pkg, o.seconds)
	r.times = append(r.times, o)
	running := r.runningIn(o.name)
	if e.Action != "fail" || r.reported[o.name] && len(running) == 0 && !outsideTests.MatchString(o.output) {
		return
	}
	if text := r.builds[e.FailedBuild]; text != nil {
		o.output = text.String() + o.output
	}
	// A test that was running when the process ended has no end of its own.
	for _, n := range running {
		o.output += "while running " + n.test + ":\n"
		if text := r.output[n]; text != nil {
			o.output += text.String()
		}
		delete(r.running, n)
	}
	r.failures = append(r.failures, o)
	r.failed++
	fmt.Printf("--- FAIL: %s\n%s", o.pkg, indent(excerpt(o.output, failureLines)))
}

// outsideTests matches what a package says that failed although the failure is no test's:
// goroutines that are left, a race at the end.
var outsideTests = regexp.MustCompile(`DATA RACE|goleak|found unexpected goroutines|panic:`)

// runningIn returns the tests of a package that have begun and not ended.
func (r *results) runningIn(pkg name) (list []name) {
	for n := range r.running {
		if n.step == pkg.step && n.pkg == pkg.pkg && n.test != "" {
			list = append(list, n)
		}
	}
	slices.SortFunc(list, func(a, b name) int { return strings.Compare(a.test, b.test) })
	return list
}

// alone returns the command that runs one test, or one package, as args ran it.
func alone(args []string, n name) string {
	words := []string{"go", "test"}
	for _, flag := range args[2:] {
		switch {
		case !strings.HasPrefix(flag, "-"), flag == "-json", strings.HasPrefix(flag, "-p="), strings.HasPrefix(flag, "-run="):
		case flag == sideBySide:
			words = append(words, aloneSideBySide)
		default:
			words = append(words, flag)
		}
	}
	if n.test != "" {
		var parts []string
		for part := range strings.SplitSeq(n.test, "/") {
			parts = append(parts, "^"+regexp.QuoteMeta(part)+"$")
		}
		words = append(words, "-run='"+strings.Join(parts, "/")+"'")
	}
	return strings.Join(append(words, n.pkg), " ")
}

// excerpt returns a text, without its middle if it has more than n lines: a test may say first what is
// wrong and then what a program that it drove has logged, or the other way round.
func excerpt(text string, n int) string {
	lines := strings.SplitAfter(strings.TrimRight(text, "\n")+"\n", "\n")
	lines = slices.DeleteFunc(lines, func(s string) bool { return s == "" })
	if len(lines) > n {
		out := fmt.Sprintf("[%d lines left out]\n", len(lines)-n)
		lines = slices.Concat(lines[:n/2], []string{out}, lines[len(lines)-n+n/2:])
	}
	return strings.Join(lines, "")
}

func indent(text string) string {
	if text == "" || text == "\n" {
		return ""
	}
	return "    " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n    ") + "\n"
}
