// Package limit bounds what clients may hold of this process: memory for the bodies
// of requests, connections, requests.
//
// Each limit is one for all clients together and one for each client, so that no
// client can take what others need. A client is an address: whoever comes through one
// NAT is one client, so the shares are large. Of a proxy that is trusted (Proxies), the
// address is that of the client that it names, in a header of the request or of the
// connection. Nothing here is kept longer than it is held.
package limit

import (
	"net"
	"net/netip"
	"sync"
)

// Client names the client behind a remote address, HOST:PORT: the host's address, or
// of IPv6 its network of 64 bits, since a host has all of one. What is no such
// address is its own name.
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

// Counter counts what clients have open.
type Counter struct {
	most, mostOfClient int // 0: no limit

	mu      sync.Mutex
	all     int
	clients map[string]int
}

// NewCounter returns a counter that goes up to most, and to mostOfClient for each
// client. 0 is no limit.
func NewCounter(most, mostOfClient int) *Counter {
	return &Counter{most: most, mostOfClient: mostOfClient, clients: map[string]int{}}
}

// Full says which limit is reached.
type Full uint8

// The zero value is that of neither.
const (
	NotFull Full = iota
	ClientFull
	AllFull
)

// Add counts one more of the client, unless a limit is reached. Done counts it off. ""
// isn't one client, so it has no limit of one.
func (c *Counter) Add(client string) Full {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.clientFull(client):
		return ClientFull
	case c.most > 0 && c.all >= c.most:
		return AllFull
	}
	c.all++
	c.clients[client]++
	return NotFull
}

func (c *Counter) clientFull(client string) bool {
	return client != "" && c.mostOfClient > 0 && c.clients[client] >= c.mostOfClient
}

// Name counts one that was added as "" as a client's, unless the client's limit is
// reached.
func (c *Counter) Name(client string) Full {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.clientFull(client) {
		return ClientFull
	}
	c.take("")
	c.clients[client]++
	return NotFull
}

// Done takes back what Add counted.
func (c *Counter) Done(client string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all--
	c.take(client)
}

func (c *Counter) take(client string) {
	if c.clients[client]--; c.clients[client] <= 0 {
		delete(c.clients, client)
	}
}
