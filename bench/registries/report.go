package registries

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/purser-registry/purser/bench/meter"
)

// result is one row of a table: the figures of one workload on one target, over all rounds.
type result struct {
	State       string       `json:"state"` // "empty" or "filled"
	Workload    string       `json:"workload"`
	Registry    string       `json:"registry"`
	Baseline    bool         `json:"baseline,omitempty"`
	Operations  int          `json:"operations"`
	Errors      int          `json:"errors"`
	Messages    []string     `json:"messages,omitempty"` // the first errors
	Seconds     float64      `json:"seconds"`
	PerSecond   float64      `json:"per_second"` // of all windows together
	Rates       meter.Spread `json:"per_second_of_windows"`
	P50         float64      `json:"p50_ms"`
	P99         float64      `json:"p99_ms"`
	MBPerSecond float64      `json:"mb_per_second,omitempty"` // 10^6 bytes
	Connections int          `json:"connections"`             // made by the load generator

	// These are CPU times in µs per operation; failed operations count as operations.
	// ServerCPU and DatabaseCPU are null if they aren't known.
	ServerCPU   *float64     `json:"server_cpu_us"`
	DatabaseCPU *float64     `json:"database_cpu_us"`
	BothCPU     meter.Spread `json:"cpu_us_of_windows"` // server and database together
	DeferredCPU float64      `json:"deferred_cpu_us"`   // of both, used after the window's end
	ClientCPU   float64      `json:"client_cpu_us"`     // of the load generator

	// Foreign is the share, from 0 to 1, of the machine's CPU time that other processes took
	// during the windows, and Stolen the share that other virtual machines took.
	Foreign float64 `json:"foreign"`
	Stolen  float64 `json:"stolen"`
	Dropped int     `json:"dropped_windows"` // windows that were measured again, since others took too much
	Noisy   int     `json:"noisy_windows"`   // windows with too much noise that were kept nevertheless

	PSSPeak int64 `json:"pss_peak_bytes,omitempty"`
	RSSPeak int64 `json:"rss_peak_bytes,omitempty"`

	// These are the rate and the CPU time of this result, divided by those of the baseline for
	// the same workload and state.
	RateOfBaseline float64 `json:"rate_of_baseline,omitempty"`
	CPUOfBaseline  float64 `json:"cpu_of_baseline,omitempty"`
}

// newResult computes a row's figures from w, the sum of all windows of a workload on one
// registry, and sorts w.latencies. `bytes` is the size of the content that one operation
// transfers. If it is 0, the column MB/s stays empty.
func newResult(state, workload, registry string, w window, bytes int64) result {
	slices.Sort(w.latencies)
	r := result{
		State: state, Workload: workload, Registry: registry,
		Operations: len(w.latencies), Errors: w.errors, Messages: w.messages,
		Seconds:     w.elapsed.Seconds(),
		P50:         milliseconds(meter.Percentile(w.latencies, 50)),
		P99:         milliseconds(meter.Percentile(w.latencies, 99)),
		Connections: w.dials,
		PSSPeak:     w.usage.PSS, RSSPeak: w.usage.RSS,
	}
	if w.elapsed > 0 {
		r.PerSecond = float64(r.Operations) / r.Seconds
		r.MBPerSecond = r.PerSecond * float64(bytes) / 1e6
	}
	all := r.Operations + r.Errors
	if all == 0 {
		return r
	}
	each := func(d time.Duration) float64 { return float64(d) / 1e3 / float64(all) }
	r.ClientCPU = each(w.client)
	r.Foreign, r.Stolen = w.others.Share(w.others.Busy), w.others.Share(w.others.Stolen)
	if w.usage.Known {
		server, database := each(w.usage.Server), each(w.usage.Database)
		r.ServerCPU, r.DatabaseCPU = &server, &database
		r.DeferredCPU = each(w.usage.Deferred)
	}
	return r
}

// series has the windows of one workload on one target: their sum, and for the minimum, median
// and maximum also the rate and the CPU time per operation of each window.
type series struct {
	total          window
	windows        int
	rates, cpus    []float64
	dropped, noisy int
}

