package generate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Write writes all files of the plan, or none: if one can't be written, Write undoes the
// others. It fails if a new file exists already, or if a file to be changed is no longer as
// it was when the plan was made.
func (p *Plan) Write() error {
	for _, f := range p.Files {
		now, err := os.ReadFile(f.Path)
		switch {
		case f.Changed && err != nil:
			return fmt.Errorf("changing %s: %w", f.Path, err)
		case f.Changed && string(now) != f.Old:
			return fmt.Errorf("changing %s: somebody else has changed it meanwhile; run this again", f.Path)
		case !f.Changed && err == nil:
			return fmt.Errorf("writing %s: it exists already", f.Path)
		case !f.Changed && !errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("writing %s: %w", f.Path, err)
		}
	}
	for i, f := range p.Files {
		err := p.makeDirectory(filepath.Dir(f.Path))
		if err == nil {
			err = f.write(f.Content)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("writing %s: %w", f.Path, err), p.takeBack(p.Files[:i]))
		}
	}
	return nil
}

// TakeBack undoes Write: it removes new files and directories, and restores changed files.
// It leaves a file as it is, and returns an error, if somebody has changed it after Write.
func (p *Plan) TakeBack() error { return p.takeBack(p.Files) }

func (p *Plan) takeBack(files []PlannedFile) error {
	var failed []error
	for _, f := range files {
		now, err := os.ReadFile(f.Path)
		switch {
		case errors.Is(err, fs.ErrNotExist) || err == nil && f.Changed && string(now) == f.Old:
			continue
		case err == nil && string(now) != f.Content:
			err = errors.New("somebody has changed it since; it stays as it is")
		case err == nil && f.Changed:
			err = f.write(f.Old)
		case err == nil:
			err = os.Remove(f.Path)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("undoing the change of %s: %w", f.Path, err))
		}
	}
	for _, dir := range slices.Backward(p.made) {
		os.Remove(dir) //nolint:errcheck // fails, as wanted, if the directory isn't empty
	}
	p.made = nil
	return errors.Join(failed...)
}

// makeDirectory creates a directory and its missing parent directories, and appends those
// that it has created to p.made.
func (p *Plan) makeDirectory(dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) && filepath.Dir(dir) != dir {
		if err := p.makeDirectory(filepath.Dir(dir)); err != nil {
			return err
		}
		p.made = append(p.made, dir)
	}
	return os.MkdirAll(dir, 0o755)
}

// write replaces the file's content atomically: it writes a temporary file and renames it.
func (f PlannedFile) write(content string) error {
	mode := fs.FileMode(0o644)
	if info, err := os.Stat(f.Path); err == nil {
		mode = info.Mode().Perm()
	}
	name, err := filepath.EvalSymlinks(f.Path) // replace the file that a symbolic link leads to, not the link
	if err != nil {
		name = f.Path
	}
	temporary, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(temporary.Name()) //nolint:errcheck // after the rename there is nothing to remove
	_, err = temporary.WriteString(content)
	err = errors.Join(err, temporary.Chmod(mode), temporary.Close())
	if err != nil {
		return err
	}
	return os.Rename(temporary.Name(), name)
}
