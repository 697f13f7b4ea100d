package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
)

// plans has the steps of each kind of run.
var plans = map[string][]step{
	"fast": fast(false),
	"all":  all(),
	"lint": append(programs()[1:], lint()...),
	"unit": append(programs(), unit(false)...),
	"e2e":  append(programs(), endToEnd(false)),
	"ops":  slices.Concat(programs(), slowPrograms(), []step{operations()}),
}

// Every package of the modules that are tested together: the registry, its benchmarks, the end-to-end
// tests, the public package, what connects it to other libraries, and its tests with these.
var allPackages = []string{"./...", "./bench/...", "./e2e/...", "./loosefk/...", "./loosefk/contrib/...", "./loosefk/integrationtest/..."}

// fast is "make test": what runs before each change lands. Only "make test-all" asks that the
// tests keep to their budgets: the machine of a person may be busy.
func fast(budgeted bool) []step {
	return slices.Concat(programs(), lint(), unit(budgeted), []step{endToEnd(budgeted)})
}

// all is "make test-all": what runs at night. After the steps of "make test" it runs all tests
// with the race detector and with the build tag "all", which adds tests, examples and time.
func all() []step {
	return slices.Concat(
		fast(true),
		slowPrograms(),
		[]step{
			{name: "model of garbage collection", command: words("tools/model")},
			{name: "all of the packages with the race detector", tests: true, command: testAll},
			{name: "fuzzing", command: words("tools/fuzz", cmp.Or(os.Getenv("FUZZTIME"), "20s")), env: []string{"RACE=" + race()}},
			{name: "all end to end with the race detector", tests: true,
				command: words(goTest(race(), "-tags=all", "-timeout=120m", "./e2e")...)},
		})
}

// programs are the steps that bring what the tests of "make test" drive.
func programs() []step {
	return []step{
		{name: "programs of the system", command: words("tools/packages")},
		{name: "tools", command: words("tools/get", "versitygw", "pebble", "crane", "regctl", "analyzers", "oidcprovider", "image")},
	}
}

// slowPrograms are the steps that bring what only "make test-all" drives.
func slowPrograms() []step {
	return []step{
		{name: "programs of the system for operations", command: words("tools/packages", "ops")},
		{name: "tools that are slow to build", command: words("nice", "tools/get", "kubeapi", "oras", "helm", "cosign")},
	}
}

func unit(budgeted bool) []step {
	return []step{
		{name: "packages with the race detector", tests: true, budgeted: budgeted, command: testRaced},
		{name: "packages", tests: true, budgeted: budgeted, command: testOthers},
	}
}

func endToEnd(budgeted bool) step {
	return step{name: "end to end", tests: true, budgeted: budgeted, command: words(goTest("-timeout=20m", "./e2e")...)}
}

func operations() step {
	return step{name: "operations", tests: true, command: words(goTest(race(), "-tags=all", "-timeout=60m", "-run=^TestOps", "./e2e")...)}
}

// lint is gofmt and the analyzers. The analyzers read the tests of "make test-all" too.
func lint() []step {
	return []step{
		{name: "gofmt", command: words("bash", "-c", `files=$(gofmt -l .); [ -z "$files" ] || { echo "not formatted; run gofmt -w on:"; echo "$files"; exit 1; }`)},
		{name: "analyzers", command: words("bash", "-c", `exec "$(tools/get analyzers)" -tags all `+strings.Join(allPackages, " "))},
	}
}

func words(args ...string) func() ([]string, error) {
	return func() ([]string, error) { return args, nil }
}

// goTest returns a command that prints events. The analyzers have vetted the tests already. No
// result comes from Go's cache: a test that passed with other programs beside it may fail now.
func goTest(args ...string) []string {
	args = slices.DeleteFunc(args, func(s string) bool { return s == "" })
	return append([]string{"go", "test", "-json", "-vet=off", "-count=1"}, args...)
}

// race returns -race if the race detector can be built: it needs a C compiler.
func race() string {
	out, err := exec.Command("go", "env", "CGO_ENABLED", "CC").Output()
	enabled, compiler, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if err != nil || enabled != "1" {
		return ""
	}
	if _, err := exec.LookPath(compiler); err != nil {
		return ""
	}
	return "-race"
}

// sideBySide and aloneSideBySide let more tests of a package run beside each other than there are
// cores, since many wait for the disk or the database. Where packages run beside each other, half as
// many of each do, as when one runs alone. Alone, with 4 for each core instead of 1, the tests of
// internal/server/distribution take half of the time. The end-to-end tests, each of which starts
// programs, don't get faster by that.
//
// On machines with more cores it is 8, or what Go takes, a test for each core: a package's PostgreSQL has
// connections for so many.
var (
	sideBySide      = parallel(2)
	aloneSideBySide = parallel(4)
)

func parallel(perCore int) string {
	cores := runtime.NumCPU()
	return fmt.Sprint("-parallel=", max(cores, min(perCore*cores, 8)))
}

func testRaced() ([]string, error) {
	raced, _, err := split()
	return goTest(append([]string{race(), sideBySide, "-timeout=15m"}, raced...)...), err
}

func testOthers() ([]string, error) {
	_, others, err := split()
	return goTest(append([]string{sideBySide, "-timeout=15m"}, others...)...), err
}

func testAll() ([]string, error) {
	raced, others, err := split()
	return goTest(slices.Concat([]string{race(), sideBySide, "-tags=all", "-timeout=60m"}, raced, others)...), err
}

// raceFile lists the packages that "make test" tests with the race detector, the slowest first:
// a package that begins last would keep one core waiting.
const raceFile = "tools/race"

// slowOthers are the slowest packages that are tested without the race detector. They begin
// first, for the same reason.
var slowOthers = []string{"cmd/purser", "internal/server/management", "internal/server/login", "internal/server"}

// split returns the packages that are tested with the race detector, in the order of the file,
// and those that are tested without it, in the order of slowOthers and then of their names.
func split() (raced, others []string, err error) {
	out, err := exec.Command("go", append([]string{"list"}, allPackages...)...).Output()
	if err != nil {
		return nil, nil, fmt.Errorf("listing the packages: %w", err)
	}
	file, err := os.Open(raceFile)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	list := strings.Fields(string(out))
	var unknown []error
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		path, _, _ := strings.Cut(lines.Text(), "#")
		if path = strings.TrimSpace(path); path == "" {
			continue
		}
		i := slices.IndexFunc(list, func(p string) bool { return strings.HasSuffix(p, "/purser/"+path) })
		if i < 0 {
			unknown = append(unknown, fmt.Errorf("%s: there is no package %s", raceFile, path))
			continue
		}
		raced, list = append(raced, list[i]), slices.Delete(list, i, i+1)
	}
	list = slices.DeleteFunc(list, func(p string) bool { return strings.HasSuffix(p, "/purser/e2e") })
	slices.SortStableFunc(list, func(a, b string) int { return cmp.Compare(place(a), place(b)) })
	return raced, list, errors.Join(append(unknown, lines.Err())...)
}

// place returns the index of a package in slowOthers, or the number of these if it isn't there.
func place(pkg string) int {
	i := slices.IndexFunc(slowOthers, func(path string) bool { return strings.HasSuffix(pkg, "/purser/"+path) })
	if i < 0 {
		return len(slowOthers)
	}
	return i
}
