// Package registries runs the same workloads side by side against any number of container
// registries. It prints, for each workload and registry, requests per second, latency, CPU
// time of server and database per request, and memory.
//
// It needs only a registry's URL and shares no code with Purser, so that all registries are
// measured in the same way. The registries take turns in each round of each workload, so that
// noise on the machine affects all alike. The program checks every answer, and marks table
// rows with errors. It reads CPU time and memory from /proc, for the whole process tree of a
// server on the same machine. README.md explains how to run it and what the figures mean.
package registries

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// Child serves the baselines if this process was started for that, that is, if the environment
// variable childEnv is set. It then returns true when standard input is closed. Otherwise it
// returns false at once.
func Child() (ok bool, err error) {
	dir, ok := os.LookupEnv(childEnv)
	if !ok {
		return false, nil
	}
	return true, serveBaselines(dir, os.Stdin, os.Stdout)
}

// options are the command line.
type options struct {
	selected      string
	conns         int
	duration      time.Duration
	rounds        int
	hot           int
	tagsN         int
	pushWorkers   int
	pushFlow      string
	layerMiB      int64
	layerEncoding string
	fill          int
	fillRepos     int
	fillWorkers   int
	settle        time.Duration
	quiet         time.Duration
	noise         float64
	many          int
	sync          bool
	baselines     bool
	dir           string
	json          string
	prefix        string
	timeout       time.Duration
	insecure      bool

	workloads []workload
	targets   []*target
}

const usageHead = `Usage: go run ./bench registries [flags] name=URL[,pid=PID[+PID]...][,after=PATH] ...

Measures the registries named, side by side. Give pid where the server isn't
found by its listening port (containers, a database that isn't its child).
After each window a POST is sent to the path given as after, for work that the
server would do later.

Workloads:
`

func (o *options) flags(fs *flag.FlagSet) {
	fs.StringVar(&o.selected, "w", strings.Join(workloadNames(true), ","), "workloads to run, comma-separated")
	fs.IntVar(&o.conns, "c", 16, "connections of the read workloads")
	fs.DurationVar(&o.duration, "d", 5*time.Second, "time of one window: one workload on one registry in one round")
	fs.IntVar(&o.rounds, "rounds", 3, "windows of each workload on each registry; registries take turns")
	fs.IntVar(&o.hot, "hot", 64, "number of images that the read workloads read in turn")
	fs.IntVar(&o.many, "many", 2000, "number of manifests that "+manyWorkload+" reads in turn")
	fs.IntVar(&o.tagsN, "tags-n", 0, "n parameter of tags-1000; 0 sends none")
	fs.IntVar(&o.pushWorkers, "push-workers", 8, "connections of small-images")
	fs.StringVar(&o.pushFlow, "push-flow", flowPostPatchPut, "how small blobs are sent: "+strings.Join(flows, ", "))
	fs.Int64Var(&o.layerMiB, "layer-mib", 1024, "size of the large layer in MiB")
	fs.StringVar(&o.layerEncoding, "layer-encoding", encodingChunked, "how the large layer is framed: chunked (as crane and docker) or length")
	fs.IntVar(&o.fill, "fill", 100_000, "manifests put before everything is measured again; 0: measure once")
	fs.IntVar(&o.fillRepos, "fill-repos", 100, "repositories that they are spread over")
	fs.IntVar(&o.fillWorkers, "fill-workers", 16, "connections that put them")
	fs.DurationVar(&o.settle, "settle", 5*time.Second, "rest after filling, for the server's background work")
	fs.DurationVar(&o.quiet, "quiet", 20*time.Second, "longest wait after a window until the server is quiet, whose CPU time counts; 0 doesn't wait")
	fs.Float64Var(&o.noise, "noise", 0.1, "share of the machine's CPU time that others may take in a window: above it, the window is measured again; 1 takes all")
	fs.BoolVar(&o.sync, "sync", true, "before each window, write what the system holds unwritten, so that no server pays for another's")
	fs.BoolVar(&o.baselines, "baselines", false, "measure the limits too: a bare net/http handler, http.ServeContent, hashing and writing")
	fs.StringVar(&o.dir, "dir", os.TempDir(), "directory of the baselines' files; for the registries' disk, name a directory there")
	fs.StringVar(&o.json, "json", "", "also write the results as JSON to this file; - prints them in place of the tables")
	fs.StringVar(&o.prefix, "prefix", "bench", "first part of the names of the repositories used")
	fs.DurationVar(&o.timeout, "timeout", 5*time.Minute, "limit of one request")
	fs.BoolVar(&o.insecure, "insecure", false, "don't verify certificates of https registries")
}

// parseOptions parses and checks the arguments of the command line. It prints the usage to w
// if they ask for it or are wrong.
func parseOptions(args []string, w io.Writer) (*options, error) {
	o := &options{}
	fs := flag.NewFlagSet("registries", flag.ContinueOnError)
	fs.SetOutput(w)
	o.flags(fs)
	fs.Usage = func() {
		fmt.Fprint(w, usageHead)
		for _, wl := range workloads {
			fmt.Fprintf(w, "  %-20s %s\n", wl.name, wl.about)
		}
		fmt.Fprint(w, "\nFlags:\n")
		fs.PrintDefaults()
	}
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	var err error
	if o.workloads, err = selectWorkloads(o.selected); err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, arg := range fs.Args() {
		t, err := parseTarget(arg, o.insecure)
		if err != nil {
			return nil, err
		}
		if names[t.name] {
			return nil, fmt.Errorf("two registries are named %q", t.name)
		}
		names[t.name] = true
		o.targets = append(o.targets, t)
	}
	return o, o.validate()
}

func (o *options) validate() error {
	positive := map[string]int64{
		"c": int64(o.conns), "d": int64(o.duration), "rounds": int64(o.rounds), "hot": int64(o.hot), "many": int64(o.many),
		"push-workers": int64(o.pushWorkers), "layer-mib": o.layerMiB, "fill-repos": int64(o.fillRepos),
		"fill-workers": int64(o.fillWorkers), "timeout": int64(o.timeout),
	}
	for name, v := range positive {
		if v <= 0 {
			return fmt.Errorf("-%s must be positive", name)
		}
	}
	switch {
	case len(o.targets) == 0:
		return errors.New("name at least one registry: name=URL, as in purser=http://127.0.0.1:5000; -h shows the flags")
	case o.fill < 0 || o.tagsN < 0 || o.settle < 0 || o.quiet < 0:
		return errors.New("-fill, -tags-n, -settle and -quiet must not be negative")
	case !(o.noise > 0 && o.noise <= 1):
		return errors.New("-noise must be above 0 and at most 1")
	case !slices.Contains(flows, o.pushFlow):
		return fmt.Errorf("-push-flow %q: want one of %s", o.pushFlow, strings.Join(flows, ", "))
	case o.layerEncoding != encodingChunked && o.layerEncoding != encodingLength:
		return fmt.Errorf("-layer-encoding %q: want %s or %s", o.layerEncoding, encodingChunked, encodingLength)
	}
	return nil
}
