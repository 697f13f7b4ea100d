package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"math/big"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// CredentialKind says for what a generated secret is.
type CredentialKind string

const (
	RobotSecret    CredentialKind = "robot"
	PersonalToken  CredentialKind = "personal"
	RefreshToken   CredentialKind = "refresh"   // clients get it at log-in instead of keeping the password
	FederatedToken CredentialKind = "federated" // for a robot, in exchange for another issuer's token
)

// secretPrefixes begin the secrets of each kind, so that people and scanners of source code
// recognize them.
var secretPrefixes = map[CredentialKind]string{
	RobotSecret: "purser_robot_", PersonalToken: "purser_pat_", RefreshToken: "purser_refresh_", FederatedToken: "purser_fed_",
}

// newSecret returns a secret of 256 random bits in letters and digits, after the kind's prefix.
func newSecret(kind CredentialKind) string {
	var b [32]byte
	rand.Read(b[:]) //nolint:errcheck // it never fails
	return secretPrefixes[kind] + new(big.Int).SetBytes(b[:]).Text(62)
}

// isSecret says whether a text has the form of a generated secret.
func isSecret(text string) bool {
	for _, prefix := range secretPrefixes {
		if strings.HasPrefix(text, prefix) {
			return true
		}
	}
	return false
}

func secretHash(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}

// Credential is a generated secret of an account, without the secret.
type Credential struct {
	ID       uuid.UUID
	Account  int64
	Kind     CredentialKind
	Title    string
	Limits   Limits
	Created  time.Time
	Expires  *time.Time // nil: never
	LastUsed *time.Time // nil: never

	// passwordState and confirmed are a refresh token's. See bought.
	passwordState []byte
	confirmed     *time.Time
}

// keptExpired is how many expired tokens of each kind an account keeps.
const keptExpired = 100

// createCredential stores a new secret for an account, and returns it.
func (s *Store) createCredential(ctx context.Context, tx pgx.Tx, c Credential) (Credential, string, error) {
	if err := c.Limits.Check(); err != nil {
		return c, "", invalid("%v", err)
	}
	if err := checkText("title", c.Title, maxTitle); err != nil {
		return c, "", err
	}
	most, keep := s.most.Tokens, max(s.most.Tokens, keptExpired)
	switch c.Kind {
	case RefreshToken:
		most, keep = s.most.RefreshTokens, s.most.RefreshTokens
	case FederatedToken:
		most, keep = s.most.FederatedTokens, s.most.FederatedTokens
	case RobotSecret, PersonalToken:
	}
	secret := newSecret(c.Kind)
	c.ID = uuid.New()
	// The lock on the account's row makes concurrent requests count one after the other.
	if _, err := tx.Exec(ctx, "SELECT FROM accounts WHERE id = $1 FOR UPDATE", c.Account); err != nil {
		return c, "", err
	}
	var count int
	err := tx.QueryRow(ctx, `
		WITH oldest AS (
			SELECT id FROM credentials WHERE account_id = @account AND kind = @kind AND (kind IN ('refresh', 'federated') OR expires_at <= now())
			-- The title is a client's or a pipeline's: one that asks all the time ends no other's.
			WINDOW same AS (PARTITION BY title, COALESCE(expires_at <= now(), false) ORDER BY created_at DESC)
			ORDER BY COALESCE(expires_at <= now(), false), row_number() OVER same, created_at DESC OFFSET @keep
		), gone AS (
			DELETE FROM credentials WHERE id IN (SELECT id FROM oldest)
		)
		SELECT count(*) FROM credentials
		WHERE account_id = @account AND kind = @kind AND id NOT IN (SELECT id FROM oldest) AND (kind IN ('refresh', 'federated') OR expires_at IS NULL OR expires_at > now())`,
		db.Args{"account": c.Account, "kind": string(c.Kind), "keep": keep - 1}).Scan(&count)
	if err != nil {
		return c, "", err
	}
	if count >= most {
		return c, "", tooManyTokens(most)
	}
	err = tx.QueryRow(ctx, `
		INSERT INTO credentials (id, account_id, kind, title, secret_hash, repository_patterns, actions, expires_at, password_state, confirmed_at)
		VALUES (@id, @account, @kind, @title, @hash, @patterns, @actions, @expires, @state, @confirmed)
		RETURNING created_at`,
		db.Args{"id": c.ID, "account": c.Account, "kind": string(c.Kind), "title": c.Title, "hash": secretHash(secret),
			"patterns": c.Limits.Repositories, "actions": c.Limits.Actions, "expires": c.Expires,
			"state": c.passwordState, "confirmed": c.confirmed}).Scan(&c.Created)
	return c, secret, err
}

