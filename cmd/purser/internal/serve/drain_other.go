//go:build !linux

package serve

import (
	"context"
	"net"
)

// acceptLast does nothing: only on Linux can a listener be told to begin no new connections.
func acceptLast(context.Context, *net.TCPListener, *silentConns) {}
