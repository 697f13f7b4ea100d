// Package holds measures reports of what is deployed: how long a report of many digests takes,
// and how long pulls take beside reports.
//
//	go build -o /tmp/purser ./cmd/purser
//	go run ./bench holds -purser /tmp/purser
//
// It starts a registry with the given program in a directory that it removes afterwards. Windows
// of pulls alone and of pulls beside reports alternate.
package holds

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/purser-registry/purser/bench/instance"
	"github.com/purser-registry/purser/bench/meter"
)

type settings struct {
	out          io.Writer
	purser, dir  string
	digests      int
	images       int // how many of the digests the registry has
	rounds, conn int
	window       time.Duration
}

// Run runs this scenario with the flags in args.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flag := flag.NewFlagSet("holds", flag.ContinueOnError)
	flag.SetOutput(stderr)
	s := settings{out: stdout}
	flag.StringVar(&s.purser, "purser", "", "the program purser")
	flag.StringVar(&s.dir, "dir", "", "directory for the registry; default the temporary directory")
	flag.IntVar(&s.digests, "digests", 100_000, "digests of a report")
	flag.IntVar(&s.images, "images", 500, "how many of them the registry has")
	flag.IntVar(&s.rounds, "rounds", 5, "windows of each kind")
	flag.DurationVar(&s.window, "d", 3*time.Second, "time of one window, after which it ends with the report that is under way")
	flag.IntVar(&s.conn, "c", 6, "connections that pull, each 50 times a second")
	if err := flag.Parse(args); err != nil {
		return err
	}
	if s.purser == "" || s.window <= 0 || s.rounds < 1 || s.conn < 1 || s.digests <= s.images || s.images < 0 {
		return errors.New("usage: holds -purser PROGRAM [flags]; more digests than images")
	}
	return instance.Run(ctx, s.purser, s.dir, s.run)
}

func (s settings) run(ctx context.Context, r *instance.Registry) error {
	list, err := s.push(ctx, r)
	if err != nil {
		return err
	}
	const pull = "/v2/bench/image/manifests/v0"
	once := func() error {
		_, err := r.Want(ctx, http.StatusOK, "GET", pull, nil)
		return err
	}
	var alone, beside, first, renewing meter.Latencies
	for round := range s.rounds {
		took, err := instance.Load(ctx, s.conn, s.window, 20*time.Millisecond, once)
		if err != nil {
			return err
		}
		alone = append(alone, took...)
		reports := make(chan error, 1)
		go func() {
			reports <- s.reports(ctx, r, fmt.Sprint("cluster-", round), list, &first, &renewing)
		}()
		for busy := true; busy; {
			if took, err = instance.Load(ctx, s.conn, s.window/4, 20*time.Millisecond, once); err != nil {
				return err
			}
			beside = append(beside, took...)
			select {
			case err := <-reports:
				if err != nil {
					return err
				}
				busy = false
			default:
			}
		}
	}
	for _, l := range []meter.Latencies{alone, beside, first, renewing} {
		slices.Sort(l)
	}
	fmt.Fprintf(s.out, "report of %d digests, of which the registry has %d: first %s (%s to %s), renewing %s (%s to %s; %d reports)\n", s.digests, s.images,
		first.At(50), first.At(0), first.At(100), renewing.At(50), renewing.At(0), renewing.At(100), len(renewing))
	fmt.Fprintln(s.out, "pulls alone:         ", alone)
	fmt.Fprintln(s.out, "pulls beside reports:", beside)
	fmt.Fprintf(s.out, "p99 beside is %.2f of that alone\n", beside.Ratio(alone, 99))
	return nil
}

// push pushes the images and returns a report of all digests.
func (s settings) push(ctx context.Context, r *instance.Registry) ([]byte, error) {
	var list bytes.Buffer
	encode := json.NewEncoder(&list)
	for i := range s.images {
		if err := r.Push(ctx, "bench/image", fmt.Sprint("v", i), fmt.Append(nil, "layer ", i)); err != nil {
			return nil, err
		}
	}
	content, err := r.Want(ctx, http.StatusOK, "GET", fmt.Sprintf("/api/v1/repository/bench/image/tag/?limit=%d", max(s.images, 1)), nil)
	if err != nil {
		return nil, err
	}
	var tags struct {
		Tags []struct {
			Digest string `json:"manifest_digest"`
		}
	}
	if err := json.Unmarshal(content, &tags); err != nil {
		return nil, err
	}
	if len(tags.Tags) > s.images {
		return nil, fmt.Errorf("the registry has %d tags and not %d", len(tags.Tags), s.images)
	}
	for i := range s.digests {
		digest := instance.Digest(fmt.Append(nil, "not in the registry ", i))
		if i < len(tags.Tags) {
			digest = tags.Tags[i].Digest
		}
		if err := encode.Encode(map[string]string{"digest": digest, "used_by": fmt.Sprint("shop/deployment/app-", i/3)}); err != nil {
			return nil, err
		}
	}
	return list.Bytes(), nil
}

// reports sends the report of a new reporter, and then the same again for the time of a window.
func (s settings) reports(ctx context.Context, r *instance.Registry, reporter string, list []byte, first, renewing *meter.Latencies) error {
	to := first
	for begin := time.Now(); to == first || time.Since(begin) < s.window; to = renewing {
		sent := time.Now()
		status, content, err := r.SendAs(ctx, "application/x-ndjson", "PUT", "/api/v1/holds/"+reporter, list, r.Basic)
		if err != nil || status != http.StatusOK {
			return fmt.Errorf("a report: status %d, %.300s, %w", status, content, err)
		}
		*to = append(*to, time.Since(sent))
	}
	return nil
}