// CreateToken makes a personal token of the client's account. `expires` nil: never. It returns the
// secret, which isn't stored. Errors: 401 if the session or token that the client has sent has ended,
// 404 if the account is gone, whoever has its name now.
func (s *Store) CreateToken(ctx context.Context, by *Principal, title string, l Limits, expires *time.Time) (c Credential, secret string, err error) {
	return s.createToken(ctx, by, Credential{Kind: PersonalToken, Title: title, Limits: l, Expires: expires})
}

// createToken makes a token of a person's account: what `n` says but for ID, account and date.
func (s *Store) createToken(ctx context.Context, by *Principal, n Credential) (c Credential, secret string, err error) {
	err = s.change(ctx, "creating a token of "+by.Name, func(tx pgx.Tx) error {
		c = n
		// The lock makes a change that ends what the client has sent come before or after this. The name
		// may be that of another account by now. A principal that a caller makes may have no id.
		err := tx.QueryRow(ctx, "SELECT id FROM accounts WHERE name = $1 AND kind = 'user' AND ($2::bigint = 0 OR id = $2) FOR UPDATE", by.Name, by.ID).Scan(&c.Account)
		if errors.Is(err, pgx.ErrNoRows) {
			return unknownAccount(by.Name)
		}
		if err == nil {
			err = stillStands(ctx, tx, c.Account, by)
		}
		if err != nil {
			return err
		}
		if c, secret, err = s.createCredential(ctx, tx, c); err != nil {
			return err
		}
		return audit.Append(ctx, tx, audit.Entry{Kind: audit.CreateToken, Detail: map[string]any{
			"account": by.Name, "token": c.ID, "kind": string(c.Kind), "title": c.Title}})
	})
	return c, secret, err
}

// stillStands returns an error if the session or the generated secret that the client has sent is gone.
// Otherwise a token that is made by them at this moment would outlive what ended them.
func stillStands(ctx context.Context, tx pgx.Tx, account int64, by *Principal) (err error) {
	stands := true
	switch {
	case by.session != "":
		err = tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM sessions WHERE id = $1 AND account_id = $2)", by.session, account).Scan(&stands)
	case by.credential != uuid.Nil:
		err = tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM credentials WHERE id = $1 AND account_id = $2)", by.credential, account).Scan(&stands)
	}
	if err == nil && !stands {
		err = oci.Errorf(oci.Unauthorized, "the log-in of %s has ended: log in again", by.Name)
	}
	return err
}

// TokenQuery selects credentials of an account.
type TokenQuery struct {
	Account string
	ID      int64 // of the account; 0: of whoever has the name
	Kinds   []CredentialKind
	// Before, if it isn't zero, selects those that end before then.
	Before time.Time
	// After is the last credential of the page before, nil for the first page.
	After *TokenPlace
}

// TokenPlace is the place of a credential in a list.
type TokenPlace struct {
	Created time.Time
	ID      uuid.UUID
}

// Tokens lists up to n credentials of an account, the newest first. It says whether there are more.
func (s *Store) Tokens(ctx context.Context, q TokenQuery, n int) (list []Credential, more bool, err error) {
	after, end := TokenPlace{time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), uuid.Nil}, &q.Before
	if q.After != nil {
		after = *q.After
	}
	if q.Before.IsZero() {
		end = nil
	}
	rows, err := s.db.Pool.Query(ctx, `
		SELECT c.id, c.account_id, c.kind, c.title, c.repository_patterns, c.actions, c.created_at, c.expires_at, c.last_used_at
		FROM credentials c JOIN accounts a ON a.id = c.account_id
		WHERE a.name = $1 AND c.kind = ANY ($2) AND ($3::timestamptz IS NULL OR c.expires_at < $3)
			AND c.created_at <= $4 AND (c.created_at < $4 OR c.id > $5) AND ($7::bigint = 0 OR a.id = $7)
		ORDER BY c.created_at DESC, c.id LIMIT $6`, q.Account, q.Kinds, end, after.Created, after.ID, n+1, q.ID)
	return db.Page(rows, err, n, scanToken)
}

