//go:build unix

package builtinpg

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	// longestSocket is the longest path of a socket, in bytes, that works on all systems:
	// Linux allows 107 bytes, macOS and the BSDs 103.
	longestSocket = 103
	socketDirName = "purser-pg-"
)

// usableSocketDir returns whether clients can connect to a socket in dir: its path must not be
// too long, and must not contain a comma, which would separate two hosts in a DSN.
func usableSocketDir(dir string) bool {
	return len(dir)+1+len(socketFile) <= longestSocket && !strings.Contains(dir, ",")
}

// makeSocketDir returns the directory for the server's socket. This is the cluster itself, if
// its path is short enough and its file system supports sockets; else a new temporary
// directory of mode 0700.
func makeSocketDir(dataDir, cluster string, acct *account) (string, error) {
	if usableSocketDir(cluster) && holdsSockets(dataDir) {
		return cluster, nil
	}
	for _, base := range []string{os.Getenv("XDG_RUNTIME_DIR"), os.TempDir(), "/tmp"} {
		if !filepath.IsAbs(base) || !usableSocketDir(filepath.Join(base, socketDirName+"0123456789")) || !acct.reaches(base) {
			continue
		}
		dir, err := os.MkdirTemp(base, socketDirName)
		if err != nil {
			continue
		}
		if err := acct.own(dir); err != nil {
			return "", errors.Join(err, os.Remove(dir))
		}
		return dir, nil
	}
	return "", fmt.Errorf("no directory for PostgreSQL's socket: the path of %s is too long (or on a file system without sockets), and neither TMPDIR nor /tmp can be used; choose a shorter data directory", dataDir)
}

// holdsSockets creates a socket in dir to test whether this works; some network file systems
// and shared folders of virtual machines don't support sockets.
func holdsSockets(dir string) bool {
	path := filepath.Join(dir, ".socket")
	_ = os.Remove(path) // left by a killed process
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return false
	}
	return l.Close() == nil // also removes the socket
}

// removeSocketDir removes a directory that makeSocketDir created outside of the cluster, with
// the socket in it. If the directory contains other files, removeSocketDir leaves these and the
// directory there, and returns an error.
func removeSocketDir(dir, cluster string) error {
	if dir == "" || dir == cluster || !strings.HasPrefix(filepath.Base(dir), socketDirName) {
		return nil
	}
	for _, path := range []string{filepath.Join(dir, socketFile), filepath.Join(dir, socketFile+".lock"), dir} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing PostgreSQL's socket directory: %w", err)
		}
	}
	return nil
}

// dsn returns a DSN for pgx and libpq that uses the socket in socketDir.
func dsn(socketDir, database string) string {
	database = cmp.Or(database, defaultDatabase)
	// The port and sslmode override PGPORT and PGSSLMODE.
	query := url.Values{"host": {socketDir}, "port": {socketPort}, "sslmode": {"disable"}}
	encoded := strings.ReplaceAll(query.Encode(), "+", "%20") // libpq doesn't decode + as a space
	u := url.URL{Scheme: "postgres", User: url.User(superuser), Path: "/" + database, RawQuery: encoded}
	return u.String()
}

// RunningDSN returns a DSN for connecting as superuser to the server that runs on dataDir. If
// `database` is empty, the DSN leads to the default database, purser. RunningDSN returns an
// error if no server answers there.
func RunningDSN(dataDir, database string) (string, error) {
	path := filepath.Join(dataDir, lockName)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s has never held a built-in PostgreSQL: check the data directory", dataDir)
	}
	if err != nil {
		return "", fmt.Errorf("reading the lock of the PostgreSQL data directory: %w (it belongs to %s)", err, ownerOf(dataDir))
	}
	f.Close()
	_, socketDir := readLock(path)
	if socketDir == "" {
		return "", fmt.Errorf("no PostgreSQL is running on %s: start it with purser serve", dataDir)
	}
	conn, err := net.DialTimeout("unix", filepath.Join(socketDir, socketFile), 5*time.Second)
	if err != nil {
		return "", fmt.Errorf("no PostgreSQL is running on %s: start it with purser serve (%w)", dataDir, err)
	}
	conn.Close()
	return dsn(socketDir, database), nil
}
