//go:build !unix

package fileowner

import (
	"io/fs"
	"os"
)

// Inherit does nothing: there is no root.
func Inherit(*os.File) error { return nil }

// MkdirAll is os.MkdirAll.
func MkdirAll(path string, mode fs.FileMode) error { return os.MkdirAll(path, mode) }

// Mkdir is os.Mkdir.
func Mkdir(path string, mode fs.FileMode) error { return os.Mkdir(path, mode) }
