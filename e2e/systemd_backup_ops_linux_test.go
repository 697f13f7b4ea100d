//go:build all

package e2e

import "strings"

// backsUp turns on the timers as documented, and lets their units run now.
func (s *service) backsUp() {
	s.t.Helper()
	s.Run(documented(s.t, "## systemd", "`(systemctl enable --now purser-backup[^`]*)`"))
	for _, unit := range []string{"purser-backup", "purser-backup-verify"} {
		if next := s.Run("systemctl show --value --property=NextElapseUSecRealtime " + unit + ".timer"); next == "" {
			s.t.Errorf("%s.timer is never due", unit)
		}
		s.Run("systemctl start " + unit + ".service || { journalctl --no-pager -u " + unit + ".service; false; }")
	}
	if out := s.Run("purser backup list /var/lib/purser-backup"); !strings.Contains(out, "complete") {
		s.t.Errorf("the list of backups: %s", out)
	}
	if out, _ := s.Try("purser doctor"); !strings.Contains(out, ", backups,") || strings.Contains(out, "backups:") {
		s.t.Errorf("the doctor: %s", out)
	}
	// A damaged copy makes the unit fail, and the doctor tells of it.
	s.Run("first=$(ls /var/lib/purser-backup/objects/*/* | head -n 1)\ncp -a $first /root/whole\ntruncate -s 1 $first")
	if _, err := s.Try("systemctl start purser-backup-verify.service"); err == nil {
		s.t.Error("the verification of a damaged backup succeeds")
	}
	if out, err := s.Try("purser doctor"); err == nil || !strings.Contains(out+err.Error(), "backups in /var/lib/purser-backup: the newest one isn't whole") {
		s.t.Errorf("the doctor, with a damaged backup: %v %s", err, out)
	}
	s.Run("systemctl start purser-backup.service purser-backup-verify.service")
	if out, _ := s.Try("purser doctor"); strings.Contains(out, "isn't whole") {
		s.t.Errorf("the doctor, after the next backup: %s", out)
	}
}

// restores loses all data but the backup, and restores it as root. The service must be able to use what
// the command has made.
func (s *service) restores() {
	s.t.Helper()
	s.Run("systemctl stop purser.service\nrm -rf /var/lib/purser/postgres /var/lib/purser/blobs /var/lib/purser/reserve")
	if out := s.Run("purser restore /var/lib/purser-backup 2>&1"); !strings.Contains(out, "is restored") {
		s.t.Errorf("purser restore: %s", out)
	}
	if others := s.Run("find /var/lib/purser ! -user purser"); others != "" {
		s.t.Errorf("not the service's:\n%s", others)
	}
	s.Run("systemctl start purser.service")
	s.hasImage()
	s.checkHardening()
	s.push()
}
