//go:build all

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// composeService is a service of the compose file, as far as it says what runs and where.
type composeService struct {
	Image       string
	Environment map[string]string
	Entrypoint  []string
	Command     []string
	Volumes     []string
	Configs     []struct{ Source, Target string }
	Healthcheck struct{ Test []string }
}

// composition runs the services of the compose file without a container engine: each in a network
// namespace of its own, by programs of this machine that stand for the images. What an engine does
// besides, such as read-only root directories, isn't tested here.
type composition struct {
	t        *testing.T
	dir      string // of volumes and files
	services map[string]*composeService
	configs  map[string]struct{ Content string }
	programs map[string][]string // what an image runs by default
	running  map[string]*process
	net      string // prefix of the names of namespaces and links
}

// newComposition reads the compose file with these variables.
func newComposition(t *testing.T, variables map[string]string) *composition {
	t.Helper()
	if os.Getuid() != 0 {
		lacking(t, "only root can make network namespaces")
	}
	content, err := os.ReadFile("../deploy/compose/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile(`\$\{(\w+)(:\?[^}]*)?\}`).ReplaceAllStringFunc(string(content), func(v string) string {
		name := regexp.MustCompile(`\w+`).FindString(v)
		if variables[name] == "" {
			t.Errorf("the compose file needs a variable %s that the page doesn't have", name)
		}
		return variables[name]
	})
	var file struct {
		Services map[string]*composeService
		Configs  map[string]struct{ Content string }
	}
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(text, "$$", "$")), &file); err != nil {
		t.Fatal(err)
	}
	c := &composition{t: t, dir: newDir(t), services: file.Services, configs: file.Configs, running: map[string]*process{}, net: fmt.Sprintf("pc%d", os.Getpid()%10000)}
	c.connect()
	return c
}

// sh runs commands of the system.
func (c *composition) sh(script string) error {
	out, err := exec.Command("bash", "-euc", script).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", script, err, out)
	}
	return nil
}

// connect makes a network with a host for each service, which know each other by name.
func (c *composition) connect() {
	c.t.Helper()
	hosts, script := "127.0.0.1 localhost\n", fmt.Sprintf("ip link add %[1]s type bridge; ip link set %[1]s up\n", c.net)
	undo := fmt.Sprintf("ip link del %s\n", c.net)
	number := 10
	for name := range c.services {
		number++
		ns := c.net + "-" + name
		hosts += fmt.Sprintf("10.213.7.%d %s\n", number, name)
		script += fmt.Sprintf(`ip netns add %[1]s
			ip link add %[2]s-%[3]d type veth peer name eth0 netns %[1]s
			ip link set %[2]s-%[3]d master %[2]s up
			ip -n %[1]s addr add 10.213.7.%[3]d/24 dev eth0
			ip -n %[1]s link set eth0 up; ip -n %[1]s link set lo up
			mkdir -p /etc/netns/%[1]s
			`, ns, c.net, number)
		undo = fmt.Sprintf("ip netns del %[1]s; rm -r /etc/netns/%[1]s\n", ns) + undo
	}
	c.t.Cleanup(func() {
		if err := c.sh("set +e\n" + undo); err != nil {
			c.t.Error(err)
		}
	})
	if err := c.sh(script); err != nil {
		c.t.Fatal(err)
	}
	for name := range c.services {
		if err := os.WriteFile("/etc/netns/"+c.net+"-"+name+"/hosts", []byte(hosts), 0o644); err != nil {
			c.t.Fatal(err)
		}
	}
}

