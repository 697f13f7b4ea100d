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

	"github.com/purser-registry/purser/loosefk/generate"
)

// repository is a git work tree. It remembers the files that the command has added to git's
// index and the branch that the command has made, so that takeBack can undo this.
type repository struct {
	dir    string // a directory of the tree, without symbolic links
	top    string // the tree's top directory
	branch string // the branch that is checked out; "" if a commit is (a detached HEAD)
	unborn bool   // the branch has no commit yet
	added  []string
	// made is the branch that convert has made, or "".
	made string
}

// findRepository returns the git work tree that contains a file, or the reason why there is
// none. The file and its directories need not exist.
func findRepository(ctx context.Context, file string) (repo *repository, reason string) {
	if _, err := exec.LookPath("git"); err != nil {
		return nil, "git is not installed"
	}
	path, err := physical(file)
	if err != nil {
		return nil, err.Error()
	}
	repo = &repository{dir: existing(filepath.Dir(path))}
	repo.top, err = repo.git(ctx, "rev-parse", "--show-toplevel")
	switch {
	case err != nil && !strings.Contains(err.Error(), "not a git repository") && !strings.Contains(err.Error(), "must be run in a work tree"):
		return nil, err.Error()
	case err != nil || repo.top == "":
		return nil, file + " is in no git work tree"
	}
	if ref, err := repo.git(ctx, "symbolic-ref", "--quiet", "HEAD"); err == nil {
		repo.branch = strings.TrimPrefix(ref, "refs/heads/")
	}
	_, err = repo.git(ctx, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
	repo.unborn = err != nil
	return repo, ""
}

// existing returns `dir` if it exists, else the closest directory above it that exists.
func existing(dir string) string {
	for {
		if info, err := os.Stat(dir); err == nil && info.IsDir() || filepath.Dir(dir) == dir {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

// physical returns the absolute path of a file with all symbolic links resolved, as git
// prints paths. The file and the last directories of its path need not exist.
func physical(file string) (string, error) {
	path, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	there := path
	if _, err := os.Stat(there); err != nil {
		there = existing(filepath.Dir(path))
	}
	real, err := filepath.EvalSymlinks(there)
	if err != nil {
		return "", err
	}
	rest, err := filepath.Rel(there, path)
	return filepath.Join(real, rest), err
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
		return strings.TrimSpace(string(out)), fmt.Errorf("git %s: %w", args[0], err)
	}
	return strings.TrimSpace(string(out)), nil
}

var notInBranch = regexp.MustCompile(`[^a-zA-Z0-9_]+`)

// branchName makes the name of a git branch from the filters of the command.
func branchName(prefix string, filters []string) string {
	name := prefix
	for _, f := range filters {
		if part := strings.Trim(notInBranch.ReplaceAllString(f, "-"), "-"); part != "" {
			name += "-" + part
		}
	}
	return strings.TrimRight(name[:min(len(name), 100)], "-")
}

// ready returns an error if git can't make the branch `branch` ("" for none) or, if `commit`
// is set, would refuse to commit the plan's files. It also returns an error if `file`, the
// file of definitions, has uncommitted changes, because the commit would contain them.
func (r *repository) ready(ctx context.Context, file string, plan *generate.Plan, branch string, commit bool) error {
	if err := r.settled(ctx); err != nil {
		return err
	}
	if branch != "" {
		if _, err := r.git(ctx, "rev-parse", "--verify", "--quiet", "refs/heads/"+branch); err == nil {
			return fmt.Errorf("the branch %s exists already: remove it, or give --no-branch to commit where you are", branch)
		}
	}
	if !commit {
		return nil
	}
	for _, who := range []string{"GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT"} {
		if _, err := r.git(ctx, "var", who); err != nil {
			return errors.New("git doesn't know who commits: set git config user.name and user.email, or give --no-commit")
		}
	}
	path, err := physical(file)
	if err != nil {
		return err
	}
	changes, err := r.git(ctx, "--no-optional-locks", "status", "--porcelain", "--", path)
	if err != nil {
		return err
	}
	if changes != "" && !strings.HasPrefix(changes, "??") {
		return fmt.Errorf("%s has changes that are not committed: commit them, or give --no-commit", file)
	}
	return r.takes(ctx, plan)
}

// settled returns an error if a merge, a rebase or a similar operation is under way in the
// work tree.
func (r *repository) settled(ctx context.Context) error {
	for _, o := range []struct{ name, file string }{
		{"merge", "MERGE_HEAD"}, {"cherry-pick", "CHERRY_PICK_HEAD"}, {"revert", "REVERT_HEAD"},
		{"rebase", "rebase-merge"}, {"rebase", "rebase-apply"},
	} {
		path, err := r.git(ctx, "rev-parse", "--git-path", o.file)
		if err != nil {
			return err
		}
		if !filepath.IsAbs(path) {
			path = filepath.Join(r.dir, path)
		}
		if _, err := os.Stat(path); err == nil {
			return fmt.Errorf("a %s is under way: finish it (git status says how), or give --no-branch --no-commit", o.name)
		}
	}
	return nil
}

// takes returns an error if one of the plan's files is outside the work tree or ignored by
// git.
func (r *repository) takes(ctx context.Context, plan *generate.Plan) error {
	paths, err := planned(plan)
	if err != nil {
		return err
	}
	for i, path := range paths {
		if rel, err := filepath.Rel(r.top, path); err != nil || !filepath.IsLocal(rel) {
			return fmt.Errorf("%s is outside of the git work tree %s: name a place inside, or give --no-commit", plan.Files[i].Path, r.top)
		}
	}
	ignored, err := r.git(ctx, append([]string{"check-ignore", "--"}, paths...)...)
	if ignored != "" {
		first, _, _ := strings.Cut(ignored, "\n")
		if rel, err := filepath.Rel(r.top, first); err == nil {
			first = rel
		}
		return fmt.Errorf("git ignores %s: change .gitignore, or give --no-commit", first)
	}
	if _, none := errors.AsType[*exec.ExitError](err); err != nil && !none {
		return err
	}
	return nil
}

// planned returns the paths of a plan's files.
func planned(plan *generate.Plan) ([]string, error) {
	var paths []string
	for _, f := range plan.Files {
		path, err := physical(f.Path)
		if err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// checkout makes a branch and checks it out.
func (r *repository) checkout(ctx context.Context, branch string) error {
	_, err := r.git(ctx, "checkout", "--quiet", "-b", branch)
	if err == nil {
		r.made = branch
	}
	return err
}

// commit commits the plan's files and nothing else, and returns the commit's short hash.
func (r *repository) commit(ctx context.Context, subject string, plan *generate.Plan) (string, error) {
	paths, err := planned(plan)
	if err != nil {
		return "", err
	}
	r.added = paths
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
	r.added = nil
	return r.git(ctx, "rev-parse", "--short", "HEAD")
}

// takeBack undoes the call of checkout, and a commit that failed: it restores the git index,
// checks out the old branch, and deletes the branch that checkout made.
func (r *repository) takeBack(ctx context.Context) error {
	var failed []error
	run := func(args ...string) {
		_, err := r.git(ctx, args...)
		failed = append(failed, err)
	}
	if len(r.added) > 0 && r.unborn {
		run(append([]string{"rm", "--quiet", "--cached", "--ignore-unmatch", "--"}, r.added...)...)
	} else if len(r.added) > 0 {
		run(append([]string{"reset", "--quiet", "--"}, r.added...)...)
	}
	if r.made != "" { // the new branch is at the same commit, so no file changes
		if r.branch != "" {
			run("symbolic-ref", "HEAD", "refs/heads/"+r.branch)
		} else {
			run("checkout", "--quiet", "--detach")
		}
		run("branch", "--quiet", "-D", r.made)
	}
	return errors.Join(failed...)
}
