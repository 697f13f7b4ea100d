package password

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/crypto/argon2"
	"golang.org/x/crypto/bcrypt"
)

// Parameters of new hashes: the OWASP Password Storage Cheat Sheet's recommendation for
// argon2id with the least memory of those with two passes.
const (
	memoryKiB = 19 << 10
	passes    = 2
	threads   = 1
	saltBytes = 16
	keyBytes  = 32
)

// Bounds on the parameters of stored hashes. Whoever can write a hash into the database or the
// htpasswd file could otherwise make a log-in take all of the memory, or hours. The bounds
// leave room for hashes of other programs: 64 MiB with 3 passes and 4 threads is RFC 9106's
// recommendation for machines with little memory.
const (
	mostMemoryKiB = 64 << 10
	mostPasses    = 8
	mostThreads   = 4
	mostBytes     = 64 // of a salt or a key
	mostCost      = 15 // of bcrypt, about 2 s
)

// errHash says that a stored hash is neither a valid argon2id nor a valid bcrypt hash. Its text
// has no part of the hash.
var errHash = errors.New("the stored hash of the password is neither an argon2id hash with the usual parameters nor a bcrypt hash; set the password again")

// argon2Hash is an argon2id hash with its parameters.
type argon2Hash struct {
	memoryKiB, passes uint32
	threads           uint8
	salt, key         []byte
}

// newArgon2 hashes a password with a random salt.
func newArgon2(password string) argon2Hash {
	h := argon2Hash{memoryKiB: memoryKiB, passes: passes, threads: threads, salt: make([]byte, saltBytes)}
	_, _ = rand.Read(h.salt) // never fails
	h.key = h.derive(password, keyBytes)
	return h
}

func (h argon2Hash) derive(password string, bytes uint32) []byte {
	return argon2.IDKey([]byte(password), h.salt, h.passes, h.memoryKiB, h.threads, bytes)
}

func (h argon2Hash) matches(password string) bool {
	return subtle.ConstantTimeCompare(h.derive(password, uint32(len(h.key))), h.key) == 1 //nolint:gosec // at most mostBytes
}

// String returns the hash in the PHC string format, in which it is stored.
func (h argon2Hash) String() string {
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, h.memoryKiB, h.passes, h.threads,
		phcEncoding.EncodeToString(h.salt), phcEncoding.EncodeToString(h.key))
}

var phcEncoding = base64.RawStdEncoding.Strict()

// parseArgon2 reads a hash in the PHC string format. It returns false if the text isn't what
// String returns for some hash, or if a parameter is out of bounds.
func parseArgon2(text string) (argon2Hash, bool) {
	rest, ok := strings.CutPrefix(text, "$argon2id$v="+strconv.Itoa(argon2.Version)+"$m=")
	fields := strings.Split(rest, "$")
	if !ok || len(fields) != 3 || len(fields[1]) > 2*mostBytes || len(fields[2]) > 2*mostBytes {
		return argon2Hash{}, false
	}
	memory, rest, ok1 := strings.Cut(fields[0], ",t=")
	time, parallel, ok2 := strings.Cut(rest, ",p=")
	p, ok3 := parameter(parallel, 1, mostThreads)
	t, ok4 := parameter(time, 1, mostPasses)
	m, ok5 := parameter(memory, 8*p, mostMemoryKiB)
	salt, err1 := phcEncoding.DecodeString(fields[1])
	key, err2 := phcEncoding.DecodeString(fields[2])
	h := argon2Hash{memoryKiB: m, passes: t, threads: uint8(min(p, math.MaxUint8)), salt: salt, key: key}
	ok = ok1 && ok2 && ok3 && ok4 && ok5 && err1 == nil && err2 == nil &&
		len(salt) >= 8 && len(salt) <= mostBytes && len(key) >= 16 && len(key) <= mostBytes &&
		h.String() == text // there is one text for each hash: no leading zeros, no line breaks
	return h, ok
}

// parameter reads a number from least to most.
func parameter(text string, least, most uint32) (uint32, bool) {
	n, err := strconv.ParseUint(text, 10, 32)
	return uint32(n), err == nil && uint32(n) >= least && uint32(n) <= most
}

// bcryptForm matches bcrypt hashes. "2x" isn't among them: it marks hashes of an
// implementation that was wrong.
var bcryptForm = regexp.MustCompile(`^\$2[aby]\$([0-9]{2})\$[./A-Za-z0-9]{53}$`)

// bcryptCost returns the cost of a bcrypt hash, and false if the text is no bcrypt hash. A
// computation takes 2^cost steps.
func bcryptCost(text string) (int, bool) {
	m := bcryptForm.FindStringSubmatch(text)
	if m == nil {
		return 0, false
	}
	cost, err := strconv.Atoi(m[1])
	return cost, err == nil && cost >= bcrypt.MinCost
}

// BcryptCost returns the cost of a bcrypt hash, and false if the text is no bcrypt hash.
func BcryptCost(hash string) (cost int, ok bool) { return bcryptCost(hash) }

// compare checks a password against a stored hash. It returns errHash if the hash is of another
// kind, or one of its parameters is out of bounds.
func compare(password, hash string) (bool, error) {
	if h, ok := parseArgon2(hash); ok {
		return h.matches(password), nil
	}
	if cost, ok := bcryptCost(hash); !ok || cost > mostCost {
		return false, errHash
	}
	switch err := bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)); {
	case errors.Is(err, bcrypt.ErrMismatchedHashAndPassword):
		return false, nil
	case err != nil:
		return false, errHash
	}
	return true, nil
}

// NeedsRehash says whether a stored hash was made with another algorithm or other parameters
// than Hash uses now. After a log-in that succeeded, the caller hashes the password again and
// replaces the stored hash. It returns false for "", which stands for no password.
func NeedsRehash(hash string) bool {
	if hash == "" {
		return false
	}
	h, ok := parseArgon2(hash)
	return !ok || h.memoryKiB != memoryKiB || h.passes != passes || h.threads != threads || len(h.salt) < saltBytes || len(h.key) != keyBytes
}
