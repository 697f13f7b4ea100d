// Package quota measures the cost of a quota: pushes of small images to a namespace that has one
// beside pushes to a namespace without.
//
//	go build -o /tmp/purser ./cmd/purser
//	go run ./bench quota -purser /tmp/purser
//
// It starts a registry with the given program in a directory that it removes afterwards. The
// windows of both namespaces alternate. Linux only, for the CPU time.
package quota

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/purser-registry/purser/bench/instance"
	"github.com/purser-registry/purser/bench/meter"
)

type settings struct {
	out         io.Writer
	purser, dir string
	rounds      int
	connections []int
	window      time.Duration
}

// Run runs this scenario with the flags in args.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flag := flag.NewFlagSet("quota", flag.ContinueOnError)
	flag.SetOutput(stderr)
	s := settings{out: stdout}
	flag.StringVar(&s.purser, "purser", "", "the program purser")
	flag.StringVar(&s.dir, "dir", "", "directory for the registry; default the temporary directory")
	flag.IntVar(&s.rounds, "rounds", 9, "windows of each kind")
	flag.DurationVar(&s.window, "d", 3*time.Second, "time of one window")
	connections := flag.String("c", "1,16", "numbers of connections, comma-separated")
	if err := flag.Parse(args); err != nil {
		return err
	}
	for text := range strings.SplitSeq(*connections, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return fmt.Errorf("-c: %q is no number of connections", text)
		}
		s.connections = append(s.connections, n)
	}
	if s.purser == "" || s.window <= 0 || s.rounds < 1 {
		return errors.New("usage: quota -purser PROGRAM [flags]")
	}
	return instance.Run(ctx, s.purser, s.dir, s.run)
}

// kinds are the namespaces.
var kinds = []string{"free", "limited"}

func (s settings) run(ctx context.Context, r *instance.Registry) error {
	for _, namespace := range kinds {
		if err := r.Push(ctx, namespace+"/first", "v1", []byte(namespace)); err != nil {
			return err
		}
	}
	if _, err := r.Want(ctx, http.StatusCreated, "POST", "/api/v1/organization/limited/quota",
		[]byte(`{"limit_bytes": 1000000000000000, "limit_repositories": 1000000, "limit_tags": 1000000000}`)); err != nil {
		return err
	}
	for _, n := range s.connections {
		if err := s.compare(ctx, r, n); err != nil {
			return err
		}
	}
	return nil
}

// figures are the results of the windows of one namespace.
type figures struct {
	rate, cpu []float64 // images per second; µs of server and database per image
	took      meter.Latencies
}

func (s settings) compare(ctx context.Context, r *instance.Registry, n int) error {
	var found [2]figures
	for round := range s.rounds + 1 {
		for i := range kinds {
			j := (i + round) % 2 // each comes first in turn
			f := &found[j]
			if round == 0 {
				f = new(figures) // fills caches
			}
			if err := s.measure(ctx, r, kinds[j], n, f); err != nil {
				return err
			}
		}
	}
	ratios := make([]float64, s.rounds)
	for i := range ratios {
		ratios[i] = found[0].rate[i]/found[1].rate[i] - 1
	}
	slices.Sort(ratios)
	for i, f := range found {
		slices.Sort(f.took)
		slices.Sort(f.rate)
		slices.Sort(f.cpu)
		fmt.Fprintf(s.out, "%2d connections, %-8s %6.1f images/s (%.1f to %.1f), %.1f ms CPU, %s\n", n, kinds[i],
			f.rate[len(f.rate)/2], f.rate[0], f.rate[len(f.rate)-1], f.cpu[len(f.cpu)/2]/1e3, f.took)
	}
	fmt.Fprintf(s.out, "%2d connections: a push takes %+.1f%% longer with a quota (median of %d pairs of windows; quartiles %+.1f%% and %+.1f%%), CPU %+.1f%%\n",
		n, 100*ratios[len(ratios)/2], len(ratios), 100*ratios[len(ratios)/4], 100*ratios[len(ratios)*3/4],
		100*(found[1].cpu[len(found[1].cpu)/2]/found[0].cpu[len(found[0].cpu)/2]-1))
	return nil
}

// measure runs one window of pushes of images that no registry has seen.
func (s settings) measure(ctx context.Context, r *instance.Registry, namespace string, n int, f *figures) error {
	var number atomic.Int64
	before, begin := r.Meter.Now(false), time.Now()
	took, err := instance.Load(ctx, n, s.window, 0, func() error {
		var layers [3][]byte
		for i := range layers {
			layers[i] = make([]byte, 10<<10)
			rand.Read(layers[i]) //nolint:errcheck // it never fails
		}
		i := number.Add(1)
		return r.Push(ctx, fmt.Sprintf("%s/r%d", namespace, i%8), fmt.Sprintf("v%d-%d", begin.UnixNano(), i), layers[:]...)
	})
	elapsed, after := time.Since(begin), r.Meter.Now(false)
	if err != nil {
		return err
	}
	if !before.Known || !after.Known || len(took) == 0 {
		return errors.New("the CPU time of the registry is unknown")
	}
	f.rate = append(f.rate, float64(len(took))/elapsed.Seconds())
	f.cpu = append(f.cpu, float64((after.CPU()-before.CPU()).Microseconds())/float64(len(took)))
	f.took = append(f.took, took...)
	return nil
}
