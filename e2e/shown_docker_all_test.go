//go:build all

package e2e

import (
	"encoding/json"
	"fmt"
	"html"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// offline makes a command pull the image alpine from another registry than Docker Hub.
func offline(command string, hub *registry) string {
	command = strings.ReplaceAll(command, "docker pull alpine:latest", "docker pull alpine")
	command = strings.ReplaceAll(command, "docker pull alpine", "docker pull "+hub.Ref("upstream/alpine", "latest")+" && docker tag "+hub.Ref("upstream/alpine", "latest")+" alpine")
	return strings.ReplaceAll(command, "--insecure alpine:latest ", "--insecure "+hub.Ref("upstream/alpine", "latest")+" ")
}

// newHub starts a registry with the image that commands pull from Docker Hub.
func (s *shownCommands) newHub() *registry {
	s.t.Helper()
	hub := startRegistry(s.t, options{env: []string{"PURSER_AUTH_ENABLED=false"}})
	s.run("crane push " + writeImage(s.t, newImage(s.t, 1, 4<<10), "v1") + " " + hub.Ref("upstream/alpine", "latest"))
	return hub
}

// forget removes all images from the engine.
func (s *shownCommands) forget() {
	s.run("docker images -q --no-trunc | sort -u | xargs -r docker rmi -f")
}

var shownBlock = regexp.MustCompile(`(?s)<pre>(.*?)</pre>|copy without Docker: <code>(.*?)</code>`)

// blocks returns the commands that a page shows in blocks.
func (s *shownCommands) blocks(path string) (found []string) {
	s.t.Helper()
	for _, m := range shownBlock.FindAllStringSubmatch(s.get(path), -1) {
		found = append(found, html.UnescapeString(m[1]+m[2]))
	}
	return found
}

// TestShownPushes: what pages show for the first push works as it is copied, on a machine where
// nothing was pulled before.
func TestShownPushes(t *testing.T) {
	beginOwn(t)
	s := newShown(t, "http")
	s.tool("crane")
	s.docker()
	hub := s.newHub()
	var commands []string
	for path, want := range map[string]int{"/ui/": 2, "/ui/repositories": 1, "/ui/namespaces": 1} {
		blocks := s.blocks(path)
		if len(blocks) != want {
			t.Errorf("%s: %q", path, blocks)
		}
		commands = append(commands, blocks...)
	}
	for _, c := range commands {
		s.forget()
		s.run(offline(c, hub))
		s.run("crane validate --remote " + s.r.Ref("library/alpine", "latest") + " && crane delete " + s.r.Ref("library/alpine", "latest"))
	}
	blocks := s.blocks("/ui/repositories/library/alpine")
	if len(blocks) != 1 {
		t.Fatalf("a repository without tags shows %q", blocks)
	}
	s.forget()
	s.run(offline(blocks[0], hub))
	s.run("crane validate --remote " + s.r.Ref("library/alpine", "latest"))
	if page := s.get("/ui/gc/explain"); !strings.Contains(page, "<code>docker images --digests</code>") {
		t.Error("the page that explains names another command")
	}
	s.run("docker images --digests")
}

var (
	serveLogsIn = regexp.MustCompile(`(?m)^  log in +(docker login \S+ --username admin)\n +with the password (\S+)$`)
	servePushes = regexp.MustCompile(`(?m)^  push +(docker .*)$`)
	dockerHint  = regexp.MustCompile(`"insecure-registries": \[.*?\]`)
)

// TestShownByServe: by the lines that serve prints when it is ready, docker logs in and pushes; at an
// address of another machine, over http, once its daemon has the setting of which serve speaks,
// and not before.
func TestShownByServe(t *testing.T) {
	beginOwn(t)
	for name, host := range map[string]string{"loopback": "127.0.0.1", "address": address(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShownAt(t, "http", host+":0", "PURSER_AUTH_ENABLED=true")
			s.tool("crane")
			hub := s.newHub()
			text := s.r.p.out.String()
			login, push := serveLogsIn.FindStringSubmatch(text), servePushes.FindStringSubmatch(text)
			if login == nil || push == nil {
				t.Fatalf("serve prints no commands:\n%s", text)
			}
			hint := dockerHint.FindString(text)
			if name == "loopback" && hint != "" {
				t.Errorf("serve speaks of %s", hint)
			}
			s.docker()
			logIn := fmt.Sprintf("printf %%s '%s' | %s --password-stdin", login[2], login[1])
			if name != "loopback" {
				if err := s.try(newDir(t), logIn); err == nil {
					t.Error("docker logs in over http without its setting")
				}
				s.dockerWith("{" + hint + "}")
			}
			s.run(logIn)
			s.run(offline(push[1], hub))
			s.run("docker pull " + s.r.Ref("alpine", "latest"))
		})
	}
}

