//go:build unix && !linux

package builtinpg

import "errors"

func yieldReadily(int) error { return errors.ErrUnsupported }
