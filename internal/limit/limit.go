// Package limit limits how much of this process's resources clients may use: memory for the
// bodies of requests, connections, and concurrent requests.
//
// Each resource has a limit for all clients together and a limit per client, so that no client
// can take what others need. A client is identified by its address. All hosts behind a NAT
// count as one client, so the limits per client are large. If a request comes through a
// trusted proxy (Proxies), the client is the one that the proxy names, in a header of the
// request or at the beginning of the connection. Memory and concurrent requests are counted per
// account as well, since an account may use many addresses; the robots of one namespace count as
// one account (Share). The package remembers nothing about a client that uses no resource any
// more.
package limit

import (
	"net"
	"net/netip"
	"sync"
)

// Client returns the name under which the client at a remote address, HOST:PORT, is
// counted: the host's address, or for IPv6 its /64 network, since one host usually has a
// whole /64 network. Text that isn't such an address is returned unchanged.
func Client(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		host = remote
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	ip = ip.Unmap().WithZone("")
	if ip.Is4() {
		return ip.String()
	}
	network, err := ip.Prefix(64)
	if err != nil {
		return host
	}
	return network.String()
}

// Counter counts resources that clients have open.
type Counter struct {
	most, mostOfClient int // 0: no limit

	mu      sync.Mutex
	all     int
	clients map[string]int
}

// NewCounter returns a counter that allows at most `most` resources in total and at most
// `mostOfClient` per client; 0 means no limit.
func NewCounter(most, mostOfClient int) *Counter {
	return &Counter{most: most, mostOfClient: mostOfClient, clients: map[string]int{}}
}

// Full says which limit is reached.
type Full uint8

// NotFull means that no limit is reached.
const (
	NotFull Full = iota
	ClientFull
	AllFull
)

// Add counts one resource for the client and returns NotFull. If a limit is reached, it counts
// nothing and returns ClientFull or AllFull. Done reverses a successful Add.
func (c *Counter) Add(client string) Full {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.mostOfClient > 0 && c.clients[client] >= c.mostOfClient:
		return ClientFull
	case c.most > 0 && c.all >= c.most:
		return AllFull
	}
	c.all++
	c.clients[client]++
	return NotFull
}

// Done reverses Add.
func (c *Counter) Done(client string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all--
	if c.clients[client]--; c.clients[client] <= 0 {
		delete(c.clients, client)
	}
}
