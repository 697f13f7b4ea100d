//go:build !linux

package password

import "os/exec"

func startLow(cmd *exec.Cmd) error { return cmd.Start() }
