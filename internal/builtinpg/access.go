//go:build unix

package builtinpg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const (
	hbaFile   = "pg_hba.conf"
	identFile = "pg_ident.conf"
	// replacedSuffix is appended to the names of PostgreSQL's original pg_hba.conf and
	// pg_ident.conf when this package replaces them.
	replacedSuffix = ".replaced"
	accessHeader   = "# Purser writes this file at each start.\n"
)

// writeAccess configures the cluster so that this process's user and root can connect
// as its superuser, and nobody else can.
//
// PostgreSQL asks the kernel which user is at the other end of the socket (peer
// authentication), so there is no password that a process list, a log or a file could
// disclose. The user that runs the server may connect only if it is also this process's user.
// The reason: if this process is root, the server may run as an account that other programs
// use too (postgres, nobody), and these programs can reach the socket through the server's
// directory in /proc. They still have access to the server's files and memory, from which
// PostgreSQL can't keep processes of its own account.
//
// If `anyRole` is set, everyone who can open the socket can connect as any role; only tests
// set it.
//
// The cluster belongs to the account `acct`, whose processes could replace files in it by
// symbolic links, so writeAccess never follows a link there. It replaces pg_hba.conf and
// pg_ident.conf atomically, one after the other. After a crash in between, fewer users can
// connect than intended, until the next start writes both files again.
func writeAccess(ctx context.Context, log *slog.Logger, cluster string, acct *account, anyRole bool) error {
	names, err := mayConnect()
	if err != nil {
		return err
	}
	method := "peer map=" + superuser
	if len(names) == 0 {
		// PostgreSQL can't recognize a user without a name. So it lets everyone connect who
		// reaches the socket, and only the mode 0700 of the socket's directory protects it.
		log.WarnContext(ctx, "the operating system has no name for the user that runs this process: every process with the same uid may connect to the built-in PostgreSQL", "uid", os.Geteuid())
		method = "trust"
	}
	if anyRole {
		method = "trust"
	}
	hba := accessHeader +
		"local all         all " + method + "\n" +
		"local replication all " + method + "\n"
	var ident strings.Builder
	ident.WriteString(accessHeader)
	for _, name := range names {
		fmt.Fprintf(&ident, "%s \"%s\" %s\n", superuser, name, superuser)
	}
	for name, content := range map[string]string{identFile: ident.String(), hbaFile: hba} {
		if err := replaceFile(cluster, name, content, acct); err != nil {
			return fmt.Errorf("writing who may connect to PostgreSQL: %w", err)
		}
	}
	return nil
}

// mayConnect returns the names of this process's user and of root. If this process's user has
// no name, it returns nil.
func mayConnect() ([]string, error) {
	var names []string
	for _, uid := range []int{os.Geteuid(), 0} {
		u, err := user.LookupId(strconv.Itoa(uid))
		var unknown user.UnknownUserIdError
		switch {
		case errors.As(err, &unknown) && uid != 0:
			return nil, nil
		case errors.As(err, &unknown):
			continue
		case err != nil:
			return nil, fmt.Errorf("looking for the name of user %d: %w", uid, err)
		case strings.ContainsAny(u.Username, "\"\n"):
			return nil, fmt.Errorf("the name of user %d can't be written into PostgreSQL's configuration: %q", uid, u.Username)
		}
		if !slices.Contains(names, u.Username) {
			names = append(names, u.Username)
		}
	}
	return names, nil
}

// replaceFile replaces the file dir/name by a new one that belongs to the account. At the
// first call it keeps the original file as name+replacedSuffix; later calls don't change that
// copy.
func replaceFile(dir, name, content string, acct *account) error {
	path := filepath.Join(dir, name)
	f, err := os.CreateTemp(dir, name+".*") // creates a new file and follows no link
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // after the rename this name is gone already
	_, err = f.WriteString(content)
	if acct != nil {
		err = errors.Join(err, f.Chown(int(acct.uid), int(acct.gid)))
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if _, err := os.Lstat(path + replacedSuffix); errors.Is(err, fs.ErrNotExist) {
		if err := os.Rename(path, path+replacedSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return os.Rename(f.Name(), path)
}
