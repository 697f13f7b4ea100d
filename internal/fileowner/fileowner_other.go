//go:build !unix

package fileowner

import (
	"io/fs"
	"os"
)

// Inherit does nothing: there is no root.
func Inherit(*os.File) error { return nil }

// Mkdir is os.Mkdir.
func Mkdir(path string, mode fs.FileMode) error { return os.Mkdir(path, mode) }
