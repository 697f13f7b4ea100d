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
	// replacedSuffix marks the files that the cluster had before this package wrote
	// its own.
	replacedSuffix = ".replaced"
	accessHeader   = "# Purser writes this file at each start.\n"
)

// writeAccess lets this process's user and root connect as the superuser of the
// cluster, and nobody else.
//
// The kernel tells PostgreSQL who is at the other end of a socket, so there is no
// secret that a process list, a log or a file could show. The user that the server
// runs under isn't among those who may connect, unless it is this process's own: as
// root the server may have an account that others share (postgres, nobody), whose
// processes reach the socket through the server's directory in /proc. What they can do
// to the server's files and memory is beyond PostgreSQL.
//
// With anyRole, whoever reaches the socket connects as any role.
//
// The cluster belongs to that account, so nothing here follows a link in it. Each file
// appears whole; a crash in between leaves files that let in fewer, and the next start
// writes them again.
func writeAccess(ctx context.Context, log *slog.Logger, cluster string, acct *account, anyRole bool) error {
	names, err := mayConnect()
	if err != nil {
		return err
	}
	method := "peer map=" + superuser
	if len(names) == 0 {
		// PostgreSQL couldn't tell who connects. The directory of mode 0700 is the wall.
		log.WarnContext(ctx, "the user that runs this has no name on this machine: whoever has its uid may connect to the built-in PostgreSQL", "uid", os.Geteuid())
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
			return fmt.Errorf("saying who may connect to PostgreSQL: %w", err)
		}
	}
	return nil
}

// mayConnect has the names of this process's user and of root. It is empty where this
// process's user has no name.
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
			return nil, fmt.Errorf("user %d has a name that PostgreSQL can't be told: %q", uid, u.Username)
		}
		if !slices.Contains(names, u.Username) {
			names = append(names, u.Username)
		}
	}
	return names, nil
}

// replaceFile puts a file of the account's in place of the one of that name, whose
// first version is kept under another name.
func replaceFile(dir, name, content string, acct *account) error {
	path := filepath.Join(dir, name)
	f, err := os.CreateTemp(dir, name+".*") // never an existing file, nor through a link
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // it has its name by then
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
