package pgsession

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// setUserTimeout makes the kernel end a connection when sent data stays unacknowledged for
// [Silence]. Keepalives don't do that: the kernel sends none while data is unacknowledged.
func setUserTimeout(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(Silence.Milliseconds()))
	})
	return errors.Join(err, failed)
}
