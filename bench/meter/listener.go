package meter

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Listeners returns the ids of the processes that listen on the TCP port `port`, at one of the
// addresses in `ips` or at every address. It misses processes whose file descriptors this
// process may not read.
func (fs Proc) Listeners(ips []netip.Addr, port uint16) []int {
	sockets := map[string]bool{}
	for _, name := range []string{"tcp", "tcp6"} {
		b, err := os.ReadFile(filepath.Join(fs.Root, "net", name))
		if err != nil {
			continue // no IPv6, or no /proc at all
		}
		for line := range strings.Lines(string(b)) {
			if inode, ok := parseListener(line, ips, port); ok {
				sockets["socket:["+inode+"]"] = true
			}
		}
	}
	if len(sockets) == 0 {
		return nil
	}
	links, err := filepath.Glob(filepath.Join(fs.Root, "[0-9]*", "fd", "*"))
	if err != nil {
		return nil
	}
	var pids []int
	for _, link := range links {
		dest, err := os.Readlink(link)
		if err != nil || !sockets[dest] {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(link))))
		if err == nil && !slices.Contains(pids, pid) {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// parseListener parses a line of /proc/net/tcp or tcp6 (proc(5)). If the line is a listening
// socket that accepts connections to `port` at one of `ips`, it returns the socket's inode.
func parseListener(line string, ips []netip.Addr, port uint16) (inode string, ok bool) {
	const local, state, inodeField, listening = 1, 3, 9, "0A"
	f := strings.Fields(line)
	if len(f) <= inodeField || f[state] != listening {
		return "", false
	}
	addr, portText, ok := strings.Cut(f[local], ":")
	if !ok {
		return "", false
	}
	p, err := strconv.ParseUint(portText, 16, 16)
	if err != nil || uint16(p) != port {
		return "", false
	}
	ip, ok := parseProcIP(addr)
	if !ok || !ip.IsUnspecified() && !slices.Contains(ips, ip) {
		return "", false
	}
	return f[inodeField], true
}

// parseProcIP parses an address as /proc/net/tcp prints it: 32-bit words in hexadecimal, each
// in the machine's byte order.
func parseProcIP(s string) (netip.Addr, bool) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b)%4 != 0 {
		return netip.Addr{}, false
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	ip, ok := netip.AddrFromSlice(b)
	return ip.Unmap(), ok
}
