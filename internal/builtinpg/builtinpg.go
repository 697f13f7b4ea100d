// Package builtinpg runs a private PostgreSQL server for a process that has no database
// of its own: it finds or downloads PostgreSQL's programs, initialises a cluster,
// starts the server and stops it.
//
// Rules of the package:
//
//   - One owner. A data directory belongs to the process that holds the flock on its
//     lock file. If an earlier owner left a server running, the new owner stops that
//     server and starts a new one.
//   - A cluster is complete or absent: initdb works in a temporary directory, which
//     is renamed at the end. A cluster is never deleted, except by ForgetOld, which
//     deletes clusters that an upgrade has replaced.
//   - The server ends with its owner, even if the owner is killed: on Linux by a death
//     signal from the kernel, elsewhere by a watchdog process.
//   - Only the owner's user (and root) can connect: there is no TCP, the socket is
//     in a directory of mode 0700, and PostgreSQL asks the kernel who connects. If
//     the owner is root, PostgreSQL runs as an unprivileged user. That user may not
//     connect, since other programs may run as it too. The server gets its directory
//     as an open descriptor, so that this user needn't be able to traverse the
//     directories above.
//
// Layout of a data directory:
//
//	lock       flock; holds the owner's pid and the socket's directory
//	cluster/   PostgreSQL's own data directory, and its socket
//	cluster-N/ the cluster of version N that an upgrade has replaced (see Replace)
//	initdb-*/  an initialisation under way, or one that was killed
//
// The server's shared buffers are an eighth of the machine's memory, at least 128 MiB and at most 4
// GiB (memory.go). Pruning has connections of its own. In this server, the processes of these
// connections, and those that vacuum, let other processes that wake up run first (priority.go).
// They still get the same share of the cores, since clients may wait for rows that pruning has
// locked.
package builtinpg

import (
	"errors"
	"log/slog"
)

// Options configure a server.
type Options struct {
	// DataDir is the server's directory. It is created with mode 0700 if it is missing,
	// and never deleted. Required.
	DataDir string
	// CacheDir is where downloaded programs are kept. The default is purser/postgres in
	// the user's cache directory. If this process is root and the unprivileged user
	// can't reach the directory, /var/cache/purser/postgres is used instead.
	CacheDir string
	// Log receives progress and the server's own log; the default is
	// slog.Default().
	Log *slog.Logger
	// Settings are PostgreSQL settings by name, which add to the defaults or override
	// them. Settings of the socket and of the log's format can't be overridden.
	Settings map[string]string
	// Background makes this server's processes yield the CPU to other processes that wake up.
	// The exceptions are the connections' processes for which Foreground was called.
	// Foreground names the operating systems and permissions for which this works.
	Background bool
	// Existing makes Start fail with ErrNoCluster, and create nothing, if there is no
	// cluster.
	Existing bool
	// Major is the major version of PostgreSQL that a new cluster must have. 0: any version from
	// 15 on. It doesn't apply to a cluster that exists.
	Major int
	// AnyRole lets everyone who can open the socket connect as any role. It is for
	// tests: without it only this process's user and root can connect, as the
	// superuser.
	AnyRole bool
	// Step is called when Start begins something that may take seconds, and again and again while it
	// fetches PostgreSQL. Its text says what is being done: "making its cluster". Nil: nothing is called.
	Step func(doing string)
	// Begin is called when Start has the lock of the data directory, so that nobody else runs the server,
	// before Start writes anything there. Nil: nothing is called.
	Begin func()
}

// ErrInUse says that another process, or another Server of this process, owns the data
// directory. The error that wraps it names the directory and the owner's PID.
var ErrInUse = errors.New("data directory is in use")

// ErrNoCluster says that a data directory doesn't exist or has no cluster, though
// Options.Existing requires one. The error that wraps it names the directory.
var ErrNoCluster = errors.New("there is no PostgreSQL in the data directory")

const (
	superuser       = "purser" // of the cluster
	defaultDatabase = "purser"
	oldestMajor     = 15

	lockName      = "lock"
	clusterName   = "cluster"
	initdbPattern = "initdb-"

	socketPort = "5432" // part of the socket's name: there is no TCP
	socketFile = ".s.PGSQL." + socketPort
)
