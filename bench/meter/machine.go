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

// Machine has the CPU time of the whole machine, either since the machine started (a reading)
// or in a period (the difference of two readings).
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
// softirq steal …", in hundredths of a second (proc(5)). It ignores the later fields, which
// are the times of virtual machines that run here, since user and nice include these times.
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

// Others returns the CPU time that was used between the readings `before` and `m` by others than
// the measured programs: by other processes (Busy), and by other virtual machines (Stolen).
// `own` is the CPU time of the server and the load generator in this period, which Others
// subtracts.
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

// Share returns the time d divided by m.All, the machine's whole CPU time.
func (m Machine) Share(d time.Duration) float64 {
	if m.All <= 0 {
		return 0
	}
	return float64(d) / float64(m.All)
}

// Noisy returns whether other processes and other virtual machines took more than `share`
// (0 to 1) of the CPU time. `m` must be a result of Others. For windows of less than half a
// second Noisy returns false, since the kernel counts in hundredths of a second.
func (m Machine) Noisy(share float64) bool {
	return m.Known && m.All > time.Duration(runtime.NumCPU())*time.Second/2 && m.Share(m.Busy+m.Stolen) > share
}
