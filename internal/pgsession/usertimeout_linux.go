package pgsession

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// setUserTimeout ends a connection when sent data stays unacknowledged for [Silence].
// Keepalives alone don't do that, since none are sent while data is unacknowledged.
func setUserTimeout(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(Silence.Milliseconds()))
	})
	return errors.Join(err, failed)
}
