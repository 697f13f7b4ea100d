package registries

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// writeTables prints one table for each state of the registries, the errors, and a table of
// the figures of filled registries divided by those of empty ones.
func (rep *report) writeTables(w io.Writer) error {
	var out strings.Builder
	empty, filled := rep.of(stateEmpty), rep.of(stateFilled)
	out.WriteString("Empty registry\n\n")
	out.WriteString(rep.table(empty))
	if len(filled) > 0 {
		fmt.Fprintf(&out, "\nWith %s manifests\n\n%s", thousands(float64(rep.Fill)), rep.table(filled))
		fmt.Fprintf(&out, "\nWith %s manifests, of the empty registry's figures\n\n%s",
			thousands(float64(rep.Fill)), ratios(empty, filled))
	}
	if s := rep.errors(); s != "" {
		out.WriteString("\nErrors\n\n" + s)
	}
	return writeAll(w, []byte(out.String()))
}

func (rep *report) of(state string) []result {
	var rs []result
	for _, r := range rep.Results {
		if r.State == state {
			rs = append(rs, r)
		}
	}
	return rs
}

// hasBaselines returns whether the report has results of baselines. If not, the tables leave
// out the columns rate/base and CPU/base.
func (rep *report) hasBaselines() bool {
	for _, r := range rep.Results {
		if r.Baseline {
			return true
		}
	}
	return false
}

func (rep *report) table(results []result) string {
	header := []string{"workload", "registry", "ops/s", "min", "max", "p50 ms", "p99 ms",
		"server µs", "db µs", "both µs", "min", "max", "deferred µs", "client µs", "MB/s", "PSS MiB", "RSS MiB",
		"foreign", "stolen", "errors"}
	limits := rep.hasBaselines()
	if limits {
		header = append(header, "rate/base", "CPU/base")
	}
	rows := [][]string{header}
	last := ""
	for _, r := range results {
		if last != "" && r.Workload != last {
			rows = append(rows, nil)
		}
		last = r.Workload
		cells := r.cells()
		if limits {
			cells = append(cells, ratio(r.RateOfBaseline), ratio(r.CPUOfBaseline))
		}
		rows = append(rows, cells)
	}
	return layOut(rows)
}

// cells returns the texts of the result's table row. If there were errors, the last cell has
// their number and "!!".
func (r *result) cells() []string {
	server, database, both := "-", "-", "-"
	if sum, ok := r.cpu(); ok {
		server, database, both = number(*r.ServerCPU), number(*r.DatabaseCPU), number(sum)
	}
	errors := "0"
	if r.Errors > 0 {
		errors = fmt.Sprintf("%d !!", r.Errors)
	}
	foreign := percent(r.Foreign)
	if r.Noisy > 0 {
		foreign += " !"
	}
	return []string{
		r.Workload, r.Registry, number(r.Rates.Median), number(r.Rates.Min), number(r.Rates.Max),
		orDash(r.P50, number), orDash(r.P99, number),
		server, database, both, orDash(r.BothCPU.Min, number), orDash(r.BothCPU.Max, number), orDash(r.DeferredCPU, number),
		orDash(r.ClientCPU, number), orDash(r.MBPerSecond, number),
		orDash(float64(r.PSSPeak)/(1<<20), number), orDash(float64(r.RSSPeak)/(1<<20), number),
		foreign, percent(r.Stolen), errors,
	}
}

// ratios returns a table of the filled registries' figures divided by those of the empty ones,
// for each workload and registry.
func ratios(empty, filled []result) string {
	rows := [][]string{{"workload", "registry", "ops/s", "p50", "p99", "both CPU", "PSS"}}
	for _, f := range filled {
		for _, e := range empty {
			if e.Workload != f.Workload || e.Registry != f.Registry {
				continue
			}
			cpu := 0.0
			of, ok := f.cpu()
			if oe, known := e.cpu(); ok && known {
				cpu = quotient(of, oe)
			}
			rows = append(rows, []string{
				f.Workload, f.Registry, ratio(quotient(f.PerSecond, e.PerSecond)), ratio(quotient(f.P50, e.P50)),
				ratio(quotient(f.P99, e.P99)), ratio(cpu), ratio(quotient(float64(f.PSSPeak), float64(e.PSSPeak))),
			})
		}
	}
	return layOut(rows)
}

// errors returns the first error texts of each result that has errors.
func (rep *report) errors() string {
	var out strings.Builder
	for _, r := range rep.Results {
		for _, m := range r.Messages {
			fmt.Fprintf(&out, "%s, %s, %s: %s\n", r.State, r.Workload, r.Registry, m)
		}
	}
	return out.String()
}

func quotient(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func percent(x float64) string { return strconv.FormatFloat(100*x, 'f', 1, 64) + "%" }

// ratio formats a quotient with two decimals. 0 means that there is no quotient, and becomes
// "-".
func ratio(x float64) string {
	return orDash(x, func(x float64) string { return strconv.FormatFloat(x, 'f', 2, 64) })
}

func orDash(x float64, format func(float64) string) string {
	if x == 0 {
		return "-"
	}
	return format(x)
}

// number formats x with three significant digits; if its whole part has more digits, with all
// digits of the whole part.
func number(x float64) string {
	switch {
	case x == 0:
		return "0"
	case x >= 99.95:
		return thousands(x)
	case x >= 9.995:
		return strconv.FormatFloat(x, 'f', 1, 64)
	case x >= 0.9995:
		return strconv.FormatFloat(x, 'f', 2, 64)
	}
	return strconv.FormatFloat(x, 'f', 3, 64)
}

// thousands prints a whole number with commas.
func thousands(x float64) string {
	s := strconv.FormatFloat(x, 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// layOut formats rows as a table. The first two columns are text and aligned left, the others
// are numbers and aligned right. A nil row becomes an empty line.
func layOut(rows [][]string) string {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var out strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i < 2 {
				line.WriteString(cell + pad + "  ")
			} else {
				line.WriteString(pad + cell + "  ")
			}
		}
		out.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return out.String()
}
