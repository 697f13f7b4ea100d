package registries

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/purser-registry/purser/bench/meter"
)

// target is one server under test: a registry, or the child process that serves a baseline.
type target struct {
	name     string
	origin   string      // scheme://host[:port], as given
	addr     string      // host:port that is dialled
	host     string      // Host header
	tls      *tls.Config // nil for http
	auth     string      // Authorization header; empty without credentials
	pids     []int       // roots of the server's process trees; empty when unknown
	after    string      // path that a POST is sent to after each window; empty: none
	baseline bool
}

// parseTarget parses an argument name=URL[,pid=PID[+PID]…][,after=PATH]. Credentials in the
// URL are sent as Basic authentication.
func parseTarget(s string, insecure bool) (*target, error) {
	name, rest, ok := strings.Cut(s, "=")
	if !ok || name == "" {
		return nil, fmt.Errorf("registry %q: want name=URL[,pid=PID]", s)
	}
	rawURL, more, _ := strings.Cut(rest, ",")
	t := &target{name: name}
	for more != "" {
		var part string
		part, more, _ = strings.Cut(more, ",")
		if err := t.setPart(part); err != nil {
			return nil, err
		}
	}
	return t, t.setURL(rawURL, insecure)
}

// setPart parses one of the parts after the URL: pid=… or after=….
func (t *target) setPart(part string) error {
	key, value, _ := strings.Cut(part, "=")
	switch {
	case key == "after" && strings.HasPrefix(value, "/"):
		t.after = value
		return nil
	case key != "pid":
		return fmt.Errorf("registry %q: after the URL only pid=PID[+PID] and after=/PATH may follow, not %q", t.name, part)
	}
	for p := range strings.SplitSeq(value, "+") {
		pid, err := strconv.Atoi(p)
		if err != nil || pid <= 0 {
			return fmt.Errorf("registry %q: process id %q isn't a positive number", t.name, p)
		}
		t.pids = append(t.pids, pid)
	}
	return nil
}

func (t *target) setURL(raw string, insecure bool) error {
	u, err := url.Parse(raw)
	if err != nil {
		return fmt.Errorf("registry %q: %w", t.name, err)
	}
	port := u.Port()
	switch u.Scheme {
	case "http":
		port = orDefault(port, "80")
	case "https":
		port = orDefault(port, "443")
		t.tls = &tls.Config{ServerName: u.Hostname(), InsecureSkipVerify: insecure}
	default:
		return fmt.Errorf("registry %q: URL %q must start with http:// or https://", t.name, raw)
	}
	if u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return fmt.Errorf("registry %q: URL %q must be scheme://host[:port] alone", t.name, raw)
	}
	t.origin, t.host, t.addr = u.Scheme+"://"+u.Host, u.Host, net.JoinHostPort(u.Hostname(), port)
	if u.User != nil {
		password, _ := u.User.Password()
		t.auth = "Basic " + base64.StdEncoding.EncodeToString([]byte(u.User.Username()+":"+password))
	}
	return nil
}

func orDefault(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

// findPIDs sets t.pids to the processes that listen on the target's address. It does nothing
// if process ids were given, or if the address isn't on loopback. If it finds no process, it
// returns no error: the columns of CPU time and memory then stay empty.
func (t *target) findPIDs(ctx context.Context, fs meter.Proc) error {
	if len(t.pids) > 0 {
		return nil
	}
	host, portText, err := net.SplitHostPort(t.addr)
	if err != nil {
		return fmt.Errorf("address of %s: %w", t.name, err)
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return fmt.Errorf("port of %s: %w", t.name, err)
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return fmt.Errorf("address of %s: %w", t.name, err)
	}
	var local []netip.Addr
	for _, ip := range ips {
		if ip.Unmap().IsLoopback() {
			local = append(local, ip.Unmap())
		}
	}
	if len(local) > 0 {
		t.pids = fs.Listeners(local, uint16(port))
	}
	return nil
}

// head appends the request line and the headers of a request to `dst`. `length` is the
// Content-Length; -1 leaves this header out. `extra` has further header lines, without line
// ends.
func (t *target) head(dst []byte, method, path string, length int, extra ...string) []byte {
	dst = append(dst, method...)
	dst = append(dst, ' ')
	dst = append(dst, path...)
	dst = append(dst, " HTTP/1.1\r\nHost: "...)
	dst = append(dst, t.host...)
	dst = append(dst, "\r\nUser-Agent: purser-bench\r\n"...)
	if t.auth != "" {
		dst = append(append(append(dst, "Authorization: "...), t.auth...), "\r\n"...)
	}
	for _, h := range extra {
		dst = append(append(dst, h...), "\r\n"...)
	}
	if length >= 0 {
		dst = append(dst, "Content-Length: "...)
		dst = strconv.AppendInt(dst, int64(length), 10)
		dst = append(dst, "\r\n"...)
	}
	return append(dst, "\r\n"...)
}

// resolve returns the path in a Location header, to which the next request goes. It returns an
// error if the Location is on another host, since the program would then measure another
// server.
func (t *target) resolve(location []byte) (string, error) {
	s := string(location)
	if strings.HasPrefix(s, "/") && !strings.HasPrefix(s, "//") {
		return s, nil
	}
	u, err := url.Parse(s)
	if err != nil {
		return "", fmt.Errorf("the Location %q: %w", s, err)
	}
	if u.Scheme+"://"+u.Host != t.origin {
		return "", fmt.Errorf("the Location %q isn't on %s", s, t.origin)
	}
	return u.RequestURI(), nil
}