// address returns an address of this machine that isn't a loopback one.
func address(t *testing.T) string {
	t.Helper()
	list, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil && ip.IP.IsGlobalUnicast() {
			return ip.IP.String()
		}
	}
	t.Skip("this machine has no address but loopback ones")
	return ""
}

// TestShownLogins: docker logs in by the commands that "purser robot create" and the pages show
// with a secret.
func TestShownLogins(t *testing.T) {
	beginOwn(t)
	s := newShown(t, "http", "PURSER_AUTH_ENABLED=true", "PURSER_AUTH_INITIAL_PASSWORD="+accountPassword)
	s.docker()
	s.r.administer(t, "POST", "/organization", `{"name":"acme"}`, http.StatusCreated)
	s.program("purser", binary())
	printed := filepath.Join(newDir(t), "printed")
	s.run("printf %s '" + accountPassword + "' | purser login " + s.url + " --username admin --password-stdin && purser robot create acme+ci --server " + s.url + " > " + printed)
	content, err := os.ReadFile(printed)
	if err != nil {
		t.Fatal(err)
	}
	out := string(content)
	secret := regexp.MustCompile(`told again: (\S+)`).FindStringSubmatch(out)
	shown := regexp.MustCompile(`(?m)^  (docker login .*)$`).FindStringSubmatch(out)
	if secret == nil || shown == nil {
		t.Fatalf("purser robot create prints no log-in:\n%s", out)
	}
	s.run("printf %s '" + secret[1] + "' | " + shown[1])
	// ctr speaks http to loopback by itself, and https to all others.
	s.tool("crane")
	s.program("ctr", systemClient(t, "ctr").path, "--address", startContainerd(t))
	s.run("printf %s '" + secret[1] + "' | crane auth login " + s.r.host + " --username acme+ci --password-stdin")
	s.run("printf %s '" + accountPassword + "' | crane auth login " + s.r.host + " --username admin --password-stdin && crane push " +
		writeImage(t, newImage(t, 1, 4<<10), "v1") + " " + s.r.Ref("acme/app", "v1"))
	pulls := sentences(t, "docs/access-control.md", "Recipes")
	i := slices.IndexFunc(pulls, func(c string) bool { return strings.HasPrefix(c, "ctr ") })
	if i < 0 {
		t.Fatalf("no command of ctr in %q", pulls)
	}
	s.run(strings.NewReplacer("registry.example.com", s.r.host, "NAME:SECRET", "admin:"+accountPassword).Replace(pulls[i]))
	// Pages show commands that ask for the secret.
	var robot struct{ Token string }
	if err := json.Unmarshal(s.r.administer(t, "PUT", "/organization/acme/robots/cd", "{}", http.StatusCreated), &robot); err != nil {
		t.Fatal(err)
	}
	s.run("printf %s '" + robot.Token + "' | docker login -u 'acme+cd' " + s.r.host + " --password-stdin")
	s.r.administer(t, "PUT", "/organization/acme/permissions/user/acme+ci", `{"role":"reader"}`, http.StatusOK)
	s.readyLines("/ui/namespaces/acme/-/robots/ci")
	s.run("printf %s '" + accountPassword + "' | docker login -u admin " + s.r.host + " --password-stdin")
}

var readyLine = regexp.MustCompile(`<summary>([^<]+)</summary><div class="line"><pre>([^<]*)</pre>`)

// readyLines gives a robot a new secret on its page, and runs the lines that the page shows then, of the
// clients that a machine for tests has.
func (s *shownCommands) readyLines(page string) {
	s.t.Helper()
	s.podman()
	s.program("skopeo", systemClient(s.t, "skopeo").path)
	s.tool("helm")
	res, err := s.r.API().do(s.t.Context(), request{method: "POST", path: page, body: []byte("do=rotate"), want: http.StatusOK,
		header: map[string]string{"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin", "Authorization": basic("admin", accountPassword)}})
	if err != nil {
		s.t.Fatal(err)
	}
	lines := map[string]string{}
	for _, m := range readyLine.FindAllStringSubmatch(string(res.body), -1) {
		lines[m[1]] = html.UnescapeString(m[2])
	}
	for _, name := range []string{"docker", "podman, skopeo", "containerd (ctr)", "helm"} {
		line := strings.ReplaceAll(lines[name], "REPOSITORY:TAG", "app:v1")
		if line == "" {
			s.t.Errorf("%s has no line for %s", page, name)
			continue
		}
		s.run(line)
		if name == "podman, skopeo" {
			s.run(strings.ReplaceAll(line, "podman login", "skopeo login"))
		}
		if wrong := s.try(newDir(s.t), strings.ReplaceAll(line, "purser_robot_", "purser_robot_x")); wrong == nil {
			s.t.Errorf("%s takes a wrong secret", name)
		}
	}
}
