//go:build all

package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

var caddy = proxyKind{
	program: "caddy", file: "Caddyfile",
	args: func(_ *proxyScene, config string) []string {
		return []string{"run", "--config", config, "--adapter", "caddyfile"}
	},
	replace: func(s *proxyScene) [][2]string {
		host, port, _ := net.SplitHostPort(s.addr)
		// Otherwise Caddy would listen at its usual ports too, for redirections and its own API.
		own := "{\n\tadmin off\n\tauto_https disable_redirects\n\tskip_install_trust\n}\n\n(replicas) {\n"
		return [][2]string{
			{"(replicas) {\n", own},
			{"registry.example.com {\n", fmt.Sprintf("%s:%s {\n\tbind %s\n\ttls %s %s\n", host, port, host, s.cert, s.key)},
			{"health_port 5001", "health_port " + s.debugPort},
		}
	},
}

var haproxy = proxyKind{
	program: "haproxy", file: "haproxy.cfg",
	args: func(_ *proxyScene, config string) []string { return []string{"-db", "-f", config} },
	replace: func(s *proxyScene) [][2]string {
		return [][2]string{
			{"bind :443 ", "bind " + s.addr + " "},
			{"/etc/haproxy/registry.pem", s.certAndKey()},
			{"port 5001", "port " + s.debugPort},
		}
	},
}

// traefik isn't in Debian: the tests run it where it is installed. The static configuration, which the
// comment in its file has, is in the arguments.
var traefik = proxyKind{
	program: "traefik", file: "traefik.yaml",
	args: func(s *proxyScene, config string) []string {
		const timeouts = "--entryPoints.websecure.transport.respondingTimeouts."
		return []string{"--entryPoints.websecure.address=" + s.addr, "--providers.file.filename=" + config, "--global.checkNewVersion=false", "--global.sendAnonymousUsage=false",
			timeouts + "readTimeout=0s", timeouts + "writeTimeout=0s", timeouts + "idleTimeout=3m"}
	},
	replace: func(s *proxyScene) [][2]string {
		return [][2]string{
			{"Host(`registry.example.com`)", "PathPrefix(`/`)"},
			{"port: 5001", "port: " + s.debugPort},
			{"/etc/traefik/registry.pem", s.cert},
			{"/etc/traefik/registry.key", s.key},
		}
	},
}

// certAndKey returns the path of a file with the certificate and its key.
func (s *proxyScene) certAndKey() string {
	s.t.Helper()
	var both []byte
	for _, file := range []string{s.cert, s.key} {
		text, err := os.ReadFile(file)
		if err != nil {
			s.t.Fatal(err)
		}
		both = append(both, text...)
	}
	path := filepath.Join(s.dir, "registry.pem")
	if err := os.WriteFile(path, both, 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

func TestOpsProxies(t *testing.T) {
	kinds := []proxyKind{caddy, haproxy}
	if _, err := exec.LookPath(traefik.program); err == nil {
		kinds = append(kinds, traefik)
	}
	for _, kind := range kinds {
		t.Run(kind.program, func(t *testing.T) {
			beginOwn(t)
			testProxy(t, kind)
		})
		t.Run(kind.program+" repeats only reads", func(t *testing.T) {
			beginOwn(t)
			testRepeats(t, kind)
		})
	}
}
