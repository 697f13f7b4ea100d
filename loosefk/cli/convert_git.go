package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/purser-registry/purser/loosefk"
)

// repository is a git work tree.
type repository struct{ dir string }

// findRepository finds the work tree of a file, or says why there is none.
func findRepository(ctx context.Context, file string) (repo *repository, reason string) {
	dir := filepath.Dir(file)
	if _, err := exec.LookPath("git"); err != nil {
		return nil, "git is not installed"
	}
	top, err := (&repository{dir}).git(ctx, "rev-parse", "--show-toplevel")
	if err != nil || top == "" {
		return nil, file + " is in no git work tree"
	}
	return &repository{dir}, ""
}

// git runs git and returns what it prints.
func (r *repository) git(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok && len(failed.Stderr) > 0 {
		err = errors.New(strings.TrimSpace(string(failed.Stderr)))
	}
	if err != nil {
		return "", fmt.Errorf("git %s: %w", args[0], err)
	}
	return strings.TrimSpace(string(out)), nil
}

var notInBranch = regexp.MustCompile(`[^a-zA-Z0-9_]+`)

// branchName makes a branch's name of filters.
func branchName(prefix string, filters []string) string {
	name := prefix
	for _, f := range filters {
		if part := strings.Trim(notInBranch.ReplaceAllString(f, "-"), "-"); part != "" {
			name += "-" + part
		}
	}
	return name[:min(len(name), 100)]
}

// ready finds what would keep the change from being committed by itself.
func (r *repository) ready(ctx context.Context, file string, newBranch bool, branch string, commit bool) error {
	if newBranch {
		if _, err := r.git(ctx, "rev-parse", "--verify", "--quiet", "refs/heads/"+branch); err == nil {
			return fmt.Errorf("the branch %s exists already: remove it, or give --no-branch to commit where you are", branch)
		}
	}
	if !commit {
		return nil
	}
	changes, err := r.git(ctx, "--no-optional-locks", "status", "--porcelain", "--", filepath.Base(file))
	if err != nil {
		return err
	}
	if changes != "" && !strings.HasPrefix(changes, "??") {
		return fmt.Errorf("%s has changes that are not committed: commit them, or give --no-commit", file)
	}
	return nil
}

// checkout makes a branch and goes there.
func (r *repository) checkout(ctx context.Context, branch string) error {
	_, err := r.git(ctx, "checkout", "--quiet", "-b", branch)
	return err
}

// commit commits a plan's files and nothing else, and returns the commit.
func (r *repository) commit(ctx context.Context, subject string, plan *loosefk.Plan) (string, error) {
	var paths []string
	for _, f := range plan.Files {
		path, err := filepath.Abs(f.Path)
		if err != nil {
			return "", err
		}
		paths = append(paths, path)
	}
	if _, err := r.git(ctx, append([]string{"add", "--"}, paths...)...); err != nil {
		return "", err
	}
	body := ""
	for _, k := range plan.Keys {
		body += fmt.Sprintf("%s: %s\n", k.Constraint, k)
	}
	for i, s := range plan.Steps {
		body += fmt.Sprintf("\n%d. %s\n", i+1, s)
	}
	args := []string{"commit", "--quiet", "-m", subject, "-m", body, "--"}
	if _, err := r.git(ctx, append(args, paths...)...); err != nil {
		return "", err
	}
	return r.git(ctx, "rev-parse", "--short", "HEAD")
}
