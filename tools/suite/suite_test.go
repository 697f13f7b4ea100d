package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A run has tests that fail in all the ways that the tests of this project may. The report must
// end with each failure, its message and the command that runs it alone.
func TestReportEndsWithFailures(t *testing.T) {
	r := &run{ctx: t.Context(), results: newResults()}
	module := writeModule(t, map[string]string{
		"good/a_test.go":   `func TestGood(t *testing.T) {}; func TestSkipped(t *testing.T) { t.Skip("needs a moon") }; func TestToo(t *testing.T) { t.Skip("needs a moon") }`,
		"bad/a_test.go":    `func TestBad(t *testing.T) { t.Run("case one", func(t *testing.T) { t.Error("want 1, got 2") }) }`,
		"panic/a_test.go":  `func TestBefore(t *testing.T) {}; func TestPanics(t *testing.T) { var m map[int]int; m[1] = 1 }`,
		"main/a_test.go":   `func TestMain(m *testing.M) { m.Run(); println("goroutines are left"); os.Exit(1) }; func TestFine(t *testing.T) {}`,
		"killed/a_test.go": `func TestBad(t *testing.T) { t.Error("want 3, got 4") }; func TestKilled(t *testing.T) { p, _ := os.FindProcess(os.Getpid()); p.Kill(); select {} }`,
		"broken/a_test.go": `func TestBroken(t *testing.T) { var unused int }`,
	})
	t.Chdir(module)
	r.step(step{name: "tests", tests: true, command: words(goTest("-timeout=1m", "./...")...)})
	r.step(step{name: "a command", command: words("false")})
	r.step(step{name: "another", command: words("true")})
	var out bytes.Buffer
	if code := r.report(&out); code != 1 {
		t.Errorf("exit code %d", code)
	}
	_, end, ok := strings.Cut(out.String(), "passed, ")
	if !ok {
		t.Fatalf("no line of the numbers: %s", out.String())
	}
	for _, want := range []string{
		"  skipped 2: needs a moon\n",
		"FAIL example.com/m/bad TestBad/case_one\n", "want 1, got 2", "go test -vet=off -count=1 -timeout=1m -run='^TestBad$/^case_one$' example.com/m/bad",
		"FAIL example.com/m/panic TestPanics\n", "assignment to entry in nil map",
		"FAIL example.com/m/killed TestBad\n", "FAIL example.com/m/killed \n", "while running TestKilled:\n",
		"FAIL example.com/m/main \n", "goroutines are left", "run it alone: go test -vet=off -count=1 -timeout=1m example.com/m/main\n",
		"FAIL example.com/m/broken \n", "declared and not used: unused",
		"failed: tests, a command\n",
	} {
		if !strings.Contains(end, want) {
			t.Errorf("the end of the report lacks %q", want)
		}
	}
	for _, steps := range []string{"a command  FAILED", "another\n"} {
		if !strings.Contains(out.String(), steps) {
			t.Errorf("the steps lack %q", steps)
		}
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

// A test that is slow only because others run beside it is within its budget when it runs alone.
func TestOverBudgetIsMeasuredAlone(t *testing.T) {
	t.Chdir(writeModule(t, map[string]string{"a_test.go": `func TestQuick(t *testing.T) {}`}))
	pretend := func(pkg string) error {
		r := &run{ctx: t.Context(), results: newResults()}
		n := name{"tests", pkg, "TestQuick"}
		r.results.times = []outcome{{name: n, seconds: testBudget + 1, again: alone(goTest("-timeout=1m", "."), n)}}
		return r.measureAgain(step{name: "tests", tests: true, budgeted: true})
	}
	if err := pretend("example.com/m"); err != nil {
		t.Errorf("a quick test is over its budget: %v", err)
	}
	if err := pretend("example.com/m/missing"); err == nil || !strings.Contains(err.Error(), "TestQuick") {
		t.Errorf("a test that can't be measured again: %v", err)
	}
}

// The time of a test that is measured alone is what passes on the clock while its subtests run
// side by side, and that is compared with its budget.
func TestBudgetIsOfTheClock(t *testing.T) {
	t.Parallel()
	for seconds, over := range map[float64]bool{testBudget - 1: false, testBudget + 1: true} {
		now := []outcome{
			{name: name{"tests", "p", "TestA"}, seconds: 3 * testBudget},
			{name: name{"tests", "p", ""}, seconds: seconds},
		}
		if got := overAlone(outcome{name: now[0].name}, now, 1); (got > 0) != over {
			t.Errorf("%.0f s on the clock: %v", seconds, got)
		}
		if got := overAlone(outcome{name: now[0].name}, now, 1.5); got > 0 {
			t.Errorf("%.0f s on the clock of a slow machine: %v", seconds, got)
		}
		if got := overAlone(outcome{name: now[0].name}, []outcome{{name: now[1].name, seconds: 2 * seconds}}, 1.5); got == 0 {
			t.Errorf("%.0f s on the clock of a slow machine keep to the budget", 2*seconds)
		}
	}
}

// The report lists the thirty slowest tests, the slowest first, and no package among them.
func TestSlowestAreListed(t *testing.T) {
	t.Parallel()
	r := &run{ctx: t.Context(), results: newResults()}
	for i := range 2 * slowest {
		seconds := float64((i*37)%(2*slowest)) + 0.5 // each once, in no order
		r.results.times = append(r.results.times, outcome{name: name{"tests", "p", fmt.Sprintf("Test%.1f", seconds)}, seconds: seconds})
	}
	r.results.times = append(r.results.times, outcome{name: name{"tests", "p", ""}, seconds: 1000})
	var out bytes.Buffer
	r.reportTimes(&out)
	_, list, _ := strings.Cut(out.String(), "\nThe 30 slowest tests, in seconds:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	var want strings.Builder
	for i := range slowest {
		seconds := float64(2*slowest-1-i) + 0.5
		fmt.Fprintf(&want, "%7.1f  p Test%.1f\n", seconds, seconds)
	}
	if list+"\n" != want.String() {
		t.Errorf("the report is\n%s\nwant the list\n%s", out.String(), want.String())
	}
}

// "make test-all" runs what "make test" runs, within budgets, and then all packages and all end-to-end
// tests with the tag "all" and the race detector, the fuzz functions and the model.
func TestPlanOfAll(t *testing.T) {
	t.Chdir("../..")
	t.Setenv("FUZZTIME", "")
	night, quick := all(), fast(false)
	for i, s := range quick {
		if i >= len(night) || night[i].name != s.name || fmt.Sprint(arguments(t, night[i])) != fmt.Sprint(arguments(t, s)) {
			t.Fatalf("step %d of \"make test-all\" isn't that of \"make test\", %q", i, s.name)
		}
		if night[i].budgeted != s.tests || s.budgeted {
			t.Errorf("%s: budgeted %v at night and %v before, want %v and false", s.name, night[i].budgeted, s.budgeted, s.tests)
		}
	}
	more := map[string][]string{}
	for _, s := range night[len(quick):] {
		more[s.name] = arguments(t, s)
	}
	for name, want := range map[string][]string{
		"model of garbage collection":                {"tools/model"},
		"all of the packages with the race detector": {"go", "test", "-tags=all"},
		"fuzzing":                               {"tools/fuzz", "20s"},
		"all end to end with the race detector": {"go", "test", "-tags=all", "./e2e"},
	} {
		args := more[name]
		if strings.Contains(name, "race detector") && race() != "" {
			want = append(want, "-race")
		}
		for _, w := range want {
			if !slices.Contains(args, w) {
				t.Errorf("the step %q is %v, which lacks %s", name, args, w)
			}
		}
		if i := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "-run") || a == "-short" }); i >= 0 {
			t.Errorf("the step %q leaves out tests: %s", name, args[i])
		}
	}
	out, err := exec.Command("go", append([]string{"list"}, allPackages...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	both := slices.Concat(arguments(t, unit(false)[0]), arguments(t, unit(false)[1]))
	for _, pkg := range strings.Fields(string(out)) {
		if strings.HasSuffix(pkg, "/purser/e2e") {
			continue // a step of its own
		}
		if !slices.Contains(more["all of the packages with the race detector"], pkg) || !slices.Contains(both, pkg) {
			t.Errorf("the tests of %s aren't run", pkg)
		}
	}
}

// arguments returns the command of a step.
func arguments(t *testing.T, s step) []string {
	t.Helper()
	args, err := s.command()
	if err != nil {
		t.Fatalf("%s: %v", s.name, err)
	}
	return args
}

// A test's time includes that of its parallel subtests, at any depth.
func TestTimesIncludeSubtests(t *testing.T) {
	t.Parallel()
	r := newResults()
	var events strings.Builder
	for _, line := range []string{"TestA/x/1 3", "TestA/x/2 4", "TestA/x 0.5", "TestA/y 2", "TestA 1", "TestB/x 1", "TestB 5"} {
		test, seconds, _ := strings.Cut(line, " ")
		fmt.Fprintf(&events, "{\"Action\":\"pass\",\"Package\":\"p\",\"Test\":%q,\"Elapsed\":%s}\n", test, seconds)
	}
	if err := r.read(strings.NewReader(events.String()), step{name: "tests"}, goTest()); err != nil {
		t.Fatal(err)
	}
	if len(r.times) != 2 || r.times[0].seconds != 9 || r.times[1].seconds != 5 || len(r.subtests) > 0 {
		t.Errorf("%+v, %v", r.times, r.subtests)
	}
}

// The report repeats the first and the last lines of a failing test, and leaves the middle out.
func TestExcerpt(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"1\n2\n3\n4": "1\n2\n3\n4\n", "1\n2\n3\n4\n5\n6\n": "1\n2\n[2 lines left out]\n5\n6\n", "1": "1\n",
	} {
		if got := excerpt(text, 4); got != want {
			t.Errorf("of %q remains %q, not %q", text, got, want)
		}
	}
}

// After an interruption no further step runs, and the report says so.
func TestInterruptedRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r := &run{ctx: ctx, results: newResults()}
	r.results.running[name{"tests", "example.com/m", "TestSlow"}] = true
	cancel()
	r.step(step{name: "late", command: func() ([]string, error) { return nil, errors.New("it ran") }})
	var out bytes.Buffer
	if code := r.report(&out); code != 130 || !strings.Contains(out.String(), "example.com/m TestSlow") || len(r.steps) > 0 {
		t.Errorf("exit code %d, %d steps: %s", code, len(r.steps), out.String())
	}
}

// writeModule writes a module with one test file in each package.
func writeModule(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	write := func(path, text string) {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module example.com/m\ngo 1.26\n")
	for path, text := range files {
		imports := `import "testing"`
		if strings.Contains(text, "os.") {
			imports = "import (\"os\"; \"testing\")"
		}
		write(path, "package p\n"+imports+"\n"+text+"\n")
	}
	return dir
}
