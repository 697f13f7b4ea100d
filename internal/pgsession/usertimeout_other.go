//go:build !linux

package pgsession

import "syscall"

// setUserTimeout does nothing, since only Linux has this option. On other systems keepalives
// end an idle connection, and [Tracer] ends a call that gets no answer.
func setUserTimeout(_, _ string, _ syscall.RawConn) error { return nil }
