//go:build !linux

package pgtest

import "errors"

func freeSpace(string) (uint64, error) {
	return 0, errors.New("there is no file system in memory")
}
