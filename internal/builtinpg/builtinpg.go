// Package builtinpg runs a private PostgreSQL server for a process that has no
// database of its own: it finds PostgreSQL's programs or fetches them,
// initialises a cluster, starts the server and stops it.
//
// What holds inside:
//
//   - One owner. A data directory belongs to the process that holds the flock
//     on its lock file. A server that an earlier owner left behind is stopped
//     and started again, never adopted.
//   - A cluster appears whole or not at all: initdb works in a temporary
//     directory that is renamed when it is done. Nothing that has been a
//     cluster is ever deleted.
//   - The server lives no longer than its owner, however the owner ends: by a
//     death signal on Linux, by a watchdog process elsewhere.
//   - Only the owner's user (and root) can connect: there is no TCP, the socket is
//     in a directory of mode 0700, and PostgreSQL asks the kernel who connects. As
//     root, PostgreSQL runs under an unprivileged user, which may not connect: it may
//     be an account that others share. The server is handed its directory as an open
//     descriptor, so that the parents need not be open to that user.
//
// Layout of a data directory:
//
//	lock       flock; holds the owner's pid and the socket's directory
//	cluster/   PostgreSQL's own data directory, and its socket
//	initdb-*/  an initialisation under way, or one that was killed
package builtinpg

import (
	"errors"
	"log/slog"
)

// Options says where a server keeps its data and how it runs.
type Options struct {
	// DataDir is the server's directory. It is created with mode 0700 when
	// missing and never deleted. Required.
	DataDir string
	// CacheDir is where fetched programs are kept; the default is
	// purser/postgres in the user's cache directory. As root, where the
	// unprivileged user can't reach that, it is /var/cache/purser/postgres.
	CacheDir string
	// Log receives progress and the server's own log; the default is
	// slog.Default().
	Log *slog.Logger
	// Settings are PostgreSQL settings that replace or add to the defaults,
	// by name. Settings about the socket and the log's form can't be replaced.
	Settings map[string]string
	// Background lets processes that wake run before those of this server, other
	// than those that Foreground names. It works as Foreground does.
	Background bool
	// Existing fails with ErrNoCluster, and makes nothing, where there is no cluster.
	Existing bool
	// AnyRole lets whoever reaches the socket connect as any role. It is for tests:
	// without it only this process's user and root connect, as the superuser.
	AnyRole bool
}

// ErrInUse says that another process, or another server of this one, owns the
// data directory. The error that wraps it names the directory and the owner's
// pid.
var ErrInUse = errors.New("data directory is in use")

// ErrNoCluster says that a data directory was to be used that has no cluster, or that
// doesn't exist. The error that wraps it names the directory.
var ErrNoCluster = errors.New("there is no PostgreSQL in the data directory")

const (
	superuser       = "purser" // of the cluster
	defaultDatabase = "purser"
	oldestMajor     = 15

	lockName      = "lock"
	clusterName   = "cluster"
	initdbPattern = "initdb-"

	socketPort = "5432" // only names the socket: there is no TCP
	socketFile = ".s.PGSQL." + socketPort
)