func (s *series) add(w window) {
	known := w.usage.Known && (s.windows == 0 || s.total.usage.Known)
	s.total.add(w)
	s.total.usage.Known = known
	s.windows++
	if n := len(w.latencies); w.elapsed > 0 {
		s.rates = append(s.rates, float64(n)/w.elapsed.Seconds())
	}
	if n := len(w.latencies) + w.errors; n > 0 && w.usage.Known {
		s.cpus = append(s.cpus, float64(w.usage.CPU())/1e3/float64(n))
	}
}

func (s *series) result(state, workload, registry string, bytes int64) result {
	r := newResult(state, workload, registry, s.total, bytes)
	r.Rates, r.BothCPU = meter.NewSpread(s.rates), meter.NewSpread(s.cpus)
	r.Dropped, r.Noisy = s.dropped, s.noisy
	return r
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// bytesMoved returns how many bytes of content an operation transfers, or 0 for a workload
// whose table rows have no MB/s.
func (w *workload) bytesMoved(o *options) int64 {
	if w.bytes == nil {
		return 0
	}
	return w.bytes(o)
}

// cpu returns the CPU time of server and database together per operation, in µs.
func (r *result) cpu() (us float64, known bool) {
	if r.ServerCPU == nil || r.DatabaseCPU == nil {
		return 0, false
	}
	return *r.ServerCPU + *r.DatabaseCPU, true
}

// report has all results, in the order in which they are printed.
type report struct {
	Time        time.Time `json:"time"`
	CPUs        int       `json:"cpus"`
	System      string    `json:"system"`
	Connections int       `json:"connections"`
	Window      float64   `json:"window_seconds"`
	Rounds      int       `json:"rounds"`
	Fill        int       `json:"fill"`
	PushFlow    string    `json:"push_flow"`
	LayerMiB    int64     `json:"layer_mib"`
	Results     []result  `json:"results"`
}

func newReport(o *options) *report {
	return &report{
		Time: time.Now().UTC(), CPUs: runtime.NumCPU(), System: runtime.GOOS + "/" + runtime.GOARCH,
		Connections: o.conns, Window: o.duration.Seconds(), Rounds: o.rounds,
		Fill: o.fill, PushFlow: o.pushFlow, LayerMiB: o.layerMiB,
	}
}

func (rep *report) add(r result) { rep.Results = append(rep.Results, r) }

// marked counts the results that have errors.
func (rep *report) marked() int {
	n := 0
	for _, r := range rep.Results {
		if r.Errors > 0 {
			n++
		}
	}
	return n
}

// compare sets, in all results, the ratios to their baselines.
func (rep *report) compare() {
	for i := range rep.Results {
		r := &rep.Results[i]
		base := rep.baselineOf(r)
		if base == nil {
			continue
		}
		if base.PerSecond > 0 {
			r.RateOfBaseline = r.PerSecond / base.PerSecond
		}
		own, known := r.cpu()
		if limit, ok := base.cpu(); ok && known && limit > 0 {
			r.CPUOfBaseline = own / limit
		}
	}
}

// baselineOf returns the result of the baseline with which r is compared, or nil if there is
// none.
func (rep *report) baselineOf(r *result) *result {
	for i := range rep.Results {
		b := &rep.Results[i]
		if b.Baseline && !r.Baseline && b.Workload == r.Workload && b.State == r.State {
			return b
		}
	}
	return nil
}

// write prints the report's tables to stdout. If jsonFile is a path, it also writes the report
// as JSON to this file. If jsonFile is "-", it writes the JSON to stdout instead of the
// tables.
func (rep *report) write(jsonFile string, stdout io.Writer) error {
	rep.compare()
	if jsonFile != "" {
		b, err := json.MarshalIndent(rep, "", "  ")
		if err != nil {
			return fmt.Errorf("writing the results as JSON: %w", err)
		}
		b = append(b, '\n')
		if jsonFile == "-" {
			return writeAll(stdout, b)
		}
		if err := os.WriteFile(jsonFile, b, 0o644); err != nil {
			return fmt.Errorf("writing the results as JSON: %w", err)
		}
	}
	return rep.writeTables(stdout)
}
