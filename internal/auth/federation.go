package auth

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/auth/identity"
	"github.com/purser-registry/purser/internal/auth/password"
	"github.com/purser-registry/purser/internal/oci"
)

// federationChecker returns how a token of another issuer is checked that a client sends as
// the password of a robot: by the robot's rules. A result is cached as long as the rules are the
// same, and not beyond the token's end. The client doesn't learn why a token is refused, since
// that would tell whether the robot exists.
func (c *Control) federationChecker(ctx context.Context, robot, raw string) (checker, error) {
	rules, err := c.Federations(ctx, robot)
	if err != nil {
		return checker{}, err
	}
	list, ids := make([]identity.Rule, len(rules)), make([]uuid.UUID, len(rules))
	for i, f := range rules {
		list[i], ids[i] = identity.Rule{Issuer: f.Issuer, Audience: f.Audience, Claims: f.Claims}, f.ID
	}
	subject, expires, unread := identity.Unverified(raw)
	how := checker{hash: fmt.Sprintf("rules %q", list), federated: &federated{subject, expires, ids}}
	namespace, _, _ := strings.Cut(robot, "+")
	how.check = func(ctx context.Context) (p password.Proof, err error) {
		ctx, err = identity.WithNamespace(ctx, namespace), unread
		if err == nil {
			_, _, err = c.opt.Federation.Match(ctx, raw, list)
		}
		// Match accepts a token for a minute after its end, because clocks differ. Here the end
		// counts as it is: whoever uses an old token would get a new secret for it.
		if err == nil && !expires.After(time.Now()) {
			err = fmt.Errorf("%w: the token expired at %s", identity.ErrRefused, expires)
		}
		switch {
		case errors.Is(err, identity.ErrRefused):
			c.log.InfoContext(ctx, "a robot's token of another issuer is refused", "robot", robot, "error", err)
			return p, nil
		case err != nil:
			return p, oci.Errorf(oci.Unavailable, "the issuer of the token can't be asked for its keys now: try again").WithCause(err)
		}
		return password.Proof{OK: true}, nil
	}
	return how, nil
}

// federatedAge is how long a federated token is valid at most.
const federatedAge = time.Hour

// ExchangeFederated gives a robot that has logged in by a token of another issuer a secret of
// its own. The secret is valid for 1 h, but not beyond the end of the token. Errors: 403 if the
// principal has logged in otherwise, 401 if the robot's rules have been replaced since it logged in.
func (c *Control) ExchangeFederated(ctx context.Context, p *Principal) (secret string, expires time.Time, err error) {
	subject, end, ok := p.Federated()
	if !ok {
		return "", end, oci.Errorf(oci.Denied, "this exchanges a token of a pipeline, which is sent as the password of a robot; %s has logged in otherwise", p.Name)
	}
	if expires = time.Now().Add(federatedAge); end.Before(expires) {
		expires = end
	}
	secret, err = c.CreateFederatedToken(ctx, p.Name, p.federated.rules, title(subject), expires)
	return secret, expires, err
}

// title returns the beginning of a text from a client, as the title of a credential.
func title(text string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(text[:min(len(text), 200)], "\x00", ""), "")
}