// Token returns a credential of an account that has one of the kinds. Error: 404.
func (s *Store) Token(ctx context.Context, account string, id uuid.UUID, kinds ...CredentialKind) (Credential, error) {
	rows, err := s.db.Pool.Query(ctx, `
		SELECT c.id, c.account_id, c.kind, c.title, c.repository_patterns, c.actions, c.created_at, c.expires_at, c.last_used_at
		FROM credentials c JOIN accounts a ON a.id = c.account_id
		WHERE a.name = $1 AND c.id = $2 AND c.kind = ANY ($3)`, account, id, kinds)
	if err != nil {
		return Credential{}, err
	}
	c, err := pgx.CollectExactlyOneRow(rows, scanToken)
	if errors.Is(err, pgx.ErrNoRows) {
		err = unknown("account %s has no token %s", short(account), id)
	}
	return c, err
}

func scanToken(row pgx.CollectableRow) (c Credential, err error) {
	err = row.Scan(&c.ID, &c.Account, &c.Kind, &c.Title, &c.Limits.Repositories, &c.Limits.Actions, &c.Created, &c.Expires, &c.LastUsed)
	return c, err
}

// RevokeToken revokes a credential of an account. Error: 404.
func (s *Store) RevokeToken(ctx context.Context, account string, id uuid.UUID) error {
	return s.change(ctx, "revoking a token of "+account, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, "DELETE FROM credentials c USING accounts a WHERE a.id = c.account_id AND a.name = $1 AND c.id = $2", account, id)
		if err == nil && tag.RowsAffected() == 0 {
			return unknown("account %s has no token %s", short(account), id)
		}
		if err != nil {
			return err
		}
		return audit.Append(ctx, tx, audit.Entry{Kind: audit.RevokeToken, Detail: map[string]any{"account": account, "token": id}})
	})
}

// credentialOf finds the credential with a secret, and its account. ok is false if there is
// none or it has expired.
func (s *Store) credentialOf(ctx context.Context, secret string) (c Credential, account string, ok bool, err error) {
	err = s.db.Pool.QueryRow(ctx, `
		SELECT c.id, c.account_id, c.kind, c.title, c.repository_patterns, c.actions, c.created_at, c.expires_at, c.last_used_at,
			c.password_state, c.confirmed_at, a.name
		FROM credentials c JOIN accounts a ON a.id = c.account_id
		WHERE c.secret_hash = $1 AND a.deleted_name IS NULL AND (c.expires_at IS NULL OR c.expires_at > now())`, secretHash(secret)).
		Scan(&c.ID, &c.Account, &c.Kind, &c.Title, &c.Limits.Repositories, &c.Limits.Actions, &c.Created, &c.Expires, &c.LastUsed, &c.passwordState, &c.confirmed, &account)
	if errors.Is(err, pgx.ErrNoRows) {
		return c, "", false, nil
	}
	return c, account, err == nil, err
}

// DeleteExpired deletes up to n expired credentials. `more` says whether there may be others.
func (s *Store) DeleteExpired(ctx context.Context, n int) (more bool, err error) {
	tag, err := s.db.Pool.Exec(ctx, `
		DELETE FROM credentials WHERE id IN (
			SELECT id FROM credentials WHERE expires_at < now() - interval '30 days'
			ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED)`, n)
	return err == nil && tag.RowsAffected() == int64(n), err
}

// accountOf returns the account of a credential. Another account may have got its name since the
// credential or the account of this name was cached: then the id decides. A password has no id.
func (c *Control) accountOf(ctx context.Context, found owned) (Account, error) {
	a, err := c.account(ctx, found.account)
	if id := found.Credential.Account; err == nil && id != 0 && a.ID != id {
		return c.accountByID(ctx, id)
	}
	return a, err
}
