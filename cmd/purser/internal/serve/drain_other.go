//go:build !linux

package serve

import "net"

// acceptLast does nothing: only on Linux can a listener be told to begin no new connections.
func acceptLast(*net.TCPListener, *silentConns) {}
