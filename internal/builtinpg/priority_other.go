//go:build unix && !linux

package builtinpg

import "errors"

func setSlice(int, uint64) error { return errors.ErrUnsupported }
