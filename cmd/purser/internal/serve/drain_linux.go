package serve

import (
	"context"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/purser-registry/purser/internal/worker"
)

// handshakeTime is how long a handshake that has begun may take until the server closes its listener:
// more than a round trip to a load balancer.
const handshakeTime = 50 * time.Millisecond

// noNewConnections is a filter of packets that drops those with the flag SYN and without ACK,
// with which connections begin. Its packets begin with the TCP header.
var noNewConnections = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 13},                  // the flags
	{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 0x12},               // SYN and ACK
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 0, Jf: 1, K: 0x02}, // SYN alone?
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},                                 // drop it
	{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},                        // else keep all of it
}

// acceptLast prepares for closing a listener, while the server still accepts its connections.
//
// The kernel makes connections and queues them until the server accepts them. When a listener is
// closed, the kernel resets the connections in its queue. Their clients have a connection, and
// maybe sent a request; a load balancer must not send a POST again then, and fails. The same
// happens to silent connections. So first no new connection may begin: the kernel drops the
// packets that would begin one. Clients send these again after a second, and are then refused, so
// a load balancer takes another replica. Then acceptLast waits for handshakes that have begun,
// until the queue is empty, and until the requests on its connections have begun, or until ctx ends.
//
// The listener must be the server's own. That of a service manager outlives the server, so its
// queue isn't lost, and a filter would stay.
//
// Some systems forbid filters to ordinary users. There the server goes on accepting until a moment at
// which nothing waits; only a connection that begins in the last milliseconds may be lost.
func acceptLast(ctx context.Context, l *net.TCPListener, silent *silentConns) {
	dropNew(l)
	if worker.Sleep(ctx, handshakeTime) == nil {
		silent.wait(ctx, func() uint32 { return queued(l) })
	}
}

// dropNew makes the kernel drop the packets that begin connections to a listener, where it may.
func dropNew(l *net.TCPListener) {
	raw, err := l.SyscallConn()
	if err != nil {
		return
	}
	filter := unix.SockFprog{Len: uint16(len(noNewConnections)), Filter: &noNewConnections[0]}
	raw.Control(func(fd uintptr) { //nolint:errcheck // the listener is closed already
		unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &filter) //nolint:errcheck // see acceptLast
	})
}

// queued returns how many connections wait until they are accepted.
func queued(l *net.TCPListener) (n uint32) {
	raw, err := l.SyscallConn()
	if err != nil {
		return 0
	}
	err = raw.Control(func(fd uintptr) {
		// Of a listener, the kernel reports the length of the queue in this member.
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n = info.Unacked
		}
	})
	if err != nil {
		return 0
	}
	return n
}
