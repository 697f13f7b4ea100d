//go:build all

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// machine is a Debian that runs beside this system on the same kernel: systemd is its first process,
// and its files, processes, mounts, network and control groups are its own. The kernel kills the
// first process at the latest when this process ends, and then all of the machine ends.
type machine struct {
	t     *testing.T
	p     *process // systemd
	dials chan dialed
	ended chan struct{}
}

// enterGroup puts the shell into a control group of its own, which becomes the root of the groups
// that the second script sees. Before, it removes the groups of processes that don't exist any more.
const enterGroup = `
set -e
dir=$1 group=$2
mount --make-rprivate /
mkdir "$dir/root" "$dir/memory"
mount -t cgroup2 cgroup2 "$dir/memory"
parent=$dir/memory$(sed -n 's/^0:://p' /proc/self/cgroup)
for old in "$parent"/purser-e2e-*; do
	pid=${old##*/purser-e2e-}
	[ -e "/proc/${pid%-*}" ] || find "$old" -depth -type d -exec rmdir {} + 2>/dev/null || : # others do it too
done
mkdir "$parent/$group"
echo 0 >"$parent/$group/cgroup.procs"
umount "$dir/memory"
shift 2
exec unshare --cgroup /bin/sh -c "$@"
`

// becomeSystemd mounts what a system needs over a directory with a Debian, which it only reads, and
// becomes systemd. What the machine writes is in memory. The machine has no user namespace, so it
// must lack the rights to change the kernel: to load modules, to set the clock and the like.
const becomeSystemd = `
set -e
debian=$1 memory=$2/memory root=$2/root
mount -t tmpfs -o mode=755 tmpfs "$memory"
mkdir "$memory/upper" "$memory/work"
mount -t overlay -o "lowerdir=$debian,upperdir=$memory/upper,workdir=$memory/work" overlay "$root"
mount -t proc proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty; do
	touch "$root/dev/$device"
	mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/pts" "$root/dev/shm" "$root/dev/mqueue" "$root/run/outside"
mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts "$root/dev/pts"
mount -t tmpfs tmpfs "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
cd "$root"
pivot_root . run/outside
umount -l /run/outside
mount --make-rshared / # systemd expects that of whoever starts a container
exec setpriv --bounding-set=-sys_module,-sys_time,-sys_rawio,-syslog,-audit_control,-audit_read \
	env -i PATH=/usr/sbin:/usr/bin container=other /lib/systemd/systemd --log-target=journal
`

// removeGroup removes a control group in which no process is left.
const removeGroup = `
set -e
mount -t cgroup2 cgroup2 "$1"
find "$1$(sed -n 's/^0:://p' /proc/self/cgroup)/$2" -depth -type d -exec rmdir {} +
`

// debian is the path of the directory that tools/debian makes.
var debian = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("bash", "../tools/debian").Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
})

var machines atomic.Int64

// bootMachine boots a machine, which is ended at the end of the test.
func bootMachine(t *testing.T) *machine {
	t.Helper()
	base, err := debian()
	if err != nil {
		lacking(t, "no Debian to boot: %v", err)
	}
	m := &machine{t: t, dials: make(chan dialed), ended: make(chan struct{})}
	dir, group := newDir(t), fmt.Sprintf("purser-e2e-%d-%d", os.Getpid(), machines.Add(1))
	cmd := exec.Command("/bin/sh", "-c", enterGroup, "sh", dir, group, becomeSystemd, "sh", base, dir)
	cmd.SysProcAttr = endsWithParent()
	cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWNET
	if m.p, err = startProcess("systemd", cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.end(dir, group) })
	// Before the shell has become systemd, its root directory is that of this system.
	err = m.p.waitFor(t.Context(), readyWithin, func(context.Context) error {
		comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", m.p.cmd.Process.Pid))
		if err == nil && string(comm) != "systemd\n" {
			err = fmt.Errorf("the first process is %q", comm)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	m.serveDials()
	eventually(t, readyWithin, func() error {
		out, err := m.Try("systemctl is-system-running --wait")
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
	return m
}

// end kills everything on the machine.
func (m *machine) end(dir, group string) {
	if m.t.Failed() && m.p.running() {
		out, err := m.Try("systemctl --failed --no-pager; journalctl --no-pager --quiet --unit=purser.service --lines=80")
		m.t.Logf("purser.service on the machine (%v):\n%s", err, out)
	}
	close(m.ended)
	m.p.kill()
	cmd := exec.Command("unshare", "--mount", "/bin/sh", "-c", removeGroup, "sh", filepath.Join(dir, "memory"), group)
	if out, err := cmd.CombinedOutput(); err != nil {
		m.t.Errorf("removing the machine's control group: %v\n%s", err, out)
	}
}

// Try runs a script on the machine as root, in its home directory, and returns what it printed.
func (m *machine) Try(script string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), readyWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nsenter", "--target", fmt.Sprint(m.p.cmd.Process.Pid),
		"--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--",
		"env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8",
		"bash", "-euo", "pipefail", "-c", "cd\n"+script)
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// Run is like Try. If the script fails, the test fails.
func (m *machine) Run(script string) string {
	m.t.Helper()
	out, err := m.Try(script)
	if err != nil {
		m.t.Fatalf("on the machine: %v\n%s\n%s", err, script, out)
	}
	return out
}

// path returns the path by which this system reaches a file of the machine.
func (m *machine) path(name string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", m.p.cmd.Process.Pid), name)
}

// Write writes a file on the machine, in a directory that it makes.
func (m *machine) Write(name, text string) {
	m.t.Helper()
	mkdir(m.t, filepath.Dir(m.path(name)))
	if err := os.WriteFile(m.path(name), []byte(text), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

// Copy copies a file or a directory of this system into a directory of the machine, which it makes.
func (m *machine) Copy(from, dir string) {
	m.t.Helper()
	mkdir(m.t, m.path(dir))
	if out, err := exec.Command("cp", "-R", from, m.path(dir)).CombinedOutput(); err != nil {
		m.t.Fatalf("copying to the machine: %v\n%s", err, out)
	}
}

// Dial connects to an address in the machine's network.
func (m *machine) Dial(address string) (net.Conn, error) {
	d := dialed{address: address, conn: make(chan net.Conn, 1), err: make(chan error, 1)}
	select {
	case m.dials <- d:
		return <-d.conn, <-d.err
	case <-m.ended:
		return nil, errors.New("the machine has ended")
	}
}

// dialed is a connection that is wanted, and its result.
type dialed struct {
	address string
	conn    chan net.Conn
	err     chan error
}

// serveDials makes connections in the machine's network until the machine ends. They can be used on
// every thread.
func (m *machine) serveDials() {
	m.t.Helper()
	entered := make(chan error)
	go func() {
		runtime.LockOSThread() // for ever: the thread, whose network is another, ends with the goroutine
		f, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", m.p.cmd.Process.Pid))
		if err == nil {
			err = errors.Join(unix.Setns(int(f.Fd()), unix.CLONE_NEWNET), f.Close())
		}
		if entered <- err; err != nil {
			return
		}
		for {
			select {
			case d := <-m.dials:
				conn, err := net.Dial("tcp", d.address)
				d.conn <- conn
				d.err <- err
			case <-m.ended:
				return
			}
		}
	}()
	if err := <-entered; err != nil {
		m.t.Fatalf("entering the machine's network: %v", err)
	}
}
