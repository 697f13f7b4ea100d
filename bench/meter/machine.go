package meter

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// Machine has the CPU time of the whole machine: since its start (a reading) or in a period
// (the difference of two readings).
type Machine struct {
	Known  bool
	All    time.Duration // of all CPUs together
	Busy   time.Duration // used by processes and the kernel; see Others
	Stolen time.Duration // taken by other virtual machines (proc(5), steal)
}

// Machine reads the first line of /proc/stat.
func (fs Proc) Machine() Machine {
	b, err := os.ReadFile(filepath.Join(fs.Root, "stat"))
	if err != nil {
		return Machine{}
	}
	m, err := parseMachine(string(b))
	if err != nil {
		return Machine{}
	}
	return m
}

// parseMachine parses the first line of /proc/stat: "cpu user nice system idle iowait irq
// softirq steal …", in hundredths of a second (proc(5)). It ignores the fields after these,
// the times of guests, since user and nice include them.
func parseMachine(stat string) (Machine, error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return Machine{}, fmt.Errorf("the line %q doesn't have the times of all CPUs", line)
	}
	m := Machine{Known: true}
	for i, field := range fields[1:9] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return Machine{}, fmt.Errorf("the line %q: %w", line, err)
		}
		d := time.Duration(n) * time.Second / UserHZ
		m.All += d
		switch i {
		case 3, 4: // idle, and idle while a disk is waited for
		case 7:
			m.Stolen = d
		default:
			m.Busy += d
		}
	}
	return m, nil
}

// Others returns the CPU time between the reading before and the reading m that other
// processes used (Busy) or other virtual machines took (Stolen). own is the CPU time of the
// server and the load generator in the same period, which is subtracted.
func (m Machine) Others(before Machine, own time.Duration) Machine {
	return Machine{
		Known:  m.Known && before.Known,
		All:    m.All - before.All,
		Busy:   max(0, m.Busy-before.Busy-own),
		Stolen: max(0, m.Stolen-before.Stolen),
	}
}

func (m *Machine) Add(o Machine) {
	m.Known = o.Known
	m.All += o.All
	m.Busy += o.Busy
	m.Stolen += o.Stolen
}

// Share returns d as a part of the machine's CPU time m.All, between 0 and 1.
func (m Machine) Share(d time.Duration) float64 {
	if m.All <= 0 {
		return 0
	}
	return float64(d) / float64(m.All)
}

// Noisy returns whether other processes and virtual machines took more than the given share of
// the CPU time. It is never true for windows of less than half a second, since the kernel
// counts in hundredths of a second. m is a result of Others.
func (m Machine) Noisy(share float64) bool {
	return m.Known && m.All > time.Duration(runtime.NumCPU())*time.Second/2 && m.Share(m.Busy+m.Stolen) > share
}
