package registries

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// machine is the CPU time of the whole machine in a period.
type machine struct {
	known  bool
	all    time.Duration // of all CPUs together
	busy   time.Duration // used by processes and the kernel; in results of others, without server and load generator
	stolen time.Duration // taken by other virtual machines (proc(5), steal)
}

// machine reads the first line of /proc/stat.
func (fs procfs) machine() machine {
	b, err := os.ReadFile(filepath.Join(fs.root, "stat"))
	if err != nil {
		return machine{}
	}
	m, err := parseMachine(string(b))
	if err != nil {
		return machine{}
	}
	return m
}

// parseMachine understands "cpu user nice system idle iowait irq softirq steal …", in
// hundredths of a second (proc(5)). The times of guests, which follow, are in user and
// nice already.
func parseMachine(stat string) (machine, error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return machine{}, fmt.Errorf("the line %q doesn't have the times of all CPUs", line)
	}
	m := machine{known: true}
	for i, field := range fields[1:9] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return machine{}, fmt.Errorf("the line %q: %w", line, err)
		}
		d := time.Duration(n) * time.Second / userHZ
		m.all += d
		switch i {
		case 3, 4: // idle, and idle while a disk is waited for
		case 7:
			m.stolen = d
		default:
			m.busy += d
		}
	}
	return m, nil
}

// others returns the CPU time from before to m, without own, the time of a server and the
// load generator.
func (m machine) others(before machine, own time.Duration) machine {
	return machine{
		known:  m.known && before.known,
		all:    m.all - before.all,
		busy:   max(0, m.busy-before.busy-own),
		stolen: max(0, m.stolen-before.stolen),
	}
}

func (m *machine) add(o machine) {
	m.known = o.known
	m.all += o.all
	m.busy += o.busy
	m.stolen += o.stolen
}

// share returns which part of the machine's CPU time d is.
func (m machine) share(d time.Duration) float64 {
	if m.all <= 0 {
		return 0
	}
	return float64(d) / float64(m.all)
}

// noisy returns whether others took more than a share of the CPU time. Short windows are
// never noisy, since the kernel counts in hundredths of a second.
func (m machine) noisy(share float64) bool {
	return m.known && m.all > time.Duration(runtime.NumCPU())*time.Second/2 && m.share(m.busy+m.stolen) > share
}
