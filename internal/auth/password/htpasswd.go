package password

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/purser-registry/purser/internal/operatorfile"
	"github.com/purser-registry/purser/internal/worker"
)

const (
	// fileEvery is how often an htpasswd file is checked for changes.
	fileEvery = 5 * time.Second
	// fileRest is how long a file must not have changed before it is read again: a program that
	// writes it in place may not be done before.
	fileRest = time.Second
	// fileMost is the size of the largest htpasswd file in bytes.
	fileMost = 16 << 20
	// mostNamed is how many wrong lines are logged.
	mostNamed = 20
)

// FileOptions configure a File.
type FileOptions struct {
	Log     *slog.Logger    // default slog.Default()
	Metrics *worker.Metrics // of the loop that looks for changes; nil: none
}

// File is an htpasswd file with bcrypt hashes, which "htpasswd -B" makes. Purser reads it again
// when it changes. If the new file can't be read or has a wrong line, the accounts of the old
// one stay, and the log says which line is wrong. When the file is first read there are none to
// keep, so wrong lines are left out then, and the log names each. Its methods may be called
// concurrently.
type File struct {
	path string
	opt  FileOptions
	used atomic.Pointer[accounts]
}

// accounts is the content of an htpasswd file.
type accounts struct {
	sum    [sha256.Size]byte // of the file
	hashes map[string]string // by name
	most   int               // the greatest cost of a hash, 0 without accounts
	decoys []string          // by their cost, up to most; see File.Decoys
}

// OpenFile reads an htpasswd file. It leaves wrong lines out; if none is right, the error says
// which is the first, without the line. Run looks for changes later.
func OpenFile(path string, o FileOptions) (*File, error) {
	o.Log = cmp.Or(o.Log, slog.Default())
	f := &File{path: path, opt: o}
	if err := f.reload(context.Background(), 0); err != nil {
		return nil, err
	}
	return f, nil
}

// Lookup returns the hash of an account's password, and false if the file doesn't have the
// account.
func (f *File) Lookup(name string) (hash string, ok bool) {
	hash, ok = f.used.Load().hashes[name]
	return hash, ok
}

// Len returns the number of accounts in the file.
func (f *File) Len() int { return len(f.used.Load().hashes) }

// Decoys returns hashes that no password matches. To check a password against them takes as long as
// to check it against the costliest hash of the file, less the time of a hash of the cost `done`,
// which the caller has computed already; 0: none. A step of the cost takes twice the time, so the
// hashes from a cost up to the one below another take that one's time together with the first. If
// the file has no account, there are no decoys.
func (f *File) Decoys(done int) []string {
	a := f.used.Load()
	switch {
	case a.most == 0 || done >= a.most:
		return nil
	case done == 0:
		return a.decoys[a.most : a.most+1]
	}
	return a.decoys[done:a.most]
}

// Run reads the file again when it has changed, until ctx ends. Then it returns nil.
func (f *File) Run(ctx context.Context) error {
	return worker.New(worker.Options{
		Name: "htpasswd", Idle: fileEvery, BackoffMin: fileEvery, BackoffMax: 6 * fileEvery, Log: f.opt.Log, Metrics: f.opt.Metrics,
		Batch: func(ctx context.Context) (more bool, err error) {
			if err := f.reload(ctx, fileRest); err != nil {
				return false, fmt.Errorf("%w; the accounts that were read before stay in use", err)
			}
			return false, nil
		},
	}).Run(ctx)
}

// reload reads the file, and uses its accounts from now on if it has changed. It does nothing
// if the last change is less than `rest` ago. It compares contents and not times, since some
// volumes change files without changing their times.
func (f *File) reload(ctx context.Context, rest time.Duration) error {
	file, err := operatorfile.Read(ctx, f.path, fileMost)
	if err != nil {
		return fmt.Errorf("reading the htpasswd file: %w", err)
	}
	if age := time.Since(file.Changed); age >= 0 && age < rest {
		return nil
	}
	sum := sha256.Sum256(file.Text)
	old := f.used.Load()
	if old != nil && old.sum == sum {
		return nil
	}
	hashes, wrong := parseFile(string(file.Text))
	if len(wrong) > 0 && (old != nil || len(hashes) == 0) {
		return fmt.Errorf("reading the htpasswd file %s: %w", f.path, wrong[0])
	}
	for _, err := range wrong[:min(len(wrong), mostNamed)] {
		f.opt.Log.ErrorContext(ctx, "a line of the htpasswd file can't be used, so its account can't log in", "file", f.path, "error", err, "wrong_lines", len(wrong))
	}
	next := &accounts{sum: sum, hashes: hashes, most: mostOf(hashes)}
	for cost := range next.most + 1 {
		next.decoys = append(next.decoys, decoy(cost))
	}
	f.used.Store(next)
	if old != nil {
		f.opt.Log.InfoContext(ctx, "the htpasswd file was changed", "file", f.path, "accounts", len(hashes))
	}
	return nil
}