// on returns a command that runs on the host of a service, with its environment.
func (c *composition) on(name string, args ...string) *exec.Cmd {
	s := c.services[name]
	for i, arg := range args {
		for _, v := range s.Volumes {
			volume, target, _ := strings.Cut(v, ":")
			arg = strings.ReplaceAll(arg, target, filepath.Join(c.dir, volume))
		}
		args[i] = arg
	}
	cmd := exec.Command("ip", append([]string{"netns", "exec", c.net + "-" + name}, args...)...)
	cmd.Env = childEnv("PATH=" + filepath.Join(c.dir, "bin") + ":" + os.Getenv("PATH"))
	for k, v := range s.Environment {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	return cmd
}

// up starts a service, and waits until its health check passes.
func (c *composition) up(name string) {
	c.t.Helper()
	s := c.services[name]
	for _, v := range s.Volumes {
		volume, _, _ := strings.Cut(v, ":")
		if err := os.MkdirAll(filepath.Join(c.dir, volume), 0o755); err != nil {
			c.t.Fatal(err)
		}
	}
	image, _, _ := strings.Cut(s.Image, ":")
	args := append(append([]string{}, c.programs[image]...), s.Command...)
	if s.Entrypoint != nil {
		args = append(append([]string{}, s.Entrypoint...), s.Command...)
	}
	for _, config := range s.Configs {
		path := filepath.Join(c.dir, config.Source)
		if err := os.WriteFile(path, []byte(c.configs[config.Source].Content), 0o644); err != nil {
			c.t.Fatal(err)
		}
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], config.Target, path)
		}
	}
	cmd := c.on(name, args...)
	cmd.Env = append(cmd.Env, "XDG_DATA_HOME="+filepath.Join(c.dir, "certificates"), "PURSER_HTTP_ADDR=0.0.0.0:5000", "PURSER_HTTP_DEBUG_ADDR=0.0.0.0:5001", "PURSER_DATA_DIR="+filepath.Join(c.dir, name), "DATA="+filepath.Join(c.dir, "database"))
	cmd.Dir = c.dir
	if s.Entrypoint != nil { // it ends by itself
		if out, err := cmd.CombinedOutput(); err != nil {
			c.t.Fatalf("%s: %v: %s", name, err, out)
		}
		return
	}
	p, err := startProcess(name, cmd)
	if err != nil {
		c.t.Fatal(err)
	}
	c.running[name] = p
	c.t.Cleanup(p.kill)
	err = p.waitFor(c.t.Context(), readyWithin, func(context.Context) error {
		if image == "purser" {
			if !strings.Contains(p.out.String(), "Purser is ready.") {
				return errors.New("it isn't ready")
			}
			return nil
		}
		if test := s.Healthcheck.Test; len(test) > 1 { // CMD and the command
			if out, err := c.on(name, slices.Clone(test[1:])...).CombinedOutput(); err != nil {
				return fmt.Errorf("%v: %w: %s", test, err, out)
			}
		}
		return nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
}

// stop stops services as "docker compose stop" does.
func (c *composition) stop(names ...string) {
	c.t.Helper()
	for _, name := range names {
		if err := c.running[name].signal(syscall.SIGTERM, 45*time.Second); err != nil && strings.HasPrefix(name, "purser") {
			c.t.Errorf("stopping %s: %v\n%s", name, err, c.running[name].out.tail(20))
		}
	}
}

// TestOpsCompose runs the services of deploy/compose/compose.yaml with the variables of
// docs/installing.md: clients log in through the proxy, push, and pull while a replica stops, and find
// their image after all services were stopped and started again.
func TestOpsCompose(t *testing.T) {
	beginOwn(t)
	p := readPage(t, "docs/installing.md")
	variables := map[string]string{}
	for _, b := range p.blocks {
		if b.section == "Compose" {
			for line := range strings.Lines(b.text) {
				if name, _, ok := strings.Cut(line, "="); ok {
					variables[name] = "abcdef0123456789"
				}
			}
		}
	}
	variables["PURSER_IMAGE"], variables["REGISTRY_HOST"] = "purser:test", "localhost"
	c := newComposition(t, variables)
	c.programs = c.stands()
	start := func() {
		t.Helper()
		for _, name := range []string{"postgres", "valkey", "bucket", "s3", "purser-1", "purser-2", "proxy"} {
			c.up(name)
		}
	}
	start()
	crane := toolClient(t, "crane").path
	img := newImage(t, 2, 20<<10)
	home := newDir(t)
	run := func(args ...string) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			cmd := c.on("proxy", append([]string{crane}, args...)...)
			cmd.Env = append(cmd.Env, "HOME="+home, "SSL_CERT_FILE="+filepath.Join(c.dir, "certificates/caddy/pki/authorities/local/root.crt"))
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("crane %v: %w: %s", args, err, out)
			}
			return nil
		})
	}
	run("auth", "login", "localhost", "-u", "admin", "-p", variables["ADMIN_PASSWORD"])
	run("push", writeImage(t, img, "v1"), "localhost/acme/app:v1")
	c.stop("purser-1")
	run("validate", "--remote", "localhost/acme/app:v1")
	c.up("purser-1")
	c.stop("purser-2")
	run("validate", "--remote", "localhost/acme/app:v1")
	c.stop("purser-1", "proxy", "s3", "valkey", "postgres")
	start()
	run("validate", "--remote", "localhost/acme/app:v1")
}

// stands returns for each image the program of this machine that stands for it. That of PostgreSQL does
// what the image's own entry point does with its variables.
func (c *composition) stands() map[string][]string {
	c.t.Helper()
	caddy, err := exec.LookPath("caddy")
	if err != nil {
		lacking(c.t, "caddy isn't installed (tools/packages ops installs it)")
	}
	if err := c.sh("mkdir " + c.dir + "/bin; for p in server cli; do ln -s $(command -v redis-$p) " + c.dir + "/bin/valkey-$p; done"); err != nil {
		lacking(c.t, "redis isn't installed (tools/packages installs it): %v", err)
	}
	bin := postgresPrograms(c.t)
	postgres := fmt.Sprintf(`mkdir -p $DATA && chown postgres $DATA && cd $DATA
		as() { setpriv --reuid postgres --regid postgres --clear-groups "$@"; }
		if [ ! -e PG_VERSION ]; then
			echo $POSTGRES_PASSWORD > $DATA.password
			as %[1]s/initdb -D $DATA -U $POSTGRES_USER -A scram-sha-256 --pwfile $DATA.password --no-sync
			echo "host all all all scram-sha-256" >> pg_hba.conf
			as %[1]s/pg_ctl -D $DATA -w -o "-c listen_addresses= -k $DATA" start
			PGPASSWORD=$POSTGRES_PASSWORD as psql -h $DATA -U $POSTGRES_USER postgres -c "CREATE DATABASE $POSTGRES_USER"
			as %[1]s/pg_ctl -D $DATA -w stop
		fi
		exec setpriv --reuid postgres --regid postgres --clear-groups %[1]s/postgres -D $DATA -c listen_addresses='*' -k $DATA`, bin)
	return map[string][]string{
		"purser":            {binary(), "serve"},
		"caddy":             {caddy, "run", "--adapter", "caddyfile", "--config", "/etc/caddy/Caddyfile"},
		"postgres":          {"bash", "-euc", postgres},
		"valkey/valkey":     {},
		"versity/versitygw": {toolClient(c.t, "versitygw").path},
	}
}
