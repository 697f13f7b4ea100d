package auth

import (
	"context"
	"errors"
	"time"

	"github.com/purser-registry/purser/internal/auth/identity"
	"github.com/purser-registry/purser/internal/auth/password"
	"github.com/purser-registry/purser/internal/oci"
)

// The time that a refused log-in takes must not tell whether there is an account of the name, nor of
// which kind it is. Kinds differ: an argon2id hash takes some 25 ms, a bcrypt hash of an htpasswd file
// up to seconds, a directory as long as it likes. So each refused log-in does the work of all kinds
// that are configured: after the check of its own kind has said no, it does that of the others, with
// hashes and names that nothing matches. A log-in that succeeds doesn't; it has no secret to keep.

// worked says what the check of a password has computed or asked.
type worked struct {
	argon2    bool
	bcrypt    int // the cost; 0: none
	directory bool
}

// workOf returns what a check against a stored hash computes. Without a hash that is an argon2id hash
// all the same.
func workOf(hash string) worked {
	if cost, ok := password.BcryptCost(hash); ok {
		return worked{bcrypt: cost}
	}
	return worked{argon2: true}
}

// level does the work that a refused log-in hasn't done yet. An error is for the client: the log-in
// of another name would have got it too.
func (c *Control) level(ctx context.Context, pass string, did worked) error {
	var hashes []string
	if !did.argon2 {
		hashes = append(hashes, "")
	}
	if c.opt.Htpasswd != nil {
		hashes = append(hashes, c.opt.Htpasswd.Decoys(did.bcrypt)...)
	}
	for _, hash := range hashes {
		if _, err := c.checkPassword(ctx, pass, hash); err != nil {
			return err
		}
	}
	if c.opt.Directory != nil && !did.directory {
		if err := c.opt.Directory.Decoy(ctx); errors.Is(err, identity.ErrUnavailable) {
			return noDirectory(err)
		}
	}
	return nil
}

// noDirectory is the error for a log-in that the directory would have to check.
func noDirectory(cause error) error {
	return oci.Errorf(oci.Unavailable, "the directory that checks passwords is not available now: try again").WithCause(cause)
}

// tooManyLogIns is the error for a log-in that finds the queue of the hasher full.
func tooManyLogIns() error {
	return oci.Errorf(oci.TooManyRequests, "there are too many log-ins now: try again in a moment").WithRetryAfter(time.Second)
}