// nameForm matches the names of users.
var nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9._@-]{0,127}$`)

// parseFile reads the lines of an htpasswd file, "name:hash", and returns the hashes by name, and
// an error for each wrong line. Names are folded to lower case, as names at log-ins are. An account
// that several lines have gets none of their hashes, since nobody can tell which one is right.
// Blank lines and lines that begin with "#" are comments. The error names the line, and the account
// if the line begins with a valid name, and nothing else of the line.
func parseFile(text string) (hashes map[string]string, wrong []error) {
	hashes = map[string]string{}
	lines := map[string]int{}
	n := 0
	for line := range strings.Lines(strings.TrimPrefix(text, "\ufeff")) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, hash, err := parseLine(line)
		switch {
		case err != nil && name == "":
			wrong = append(wrong, fmt.Errorf("line %d %w", n, err))
		case lines[name] != 0:
			wrong = append(wrong, fmt.Errorf("line %d has the account %s, which line %d has too", n, name, lines[name]))
			delete(hashes, name)
			continue
		case err != nil:
			wrong = append(wrong, fmt.Errorf("line %d, account %s: %w", n, name, err))
		default:
			hashes[name] = hash
		}
		if name != "" {
			lines[name] = n
		}
	}
	return hashes, wrong
}

// parseLine reads a line of an htpasswd file. With an error, the name is empty if it isn't valid.
func parseLine(line string) (name, hash string, err error) {
	name, hash, ok := strings.Cut(line, ":")
	if !ok {
		return "", "", errors.New("has no colon; write name:hash, as htpasswd -B does")
	}
	name = lowerASCII(name)
	if !nameForm.MatchString(name) {
		return "", "", errors.New("doesn't begin with the name of an account: a name has at most 128 letters, digits, '.', '_', '@' and '-', and begins with a letter or a digit")
	}
	return name, hash, checkHash(hash)
}

// lowerASCII folds A to Z to lower case. strings.ToLower maps some letters beyond ASCII to ASCII,
// such as the sign for Kelvin to k; then two different names would be one account.
func lowerASCII(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
}

// checkHash returns an error unless a hash of an htpasswd file can be used.
func checkHash(hash string) error {
	cost, ok := bcryptCost(hash)
	switch {
	case ok && cost > mostCost:
		return fmt.Errorf("the cost of the bcrypt hash is %d, so a log-in would take many seconds; at most %d is allowed (htpasswd -B -C 12)", cost, mostCost)
	case ok:
		return nil
	}
	const way = "; only bcrypt is safe enough: set the password again with htpasswd -B"
	switch {
	case strings.HasPrefix(hash, "$2"):
		return errors.New("the bcrypt hash is damaged, or of a kind other than $2a$, $2b$ and $2y$; set the password again with htpasswd -B")
	case strings.HasPrefix(hash, "$apr1$"), strings.HasPrefix(hash, "$1$"):
		return errors.New("the password is hashed with MD5" + way)
	case strings.HasPrefix(hash, "{SHA}"):
		return errors.New("the password is hashed with SHA-1" + way)
	case strings.HasPrefix(hash, "$5$"), strings.HasPrefix(hash, "$6$"):
		return errors.New("the password is hashed with crypt's SHA-2" + way)
	}
	return errors.New("the password is hashed with crypt, or not at all" + way)
}

// bcryptAlphabet has the characters of bcrypt's salts and keys.
const bcryptAlphabet = "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

// mostOf returns the greatest cost of some hashes, 0 if there are none.
func mostOf(hashes map[string]string) (most int) {
	for _, hash := range hashes {
		cost, _ := bcryptCost(hash)
		most = max(most, cost)
	}
	return most
}

// decoy returns a random text in the form of a bcrypt hash. That a password matches it is as unlikely
// as finding a random key of 182 bits.
func decoy(cost int) string {
	b := make([]byte, 53)
	_, _ = rand.Read(b) // never fails
	for i := range b {
		b[i] = bcryptAlphabet[b[i]%64]
	}
	return fmt.Sprintf("$2y$%02d$%s", cost, b)
}
