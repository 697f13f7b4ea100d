package auth

import (
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/auth/password"
	"github.com/purser-registry/purser/internal/auth/token"
)

// Principal is who sends a request. It doesn't change, so goroutines share it.
type Principal struct {
	ID        int64  // of the account; 0: nobody is logged in
	Name      string // of the account, "" if ID is 0
	Robot     bool
	Superuser bool // an administrator of the registry

	limits  Limits     // of the robot or the credential
	expires *time.Time // of the credential, also of another issuer's token; nil: never
	token   *token.Claims
	// session is the id of the browser's session, "" if there is none.
	session string
	// credential is the id of the generated secret that the client has sent, zero if there is none.
	credential uuid.UUID
	open       bool
	// password says that the client has sent the account's password, and proof which one it was.
	password bool
	proof    password.Proof
	// federated is the token of another issuer by which a robot has logged in, nil if it has
	// sent something else.
	federated *federated
}

// federated is what a verified token of another issuer says.
type federated struct {
	subject string
	expires time.Time
	rules   []uuid.UUID // that the robot had
}

// Everyone is the principal of all requests to a registry without access control, where
// everybody may do everything. Nobody is the principal of requests without credentials.
var (
	Everyone = &Principal{open: true}
	Nobody   = &Principal{}
)

// LoggedIn says whether the client has an account.
func (p *Principal) LoggedIn() bool { return p.ID != 0 }

// IsOpen says whether the registry has no access control.
func (p *Principal) IsOpen() bool { return p.open }

// Session returns the id of the browser's session, "" if the client has sent other credentials.
func (p *Principal) Session() string { return p.session }

// HasToken says whether the client has sent a registry token.
func (p *Principal) HasToken() bool { return p != nil && p.token != nil }

// Limits returns what the robot or the token of the client is limited to.
func (p *Principal) Limits() Limits { return p.limits }

// Expires returns when the secret or token of the client ends, nil if it doesn't or if the client
// has sent other credentials. Whatever lets somebody log in and is made with it ends by then.
func (p *Principal) Expires() *time.Time { return p.expires }

// MayRefresh says whether the client may get a refresh token: a person who has sent a password
// may, and a token can't be made into another one that lasts longer.
func (p *Principal) MayRefresh() bool { return p.ID != 0 && !p.Robot && p.password }

// Proof says which password of which account the client has sent. It has no State if it has sent none.
func (p *Principal) Proof() password.Proof {
	proof := p.proof
	proof.Account = p.ID
	return proof
}

// Federated returns the claim sub and the end of the token of another issuer by which a robot
// has logged in. ok is false if the client has sent something else.
func (p *Principal) Federated() (subject string, expires time.Time, ok bool) {
	if p.federated == nil {
		return "", time.Time{}, false
	}
	return p.federated.subject, p.federated.expires, true
}
