//go:build unix

package builtinpg

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is the unprivileged user as which PostgreSQL runs, since it refuses to run as root.
// A nil *account means this process's user.
type account struct {
	uid, gid uint32
	name     string
}

func (a *account) String() string {
	if a == nil {
		return "the current user"
	}
	return "user " + a.name
}

// pickAccount chooses the account that runs PostgreSQL on a cluster. It returns nil if this
// process isn't root. Otherwise it returns the cluster's owner or, for a new cluster or one that root
// owns, the owner of its directory: root may have restored a backup for a service that runs as this
// user. If that is root, it returns the first of the users purser, postgres and nobody that exists.
func pickAccount(cluster string) (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	if a := ownerAccount(filepath.Join(cluster, "PG_VERSION")); a != nil {
		return a, nil
	}
	if a := ownerAccount(filepath.Dir(cluster)); a != nil && a.named() {
		return a, nil // PostgreSQL makes a cluster only for a user that has a name
	}
	for _, name := range []string{"purser", "postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
		if uidErr != nil || gidErr != nil || uid == 0 {
			continue
		}
		return &account{uid: uint32(uid), gid: uint32(gid), name: name}, nil
	}
	return nil, errors.New("PostgreSQL does not run as root, and there is no user purser, postgres or nobody to run it: create one (useradd --system purser), or start as an ordinary user")
}

// ownerAccount returns the account that owns a file, or nil if that is root.
func ownerAccount(path string) *account {
	fi, err := os.Stat(path)
	if err != nil {
		return nil
	}
	st := fi.Sys().(*syscall.Stat_t)
	if st.Uid == 0 {
		return nil
	}
	a := &account{uid: st.Uid, gid: st.Gid, name: strconv.FormatUint(uint64(st.Uid), 10)}
	if u, err := user.LookupId(a.name); err == nil {
		a.name = u.Username
	}
	return a
}

// named says whether the account's user has a name.
func (a *account) named() bool { return a.name != strconv.FormatUint(uint64(a.uid), 10) }

// credential returns the user and group for a child process; nil means those of this process.
func (a *account) credential() *syscall.Credential {
	if a == nil {
		return nil
	}
	return &syscall.Credential{Uid: a.uid, Gid: a.gid}
}

// own makes the account the owner of a directory and of everything in it.
func (a *account) own(dir string) error {
	if a == nil {
		return nil
	}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(a.uid), int(a.gid))
	})
	if err != nil {
		return fmt.Errorf("giving %s to %s: %w", dir, a, err)
	}
	return nil
}

// reaches returns whether the permission bits let the account traverse dir and every directory
// above it. It ignores directories that don't exist yet.
func (a *account) reaches(dir string) bool {
	if a == nil {
		return true
	}
	for {
		fi, err := os.Stat(dir)
		if err == nil && !a.mayEnter(fi) {
			return false
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return true
		}
		dir = parent
	}
}

func (a *account) mayEnter(fi fs.FileInfo) bool {
	st, mode := fi.Sys().(*syscall.Stat_t), fi.Mode().Perm()
	switch {
	case st.Uid == a.uid:
		return mode&0o100 != 0
	case st.Gid == a.gid:
		return mode&0o010 != 0
	default:
		return mode&0o001 != 0
	}
}
