package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestDebianPackage: the package has what a service needs, all of it owned by root, its
// configuration survives upgrades, and the program in it accepts that configuration.
func TestDebianPackage(t *testing.T) {
	beginOwn(t)
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		lacking(t, "dpkg-deb isn't installed")
	}
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Env = childEnv("DEB_COMPRESSION=none") // compressing the program takes longer than all the rest
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, stderr.String())
		}
		return strings.TrimSpace(string(out))
	}
	dir := newDir(t)
	file := run("../tools/deb", dir, "v1.2.3-rc.1-4-g0abc", binary())
	version := run("dpkg-deb", "-f", file, "Version")
	run("dpkg", "--compare-versions", version, "lt", "1.2.3")
	run("dpkg", "--compare-versions", version, "gt", "1.2.3~rc.1")
	if want := "purser_1.2.3~rc.1+"; !strings.HasPrefix(filepath.Base(file), want) {
		t.Errorf("the package is %s, want %s…", file, want)
	}
	list := run("dpkg-deb", "-c", file) + "\n"
	for _, want := range []string{"/usr/bin/purser", "/usr/lib/systemd/system/purser.service", "/usr/lib/systemd/system/purser.socket",
		"/usr/lib/systemd/system/purser-backup.service", "/usr/lib/systemd/system/purser-backup.timer",
		"/usr/lib/systemd/system/purser-backup-verify.service", "/usr/lib/systemd/system/purser-backup-verify.timer",
		"/usr/lib/sysusers.d/purser.conf", "/etc/purser/config.yaml", "/usr/share/man/man1/purser.1.gz", "/usr/share/man/man1/purser-gc-status.1.gz",
		"/usr/share/bash-completion/completions/purser", "/usr/share/zsh/vendor-completions/_purser", "/usr/share/fish/vendor_completions.d/purser.fish",
		"/usr/share/doc/purser/copyright"} {
		if !strings.Contains(list, " ."+want+"\n") {
			t.Errorf("the package lacks %s", want)
		}
	}
	for _, line := range strings.Split(strings.TrimSpace(list), "\n") {
		if !strings.Contains(line, " root/root ") {
			t.Errorf("not root's: %s", line)
		}
	}
	unpacked := filepath.Join(dir, "unpacked")
	run("dpkg-deb", "-R", file, unpacked)
	if text, err := os.ReadFile(filepath.Join(unpacked, "DEBIAN/conffiles")); err != nil || string(text) != "/etc/purser/config.yaml\n" {
		t.Errorf("conffiles: %q, %v", text, err)
	}
	run("sh", "-n", filepath.Join(unpacked, "DEBIAN/postinst"))
	run(filepath.Join(unpacked, "usr/bin/purser"), "config", "check", "--config", filepath.Join(unpacked, "etc/purser/config.yaml"))
}
