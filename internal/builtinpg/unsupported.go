//go:build !unix

package builtinpg

import (
	"context"
	"errors"
)

var errUnsupported = errors.New("the built-in PostgreSQL does not run on this operating system: install PostgreSQL 15 or newer and name it in database.main")

// Server is a running PostgreSQL.
type Server struct{}

// Start always fails on this operating system.
func Start(context.Context, Options) (*Server, error) { return nil, errUnsupported }

// DSN returns "" on this operating system.
func (s *Server) DSN(string) string { return "" }

// Done is closed when the server has exited.
func (s *Server) Done() <-chan struct{} { return nil }

// Err says why the server exited.
func (s *Server) Err() error { return errUnsupported }

// Stop stops the server.
func (s *Server) Stop(context.Context) error { return errUnsupported }

// RunningDSN always fails on this operating system.
func RunningDSN(string, string) (string, error) { return "", errUnsupported }

// Foreground does nothing on this operating system.
func Foreground(uint32) error { return errUnsupported }

// ClusterMajor always fails on this operating system.
func ClusterMajor(string) (int, error) { return 0, errUnsupported }

// NewestMajor always fails on this operating system.
func NewestMajor(context.Context, Options) (int, error) { return 0, errUnsupported }

// Replace always fails on this operating system.
func Replace(string, string) (string, error) { return "", errUnsupported }

// UndoReplace always fails on this operating system.
func UndoReplace(string) error { return errUnsupported }

// OldClusters always fails on this operating system.
func OldClusters(string) ([]string, error) { return nil, errUnsupported }

// ForgetOld always fails on this operating system.
func ForgetOld(string) error { return errUnsupported }
