//go:build !linux

package pgsession

import "syscall"

// setUserTimeout does nothing: only Linux has the option. Keepalives still end an
// idle connection, and [Tracer] a call that waits.
func setUserTimeout(_, _ string, _ syscall.RawConn) error { return nil }
