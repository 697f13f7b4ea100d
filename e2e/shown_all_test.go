//go:build all

package e2e

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// docker makes the commands find docker, with an engine that trusts whom they trust.
func (s *shownCommands) docker() { s.t.Helper(); s.dockerWith("{}") }

// dockerWith is like docker, with a configuration of the engine.
func (s *shownCommands) dockerWith(config string) {
	s.t.Helper()
	c := systemClient(s.t, "docker")
	s.program("docker", c.path, "--host", "unix://"+startDocker(s.t, config).socket)
}

// TestShownCommandsOfDocker: what pages show for docker pulls too.
func TestShownCommandsOfDocker(t *testing.T) {
	beginOwn(t)
	for _, scheme := range []string{"http", "https"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			s := newShown(t, scheme)
			s.tool("crane")
			s.docker()
			img := newImage(t, 1, 4<<10)
			s.run("crane push " + writeImage(t, img, "v1") + " " + s.r.Ref("shown/app", "v1"))
			for _, path := range []string{"", "/-/manifests/" + digestOf(t, img)} {
				s.runAll("/ui/repositories/shown/app"+path, imageClients, "podman", "crane", "skopeo", "regctl")
			}
		})
	}
}

// whole are the commands that pull an artifact of any kind.
var whole = []string{"oras (layout)", "crane", "regctl"}

// TestShownCommandsOfArtifacts: charts, other artifacts and signatures get the commands of clients
// that can use them.
func TestShownCommandsOfArtifacts(t *testing.T) {
	beginOwn(t)
	for _, scheme := range []string{"http", "https"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			s := newShown(t, scheme)
			for _, name := range []string{"crane", "regctl", "helm", "oras"} {
				s.tool(name)
			}
			plain := s.plain(" --plain-http")
			s.run("helm create demo && helm package demo --version 1.2.3+b1 && helm push demo-1.2.3+b1.tgz oci://" + s.r.host + "/charts" + plain)
			s.run("oras tag" + plain + " " + s.r.Ref("charts/demo", "1.2.3_b1") + " stable")
			for _, path := range []string{"", "/-/tags/1.2.3_b1", "/-/tags/stable"} {
				s.runAll("/ui/repositories/charts/demo"+path, append([]string{"helm"}, whole...))
			}
			s.run("echo hello > hello.txt && oras push" + plain + " --artifact-type application/vnd.example.thing " + s.r.Ref("things/app", "v1") + " hello.txt:text/plain")
			s.run("oras tag" + plain + " " + s.r.Ref("things/app", "v1") + " sha256-" + strings.Repeat("0", 64) + ".sig")
			for _, path := range []string{"", "/-/tags/v1"} {
				s.runAll("/ui/repositories/things/app"+path, append([]string{"oras"}, whole...))
			}
			s.runAll("/ui/repositories/things/app/-/tags/sha256-"+strings.Repeat("0", 64)+".sig", whole)
		})
	}
}

// plain returns a flag that a client needs for http.
func (s *shownCommands) plain(flag string) string {
	if strings.HasPrefix(s.url, "http:") {
		return flag
	}
	return ""
}

// commandsOf returns the commands of a section's blocks on a page of the documentation.
func commandsOf(t *testing.T, page, section string) (list []string) {
	t.Helper()
	text, err := os.ReadFile("../" + page)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range blocksOf(string(text)) {
		if b.section == section {
			list = append(list, strings.Split(strings.TrimSpace(strings.TrimPrefix(b.text, "$ ")), "\n$ ")...)
		}
	}
	if len(list) == 0 {
		t.Fatalf("%s has no command in %q", page, section)
	}
	return list
}

// TestOpsDocsReadme: the commands by which the README pushes and pulls work with each client.
func TestOpsDocsReadme(t *testing.T) {
	beginOwn(t)
	s := newShown(t, "http")
	s.tool("crane")
	s.tool("regctl")
	s.podman()
	s.docker()
	s.run("crane push " + writeImage(t, newImage(t, 1, 4<<10), "v1") + " " + s.r.Ref("upstream/alpine", "latest"))
	commands := strings.Join(commandsOf(t, "README.md", "Push and pull"), "\n")
	commands = strings.ReplaceAll(commands, "docker.io/library/alpine", s.r.host+"/upstream/alpine")
	for _, name := range []string{"crane", "skopeo", "docker", "podman", "regctl"} {
		if !strings.Contains("\n"+commands, "\n"+name+" ") {
			t.Errorf("no command of %s", name)
		}
	}
	s.run(strings.ReplaceAll(commands, "127.0.0.1:5000", s.r.host))
}

var recipe = regexp.MustCompile("`((?:docker|podman|skopeo|crane|regctl|oras|helm) [^`]*(?:--password-stdin|--pass-stdin))`")

// TestRecipes: each client logs in to a registry with a certificate by the command that the
// documentation of access control has for it.
func TestRecipes(t *testing.T) {
	beginOwn(t)
	s := newShown(t, "https", "PURSER_AUTH_ENABLED=true", "PURSER_AUTH_INITIAL_PASSWORD=the administrator's password")
	for _, name := range []string{"crane", "regctl", "helm", "oras"} {
		s.tool(name)
	}
	s.podman()
	s.docker()
	text, err := os.ReadFile("../docs/access-control.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Recipes\n")
	found := recipe.FindAllStringSubmatch(section, -1)
	if len(found) != 7 {
		t.Errorf("%d clients log in: %q", len(found), found)
	}
	for _, m := range found {
		command := strings.NewReplacer("registry.example.com", s.r.host, "NAME", "admin").Replace(m[1])
		s.run("printf %s \"the administrator's password\" | DOCKER_CONFIG=. REGISTRY_AUTH_FILE=auth.json " + command)
		if wrong := s.try(newDir(t), "printf wrong | DOCKER_CONFIG=. REGISTRY_AUTH_FILE=auth.json "+command); wrong == nil && !strings.HasPrefix(command, "crane ") { // crane asks nobody
			t.Errorf("%s takes a wrong password", command)
		}
	}
	s.recipesAfterLogIn(t, section)
}

// recipesAfterLogIn runs what the documentation of access control says of clients beside their
// log-ins, and how the README logs in.
func (s *shownCommands) recipesAfterLogIn(t *testing.T, section string) {
	const password = "the administrator's password"
	shown := func(pattern string) string {
		t.Helper()
		m := regexp.MustCompile("`(" + pattern + "[^`]*)`").FindStringSubmatch(section)
		if m == nil {
			t.Fatalf("the documentation has no %s", pattern)
		}
		return strings.NewReplacer("registry.example.com", s.r.host, "NAME", "admin").Replace(m[1])
	}
	s.env = append(s.env, "SECRET="+password)
	s.run("helm create app && helm package app --version 1.0.0 && printf %s \"$SECRET\" | helm registry login " + s.r.host + " --username admin --password-stdin && " + shown("helm push "))
	s.run("printf %s \"$SECRET\" | crane auth login " + s.r.host + " --username admin --password-stdin && crane push " + writeImage(t, newImage(t, 1, 4<<10), "v1") + " " + s.r.Ref("acme/app", "v1"))
	login := commandsOf(t, "README.md", "For other machines")[2]
	if !strings.HasPrefix(login, "docker login registry.example.com:5000 ") {
		t.Fatalf("the README's log-in is %q", login)
	}
	s.run("printf %s \"$SECRET\" | " + strings.Replace(login, "registry.example.com:5000", s.r.host, 1) + " --password-stdin")
	s.run(shown("docker logout "))
}
