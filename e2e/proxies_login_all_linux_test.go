//go:build all

package e2e

import (
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

// TestNginxBeforeLoopback: nginx with the configuration of deploy/proxies makes a registry on
// loopback reachable for others. Nobody gets in without a log-in: not as long as the registry
// doesn't know of the proxy, and not with the settings of the configuration's comment. Its own
// machine is served without a log-in until then.
func TestNginxBeforeLoopback(t *testing.T) {
	beginOwn(t)
	systemProgram(t, nginx.program)
	s := newProxyScene(t, nginx)
	env := append(storages["filesystem"](t), "PURSER_DATABASE_MAIN="+dbtest.EmptyDSN(t))
	r := &registry{t: t, opt: options{dataDir: newDir(t), env: env, args: []string{
		"--addr", net.JoinHostPort(replicaHosts[0][1], s.port)}}}
	t.Cleanup(r.cleanup)
	r.start()
	s.startProxy()
	proxied := s.API()
	ask := func(a *api, method string, want int) (text, challenge string) {
		t.Helper()
		path := "/v2/"
		if method == "POST" {
			path += "acme/app/blobs/uploads/"
		}
		req, err := http.NewRequestWithContext(t.Context(), method, a.base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := a.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close() //nolint:errcheck // read to its end
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != want {
			t.Errorf("%s %s: %s %s, want %d", method, a.base+path, res.Status, body, want)
		}
		return string(body), res.Header.Get("WWW-Authenticate")
	}

	for _, method := range []string{"GET", "POST"} {
		if text, _ := ask(proxied, method, http.StatusForbidden); !strings.Contains(text, "http.external_url") || !strings.Contains(text, "auth.enabled") {
			t.Errorf("the refusal doesn't name the way out: %s", text)
		}
	}
	ask(r.API(), "GET", http.StatusOK)
	ask(r.API(), "POST", http.StatusAccepted)

	r.Stop()
	r.opt.env = append(env, "PURSER_HTTP_TRUSTED_PROXIES=127.0.0.1", "PURSER_HTTP_EXTERNAL_URL=https://"+s.addr)
	r.start()
	for _, a := range []*api{proxied, r.API()} {
		if _, challenge := ask(a, "GET", http.StatusUnauthorized); !strings.HasPrefix(challenge, `Bearer realm="https://`+s.addr+`/token"`) {
			t.Errorf("the challenge is %s", challenge)
		}
		ask(a, "POST", http.StatusUnauthorized)
	}
	password := regexp.MustCompile(`with the password (\S+)`).FindStringSubmatch(r.p.out.String())
	if password == nil || !strings.Contains(r.p.out.String(), "Clients log in, since others reach the registry through a proxy") {
		t.Fatalf("the start doesn't say why clients log in, and how:\n%s", r.p.out.String())
	}
	crane := s.crane()
	crane.Run("auth", "login", s.addr, "-u", "admin", "-p", password[1])
	crane.Run("push", writeImage(t, newImage(t, 1, 1000), "v1"), s.Ref("acme/app", "v1"))
}
