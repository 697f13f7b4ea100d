//go:build all

package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// The tests of this file run the commands of docs/installing.md on a Debian that systemd has booted.

// section returns the text of docs/installing.md between a heading and the next one.
func section(t *testing.T, heading string) string {
	t.Helper()
	page, err := os.ReadFile("../docs/installing.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(page), "\n"+heading+"\n")
	if !found {
		t.Fatalf("docs/installing.md has no %q", heading)
	}
	text, _, _ = strings.Cut(text, "\n#")
	return text
}

// documented returns the first match of a pattern's group in a section of docs/installing.md.
func documented(t *testing.T, heading, pattern string) string {
	t.Helper()
	match := regexp.MustCompile(pattern).FindStringSubmatch(section(t, heading))
	if match == nil {
		t.Fatalf("docs/installing.md, %q: nothing matches %s", heading, pattern)
	}
	return match[1]
}

const codeBlock = "(?s)\n```\n(.*?)```\n"

const (
	oldVersion = "1.2.3" // that of docs/installing.md
	newVersion = "1.2.4"
)

// packages has a function for each version that makes the Debian package.
var packages = map[string]func() (string, error){
	oldVersion: sync.OnceValues(func() (string, error) { return makePackage(oldVersion) }),
	newVersion: sync.OnceValues(func() (string, error) { return makePackage(newVersion) }),
}

func makePackage(version string) (string, error) {
	cmd := exec.Command("../tools/deb", filepath.Join(scratch, "packages"), "v"+version)
	cmd.Env = childEnv("DEB_COMPRESSION=none")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("making the package: %w\n%s", err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// service is Purser as a service of a machine.
type service struct {
	*machine
	host   string // HOST:PORT by which this system reaches the registry
	crane  *client
	digest string // of the image that was pushed
}

// newService boots a machine on which nothing is installed. The registry will be at an address there.
func newService(t *testing.T, address string) *service {
	t.Helper()
	m := bootMachine(t)
	host := forward(t, func() (net.Conn, error) { return m.Dial(address) })
	return &service{machine: m, host: host, crane: toolClient(t, "crane")}
}

// upload copies a version's package to the machine, into the directory that the documentation names.
func (s *service) upload(version string) (file string) {
	s.t.Helper()
	file, err := packages[version]()
	if err != nil {
		s.t.Fatal(err)
	}
	s.Copy(file, "/root/bin")
	return "bin/" + filepath.Base(file)
}

// installed returns a service that was installed from the package and started, as the documentation
// says.
func installed(t *testing.T) *service {
	t.Helper()
	s := newService(t, "127.0.0.1:5000")
	commands := documented(t, "### Debian", codeBlock)
	file := s.upload(oldVersion)
	named := regexp.MustCompile(`bin/purser_1\.2\.3_\w+\.deb`)
	if !named.MatchString(commands) {
		t.Fatalf("docs/installing.md installs no package of version %s:\n%s", oldVersion, commands)
	}
	s.Run(named.ReplaceAllString(commands, file))
	return s
}

// show returns a property of the service.
func (s *service) show(property string) string {
	s.t.Helper()
	return s.Run("systemctl show --value --property=" + property + " purser.service")
}

// journal returns what the service has logged, and what systemd has logged about it.
func (s *service) journal() string {
	s.t.Helper()
	return s.Run("journalctl --sync && journalctl --quiet --no-pager --output=cat --unit=purser.service")
}

// answers checks the status of the API's root.
func (s *service) answers(want int) {
	s.t.Helper()
	if status := getStatus(s.t.Context(), "http://"+s.host+"/v2/"); status != want {
		s.t.Fatalf("status %d, want %d", status, want)
	}
}

// push pushes an image, which hasImage then looks for.
func (s *service) push() {
	s.t.Helper()
	img := newImage(s.t, 2, 3<<20)
	s.digest = digestOf(s.t, img)
	s.crane.Run("push", writeImage(s.t, img, "v1"), s.host+"/acme/app:v1")
	s.hasImage()
}

// hasImage pulls the image, and compares all of it with its digest.
func (s *service) hasImage() {
	s.t.Helper()
	if got := s.crane.Run("digest", s.host+"/acme/app:v1"); got != s.digest {
		s.t.Errorf("the tag has the digest %s, want %s", got, s.digest)
	}
	s.crane.Run("validate", "--remote", s.host+"/acme/app:v1")
}

// restarted waits until the service is ready with another process than `before`.
func (s *service) restarted(before string) {
	s.t.Helper()
	eventually(s.t, readyWithin, func() error {
		if state, pid := s.show("ActiveState"), s.show("MainPID"); state != "active" || pid == before {
			return fmt.Errorf("state %s, process %s, before %s", state, pid, before)
		}
		return nil
	})
}

// complaint matches lines of the log that an operator would have to look at, and system calls or
// files that the unit denies.
var complaint = regexp.MustCompile(`(?m)^.*("level":"(WARN|ERROR)"|[Oo]peration not permitted|[Pp]ermission denied|with signal SIGKILL).*$`)

// TestOpsSystemdPackage installs the package, upgrades it, removes it, installs it again and purges it.
func TestOpsSystemdPackage(t *testing.T) {
	beginOwn(t)
	s := installed(t)
	s.answers(http.StatusOK)
	if kind, state := s.show("Type"), s.show("ActiveState"); kind != "notify" || state != "active" {
		t.Errorf("a service of type %s is %s", kind, state)
	}
	s.push()
	s.checkHardening()
	if out := s.Run("purser check --deep"); !strings.Contains(out, "All is well") {
		t.Errorf("purser check: %s", out)
	}
	if complaints := complaint.FindAllString(s.journal(), -1); complaints != nil {
		t.Errorf("in the log:\n%s", strings.Join(complaints, "\n"))
	}
	s.upgrade()
	s.commandsAsDocumented()
	s.backsUp()
	s.restores()

	s.Run("apt-get remove --yes purser")
	s.gone()
	s.Run("test -e /etc/purser/config.yaml && test -d /var/lib/purser/postgres")
	s.Run("apt-get install ./" + s.upload(newVersion))
	s.gone() // the package starts nothing by itself
	s.Run("systemctl enable --now purser.service")
	s.hasImage()

	s.Run("apt-get purge --yes purser")
	s.gone()
	s.Run("test ! -e /etc/purser && test -d /var/lib/purser/postgres && id purser")
}

// upgrade installs the newer version, which restarts the service, and keeps the administrator's changes.
func (s *service) upgrade() {
	s.t.Helper()
	const mine = "\nlog:\n  level: debug\n"
	s.Run("printf '" + strings.ReplaceAll(mine, "\n", `\n`) + "' >>/etc/purser/config.yaml")
	before := s.show("MainPID")
	s.Run("apt-get install ./" + s.upload(newVersion))
	s.restarted(before)
	s.hasImage()
	if version := s.Run("/proc/$(systemctl show --value --property=MainPID purser.service)/exe version"); !strings.Contains(version, newVersion) {
		s.t.Errorf("after the upgrade runs %s", version)
	}
	if config := s.Run("cat /etc/purser/config.yaml"); !strings.HasSuffix(config+"\n", mine) {
		s.t.Errorf("after the upgrade, the configuration is\n%s", config)
	}

	// An upgrade of a service that can't start leaves a package that is installed.
	s.Run(mistake + "\napt-get reinstall ./" + s.upload(newVersion) + "\n" + correction)
	s.restarted("0")
}

// checkHardening checks that processes of the service, PostgreSQL's too, have no rights but that of
// using low ports, and logs how systemd rates the unit.
func (s *service) checkHardening() {
	s.t.Helper()
	out := s.Run(`for pid in $(cat /sys/fs/cgroup/$(systemctl show --value --property=ControlGroup purser.service)/cgroup.procs); do
	sed -n 's/^\(Uid\|CapEff\|CapBnd\|NoNewPrivs\|Seccomp\):\s*/\1 /p' /proc/$pid/status | tr '\n\t' '  '
	tr '\0' ' ' </proc/$pid/cmdline
	echo
done`)
	uid := s.Run("id -u purser")
	want := fmt.Sprintf("Uid %[1]s %[1]s %[1]s %[1]s CapBnd 0000000000000400 NoNewPrivs 1 Seccomp 2", uid)
	effective := regexp.MustCompile(`CapEff 0000000000000[04]00 `)
	if !strings.Contains(out, "postgres: purser: checkpointer") {
		s.t.Errorf("no PostgreSQL is among the service's processes:\n%s", out)
	}
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(effective.ReplaceAllString(line, ""), want) {
			s.t.Errorf("a process with other rights than %s: %s", want, line)
		}
	}
	rating := s.Run("systemd-analyze security --no-pager purser.service | tail -n 1")
	s.t.Log(rating)
	if !regexp.MustCompile(`: [0-2]\.\d OK`).MatchString(rating) {
		s.t.Errorf("systemd rates the unit: %s", rating)
	}
}

// gone checks that nothing of the service runs or would start.
func (s *service) gone() {
	s.t.Helper()
	for _, unit := range []string{"purser.service", "purser.socket", "purser-backup.timer", "purser-backup-verify.timer"} {
		if state := s.Run("systemctl show --value --property=ActiveState " + unit); state != "inactive" {
			s.t.Errorf("%s is %s", unit, state)
		}
	}
	if out, err := s.Try("ls /etc/systemd/system/*.wants/purser*"); err == nil {
		s.t.Errorf("enabled: %s", out)
	}
	s.noProcesses()
}

// TestOpsSystemdRestarts lets systemd listen, and restarts and upgrades Purser while a client makes
// connections, also with a configuration that it refuses. The test then stops Purser while a request is
// running.
func TestOpsSystemdRestarts(t *testing.T) {
	beginOwn(t)
	s := installed(t)
	s.push()
	const heading = "### Restarts that refuse no connection"
	s.Run(documented(t, heading, codeBlock))
	s.answers(http.StatusUnauthorized) // everybody can reach the socket's address
	s.Write("/etc/systemd/system/purser.socket.d/override.conf", "[Socket]\nListenStream=\nListenStream=127.0.0.1:5000\nFileDescriptorName=registry\n")
	s.Write("/etc/systemd/system/purser-debug.socket", "[Socket]\nListenStream=127.0.0.1:5002\nFileDescriptorName=debug\nService=purser.service\n")
	s.Run("systemctl daemon-reload")
	stop, start := documented(t, heading, "run `(systemctl stop [^`]*)`"), documented(t, heading, "and `(systemctl start [^`]*)`")
	s.Run(stop + "\nsystemctl start purser-debug.socket\n" + start)
	s.answers(http.StatusOK)
	s.hasImage()

	before := s.show("MainPID")
	end, failed := make(chan struct{}), make(chan []error)
	go func() { failed <- requestUntil(end, "http://"+s.host+"/v2/") }()
	s.reload()
	if pid := s.show("MainPID"); pid != before {
		t.Errorf("reloading has replaced the process %s by %s", before, pid)
	}
	// When only the service is stopped, the next client starts it.
	for _, command := range []string{"systemctl restart purser.service", "apt-get install ./" + s.upload(newVersion), "systemctl stop purser.service"} {
		before = s.show("MainPID")
		s.Run(command)
		s.restarted(before)
	}
	s.recovers(2) // meanwhile clients wait
	close(end)
	if errs := <-failed; len(errs) > 0 {
		t.Errorf("%d requests failed during restarts; the first: %v", len(errs), errs[0])
	}
	s.hasImage()

	s.stopSlowly(stop)
	s.Run(start)
	s.Run("apt-get remove --yes purser")
	s.gone()
}

// reload changes the level of the log, and waits until the service uses it.
func (s *service) reload() {
	s.t.Helper()
	s.Run("printf 'log:\\n  level: debug\\n' >>/etc/purser/config.yaml\nsystemctl reload purser.service")
	reloaded := regexp.MustCompile(`SIGHUP: reloaded.*"log_level":"debug"`)
	eventually(s.t, readyWithin, func() error {
		if !reloaded.MatchString(s.journal()) {
			return errors.New("it doesn't log that it has reloaded")
		}
		return nil
	})
}

// stopSlowly stops the service while a request is running, for which it waits.
func (s *service) stopSlowly(command string) {
	s.t.Helper()
	const drain = 3 * time.Second
	s.Write("/etc/systemd/system/purser.service.d/override.conf", fmt.Sprintf("[Service]\nEnvironment=PURSER_HTTP_DRAIN_TIMEOUT=%v\n", drain))
	s.Run("systemctl daemon-reload\nsystemctl restart purser.service")
	conn, err := s.Dial("127.0.0.1:5000")
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /v2/acme/app/blobs/uploads/?digest=%s HTTP/1.1\r\nHost: 127.0.0.1:5000\r\nContent-Length: 1000\r\n\r\nsome", s.digest)
	r := &registry{debug: forward(s.t, func() (net.Conn, error) { return s.Dial("127.0.0.1:5002") })}
	eventually(s.t, readyWithin, func() error { return r.inFlight(s.t.Context(), 1) })
	began := time.Now()
	s.Run(command)
	took := time.Since(began)
	s.t.Logf("stopping took %v", took)
	if took < drain || took > drain+15*time.Second {
		s.t.Errorf("stopping took %v, with %v for the request", took, drain)
	}
	s.stopped()
}

// stopped checks that nothing of the service runs, and that systemd had to kill nothing.
func (s *service) stopped() {
	s.t.Helper()
	if result := s.show("Result"); result != "success" {
		s.t.Errorf("the service's result: %s", result)
	}
	if strings.Contains(s.journal(), "with signal SIGKILL") {
		s.t.Error("systemd had to kill processes")
	}
	s.noProcesses()
}

// noProcesses checks that no process belongs to the service's account.
func (s *service) noProcesses() {
	s.t.Helper()
	if out := s.Run(`for dir in /proc/[0-9]*; do stat -c '%U %n' $dir; done 2>/dev/null | grep '^purser ' || :`); out != "" {
		s.t.Errorf("processes of the account: %s", out)
	}
}

// TestOpsSystemdRecovers kills Purser, and stops its process. systemd starts it again, with all that it
// has stored.
func TestOpsSystemdRecovers(t *testing.T) {
	beginOwn(t)
	s := installed(t)
	s.push()
	for _, kill := range []string{
		"systemctl kill --signal=KILL purser.service",
		"systemctl kill --signal=KILL --kill-who=main purser.service",
	} {
		before := s.show("MainPID")
		s.Run(kill)
		s.restarted(before)
		s.hasImage()
	}
	if n := s.show("NRestarts"); n != "2" {
		t.Errorf("systemd has restarted the service %s times, want 2", n)
	}

	s.recovers(6)

	s.Write("/etc/systemd/system/purser.service.d/override.conf", "[Service]\nWatchdogSec=2\nTimeoutAbortSec=1\n")
	s.Run("systemctl daemon-reload\nsystemctl restart purser.service")
	before := s.show("MainPID")
	s.Run("kill -STOP " + before)
	s.restarted(before)
	if !strings.Contains(s.journal(), "Watchdog timeout") {
		t.Error("systemd logs no watchdog timeout")
	}
	s.hasImage()
}

// mistake and correction are scripts that make the configuration wrong and right again.
const (
	mistake    = "cp -p /etc/purser/config.yaml /etc/purser/right.yaml\necho unknown: 1 >>/etc/purser/config.yaml"
	correction = "mv /etc/purser/right.yaml /etc/purser/config.yaml"
)

// recovers writes a mistake into the configuration, restarts the service, which fails, and corrects the
// mistake. The service comes back by itself, however often its start has failed.
func (s *service) recovers(restarts int) {
	s.t.Helper()
	s.Run(mistake)
	for range restarts {
		if out, err := s.Try("systemctl restart purser.service"); err == nil {
			s.t.Error("the service starts with a wrong configuration:", out)
		}
	}
	s.Run(correction)
	s.restarted("0")
}

// TestOpsSystemdUnits installs the program and the units without a package, with the configuration for
// one machine: Purser uses port 443, and clients log in with the password in the log.
func TestOpsSystemdUnits(t *testing.T) {
	beginOwn(t)
	s := newService(t, "127.0.0.1:443")
	file := s.upload(oldVersion)
	s.Copy("../deploy", "/root")
	s.Run("dpkg-deb --fsys-tarfile " + file + " | tar -xO ./usr/bin/purser >bin/purser")
	s.Run(documented(t, "## systemd", codeBlock))

	cert, key := newCertificate(t)
	s.Copy(cert, "/etc/purser")
	s.Copy(key, "/etc/purser")
	config := s.Run("cat /etc/purser/config.yaml")
	acme := regexp.MustCompile(`(?m)^    acme:\n(      .*\n)+`)
	if !acme.MatchString(config) {
		t.Fatalf("the configuration has no ACME:\n%s", config)
	}
	config = acme.ReplaceAllString(config, "    cert: /etc/purser/registry.pem\n    key: /etc/purser/registry.key\n")
	s.Write("/etc/purser/config.yaml", strings.ReplaceAll(config, "registry.example.com", s.host))
	s.Run("chgrp purser /etc/purser/registry.key\nchmod 640 /etc/purser/registry.key")
	s.Run("purser config check --config /etc/purser/config.yaml")
	s.Run(documented(t, "## systemd", "`(systemctl enable [^`]*)`"))

	password := regexp.MustCompile(`with the password (\S+)`).FindStringSubmatch(s.journal())
	if password == nil {
		t.Fatalf("no password is in the log:\n%s", s.journal())
	}
	s.crane.env = append(s.crane.env, "SSL_CERT_FILE="+cert)
	s.crane.Run("auth", "login", s.host, "--username=admin", "--password="+password[1])
	s.push()
	s.checkHardening()
	s.Run("systemctl stop purser.service")
	s.stopped()
}

// TestOpsSystemdOwnPostgres uses a PostgreSQL that runs already, whose address only root can read, and
// keeps blobs outside of /var/lib/purser, once the unit permits that.
func TestOpsSystemdOwnPostgres(t *testing.T) {
	beginOwn(t)
	s := newService(t, "127.0.0.1:5000")
	s.Run("apt-get install ./" + s.upload(oldVersion))
	s.Run(`runuser -u postgres -- psql -qc "CREATE ROLE purser LOGIN PASSWORD 'secret'" -c "CREATE DATABASE purser OWNER purser"`)
	config := s.Run("cat /usr/share/doc/purser/examples/own-postgres.yaml")
	for _, change := range [][2]string{
		{"path: /var/lib/purser/blobs", "path: /srv/blobs"},
		{"database:\n  main: file:/etc/purser/database\n", ""},
		{"enabled: true", "enabled: false"},
	} {
		if !strings.Contains(config, change[0]) {
			t.Fatalf("the configuration lacks %q:\n%s", change[0], config)
		}
		config = strings.ReplaceAll(config, change[0], change[1])
	}
	s.Write("/etc/purser/config.yaml", config)
	s.Run("install -d -o purser -g purser -m 750 /srv/blobs")
	s.Run("printf postgres://purser:secret@localhost/purser >/etc/purser/dsn\nchmod 600 /etc/purser/dsn")
	const credential = "[Service]\nLoadCredential=dsn:/etc/purser/dsn\nEnvironment=PURSER_DATABASE_MAIN_FILE=%d/dsn\n"
	s.Write("/etc/systemd/system/purser.service.d/override.conf", credential)
	s.Run("systemctl daemon-reload")
	if out, err := s.Try("systemctl start purser.service"); err == nil {
		t.Error("the service starts although it can't write to its blobs:", out)
	}
	if log := s.journal(); !strings.Contains(log, "/srv/blobs") || !strings.Contains(log, "read-only file system") {
		t.Errorf("the log doesn't say what is wrong:\n%s", log)
	}

	writable := documented(t, "## systemd", "`(ReadWritePaths=/srv/blobs)`")
	s.Write("/etc/systemd/system/purser.service.d/override.conf", credential+writable+"\n")
	s.Run("systemctl daemon-reload\nsystemctl restart purser.service")
	s.push()
	s.Run("systemctl stop purser.service")
	s.stopped()
	s.Run("test ! -e /var/lib/purser/postgres && find /srv/blobs -type f -size +3000k | grep -q .")
}
