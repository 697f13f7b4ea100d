package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

const (
	// TokenVariable is the name of the environment variable with the secret that the command
	// line sends: a personal token, or a robot's secret. TokenFileVariable names a file that
	// contains the secret. They have priority over the secrets that "purser login" stores.
	TokenVariable     = "PURSER_TOKEN"
	TokenFileVariable = TokenVariable + "_FILE"
	// InsecureFlag is the flag that allows credentials to be sent over plain HTTP.
	InsecureFlag = "insecure"
)

// Credentials say who calls. The zero value sends none.
type Credentials struct {
	Token          string // a personal token or a robot's secret, sent as Bearer
	From           string // where the token comes from, for messages
	Name, Password string // sent as Basic, if there is no token
	// Insecure allows the credentials to be sent over plain HTTP to another machine, where
	// others can read them on the way.
	Insecure bool
}

// With returns a client of the same registry that sends the credentials. The client sends them
// only to this registry: it follows no redirects. It doesn't send them over plain HTTP unless
// the registry is on loopback or the credentials allow it; its requests fail instead.
func (c *Client) With(credentials Credentials) *Client {
	other := *c
	other.credentials = credentials
	return &other
}

// authorize adds the credentials to a request.
func (c *Client) authorize(req *http.Request) error {
	k := c.credentials
	if k.Token == "" && k.Name == "" && c.server.User == nil {
		return nil
	}
	if err := c.CheckPlain(k.Insecure); err != nil {
		return err
	}
	switch {
	case k.Token != "":
		req.Header.Set("Authorization", "Bearer "+k.Token)
	case k.Name != "":
		req.SetBasicAuth(k.Name, k.Password)
	}
	return nil
}

// RegistryLogin returns the user name and the password by which the client's credentials are given
// to the registry's OCI API, both "" if there are none. Like requests of the client, it returns an
// error if they would cross the network unencrypted and that isn't allowed.
func (c *Client) RegistryLogin() (user, password string, err error) {
	k := c.credentials
	switch {
	case k.Token != "":
		user, password = "$token", k.Token
	case k.Name != "":
		user, password = k.Name, k.Password
	case c.server.User != nil:
		user = c.server.User.Username()
		password, _ = c.server.User.Password()
	default:
		return "", "", nil
	}
	return user, password, c.CheckPlain(k.Insecure)
}

// CheckPlain returns an error if credentials would cross the network unencrypted and that isn't
// allowed.
func (c *Client) CheckPlain(allowed bool) error {
	if allowed || c.server.Scheme == "https" || isLoopback(c.server.Hostname()) {
		return nil
	}
	return fmt.Errorf("the registry at %s would get your credentials unencrypted, so nothing was sent: "+
		"use https, or allow it with --%s", c.server.Redacted(), InsecureFlag)
}

// isLoopback says whether a host is this machine.
func isLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback() || host == "localhost"
}

// logIn returns the advice for a client whose request was answered with 401, "" if the client
// has sent a password: the registry's text says enough then.
func (c *Client) logIn() string {
	switch {
	case c.credentials.Token != "":
		return fmt.Sprintf("\nThe registry doesn't accept the token of %s: log in with \"purser login %s\"", c.credentials.From, ServerKey(c.server))
	case c.credentials.Name != "":
		return ""
	}
	return fmt.Sprintf("\nLog in with \"purser login %s\"", ServerKey(c.server))
}

// ServerKey returns the text by which a registry is known: its URL without a user and without
// the scheme's usual port.
func ServerKey(server *url.URL) string {
	host, port := strings.ToLower(server.Hostname()), server.Port()
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port != "" && port != map[string]string{"http": "80", "https": "443"}[server.Scheme] {
		host += ":" + port
	}
	return server.Scheme + "://" + host
}

// NeedsLogin says whether the registry has access control. It asks without credentials for
// /v2/, which every registry with access control refuses then (distribution specification,
// "Determining support").
func (c *Client) NeedsLogin(ctx context.Context) (bool, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, ServerKey(c.server)+"/v2/", nil)
	if err != nil {
		return false, fmt.Errorf("making the request: %w", err)
	}
	req.Header.Set("User-Agent", "purser")
	res, err := c.http.Do(req)
	if err != nil {
		return false, c.unreachable(ctx, err)
	}
	defer res.Body.Close() //nolint:errcheck // only read
	switch res.StatusCode {
	case http.StatusUnauthorized:
		return true, nil
	case http.StatusOK:
		_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 1<<20)) // lets the connection be used again
		return false, nil
	}
	return false, c.refused(res)
}

// DockerRefuses returns the address of a registry, with its port, if Docker doesn't use the registry
// at this URL until its daemon has a setting: it speaks http by itself to addresses of the same
// machine only, and no flag of its commands changes that. Otherwise it returns "".
func DockerRefuses(registry *url.URL) string {
	host := registry.Hostname()
	ip, err := netip.ParseAddr(host)
	if registry.Scheme != "http" || host == "localhost" || err == nil && ip.IsLoopback() {
		return ""
	}
	return registry.Host
}

// DockerSetting is the member of Docker's daemon.json that makes it use the registry at an address
// over http.
func DockerSetting(address string) string { return `"insecure-registries": ["` + address + `"]` }
