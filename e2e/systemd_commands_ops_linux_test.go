//go:build all

package e2e

import "strings"

// commandsAsDocumented types commands without telling them the configuration: they have the service's.
// A command to which the service's configuration isn't known is refused.
func (s *service) commandsAsDocumented() {
	s.t.Helper()
	before := s.show("MainPID")
	s.Run("printf '\\ngc:\\n  keep_doomed: 48h\\n' >>/etc/purser/config.yaml\nsystemctl restart purser.service")
	s.restarted(before)
	if out := s.Run("purser gc run 2>&1"); !strings.Contains(out, "Using the configuration /etc/purser/config.yaml") {
		s.t.Errorf("purser gc run: %s", out)
	}
	const other = "PURSER_CONFIG= purser gc run --data-dir /var/lib/purser 2>&1"
	if out, err := s.Try(other); err == nil || !strings.Contains(out+err.Error(), "gc.keep_doomed is 0s here") {
		s.t.Errorf("%s: %v %s", other, err, out)
	}
	// The user of the service may read the file, and others may not.
	s.Run("setpriv --reuid purser --regid purser --init-groups purser gc status")
	const stranger = "setpriv --reuid nobody --regid nogroup --clear-groups purser gc status 2>&1"
	if out, err := s.Try(stranger); err == nil || !strings.Contains(out+err.Error(), "sudo -u purser") {
		s.t.Errorf("%s: %v %s", stranger, err, out)
	}
}
