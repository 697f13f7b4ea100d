package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/purser-registry/purser/internal/fileowner"
)

// identityFile returns the path of the file with the store's identity. The file is in the
// directory PATH/objects, not in PATH: if PATH/objects is a mount point and its volume isn't
// mounted, the identity must be missing too.
func (d *Dir) identityFile() string { return filepath.Join(d.objects, IdentityKey) }

// Identity implements Store.
func (d *Dir) Identity(ctx context.Context) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	f, err := OpenBelow(d.objects, IdentityKey, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return "", d.mounted()
	}
	if errors.Is(err, ErrNotFound) {
		return "", errors.New("reading the store's identity: " + err.Error()) // it isn't missing
	}
	if err != nil {
		return "", fmt.Errorf("reading the store's identity: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, MaxIdentity))
	if err != nil {
		return "", fmt.Errorf("reading the store's identity: %w", err)
	}
	return DecodeIdentity(b)
}

// SetIdentity implements Store. It writes the file under another name and then links or
// renames it, so that no reader sees a partial file.
func (d *Dir) SetIdentity(ctx context.Context, id string, replace bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b, err := EncodeIdentity(id)
	if err != nil {
		return err
	}
	if err := d.setIdentity(b, replace); err != nil {
		return fmt.Errorf("writing the store's identity to %s: %w", d.identityFile(), err)
	}
	return nil
}

func (d *Dir) setIdentity(b []byte, replace bool) error {
	if err := d.mounted(); err != nil {
		return err
	}
	f, err := os.CreateTemp(d.objects, IdentityKey+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // after a rename it is gone already
	_, err = f.Write(b)
	if err := errors.Join(err, f.Chmod(fileMode), fileowner.Inherit(f), f.Sync(), f.Close()); err != nil {
		return err
	}
	if replace {
		err = os.Rename(f.Name(), d.identityFile())
	} else if err = os.Link(f.Name(), d.identityFile()); errors.Is(err, fs.ErrExist) {
		err = nil
	} else if err != nil {
		err = d.copyIdentity(b) // the file system has no hard links
	}
	if err != nil {
		return err
	}
	return syncDir(d.objects)
}

func (d *Dir) copyIdentity(b []byte) error {
	f, err := os.OpenFile(d.identityFile(), os.O_CREATE|os.O_EXCL|os.O_WRONLY, fileMode)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, fileowner.Inherit(f), f.Sync(), f.Close())
}
