// Package session keeps the log-ins of browsers: the table sessions, and the cookie that names
// a row of it.
//
// # Secrets
//
// A session's secret is 32 random bytes, in base64. Only the browser has it: the table has its
// SHA-256, which finds the row but can't be turned back. [Sessions.Create] always makes a new
// secret and never takes one from the client. So nobody can give a browser a cookie whose secret
// they know, and use the session after its user has logged in (session fixation). The handler of
// log-ins revokes the session that the browser had before.
//
// # How long a session lasts
//
// A session ends when it wasn't used for Options.Idle, when it is Options.MaxAge old, when it or
// all sessions of its account are revoked, when its account is disabled or deleted, or when the
// account has Options.Most newer ones. PostgreSQL's clock decides. Purser writes the time of
// the last use only every few minutes (touchInterval), so a session may end that much earlier
// than Options.Idle after its last use.
//
// [Sessions.Find] keeps its results for CacheTime, so that the requests of one page cost one
// query. The time counts from before the query was sent. A session that ends at time T was found
// by a query that was sent before T, so no process lets it in after T + CacheTime. The process
// that revokes a session removes it from its cache. A query that is running meanwhile may still
// find the session, and doesn't put it into the cache. So a request that begins in that process
// after Revoke has returned isn't let in.
//
// # Requests of other sites
//
// A page of another site can make a browser send requests to the registry. No token in forms is
// needed against it:
//
//   - The cookie has SameSite=Lax. So a browser sends the cookie with requests that a page of
//     another site causes only if they are navigations of the whole tab with GET or HEAD, and
//     these methods change nothing in Purser. (Browsers that also send new cookies with POST do
//     so only with cookies that have no SameSite attribute.)
//   - For SameSite, pages of other ports and of sibling domains are of the same site. Therefore
//     the server checks each request with another method: it refuses the request unless the
//     header Sec-Fetch-Site says that the page is of the same origin, or, if the browser doesn't
//     send that header, Origin names the host to which the request was sent. Pages can't set
//     these headers. Every browser sends at least Origin with such a request. Package
//     internal/server does this with http.CrossOriginProtection, before any handler. This also
//     keeps a page from logging its visitor in as somebody else.
package session

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/worker"
)

const (
	// CacheTime is how long a process may let a session in after another process has revoked
	// it.
	CacheTime = 10 * time.Second
	// maxSessions is the number of sessions that an account may have, by default.
	maxSessions = 50
	// touchInterval is the time after which the use of a session is recorded again.
	touchInterval = 5 * time.Minute
	// deleteRows is how many rows one statement deletes.
	deleteRows = 1000
	// maxText is the number of bytes of an address or a User-Agent that are kept.
	maxText = 256
)

// ErrNoAccount says that there is no account for a new session, or that it is disabled.
var ErrNoAccount = errors.New("the account doesn't exist or is disabled")

// Options configure Sessions.
type Options struct {
	DB *db.DB // required
	// Idle is how long a session lasts without being used. Default 12 h.
	Idle time.Duration
	// MaxAge is how long a session lasts at most. Default 7 days.
	MaxAge time.Duration
	// ExternalURL is the URL under which browsers reach the registry. If it begins with
	// https://, all requests count as sent over https, although a proxy passes them on over
	// http. Default: each request counts as it arrives.
	ExternalURL string
	// Most is how many sessions an account has: the next log-in ends the oldest of them. Default
	// 50.
	Most int
	// MayDelete returns an error that wraps worker.ErrRest while nothing may be deleted for its age.
	// Nil: it may.
	MayDelete func(ctx context.Context) error
	Log       *slog.Logger    // default slog.Default()
	Worker    *worker.Metrics // nil: none
}

// Sessions are the log-ins of browsers. All processes of a registry share them. The methods may
// be called concurrently.
type Sessions struct {
	opt   Options
	https bool // the external URL is https
	cache *cache
	loop  *worker.Loop
}

// Session is a log-in of a browser.
type Session struct {
	ID       uuid.UUID // it isn't secret
	Account  int64
	Created  time.Time
	LastUsed time.Time // to within 5 min
	Expires  time.Time // if it is used until then
	// Address and UserAgent are those of the log-in. They are what the client said, or "".
	Address, UserAgent string
	// PasswordState and Confirmed say by which password the person has logged in, and when the source of
	// the account last confirmed that it is the account's. Both are nil if the log-in was without
	// a password.
	PasswordState []byte
	Confirmed     *time.Time
}

// Proof says by which password a person has logged in. See Session.
type Proof struct {
	PasswordState []byte
	Confirmed     time.Time
	Until         time.Time // the session ends by then; zero: after Options.MaxAge
}

// NewSessions checks the options.
func NewSessions(o Options) (*Sessions, error) {
	if o.DB == nil {
		return nil, errors.New("session: the database is required")
	}
	o.Idle = cmp.Or(o.Idle, 12*time.Hour)
	o.MaxAge = cmp.Or(o.MaxAge, 7*24*time.Hour)
	o.Most = cmp.Or(o.Most, maxSessions)
	if o.Idle < time.Minute || o.MaxAge < time.Minute {
		return nil, errors.New("session: sessions should last 1 min at least")
	}
	o.Log = cmp.Or(o.Log, slog.Default())
	s := &Sessions{opt: o, cache: newCache(CacheTime, time.Now)}
	if o.ExternalURL != "" {
		u, err := url.Parse(o.ExternalURL)
		if err != nil || u.Scheme != "https" && u.Scheme != "http" {
			return nil, fmt.Errorf("session: the external URL %q isn't scheme and host", o.ExternalURL)
		}
		s.https = u.Scheme == "https"
	}
	s.loop = worker.New(worker.Options{
		Name: "sessions", Batch: s.deleteExpired, May: o.MayDelete, Log: o.Log, Metrics: o.Worker,
	})
	return s, nil
}

// hash is the SHA-256 of a secret.
type hash [sha256.Size]byte

// secretLength is the length of a secret's text.
var secretLength = base64.RawURLEncoding.EncodedLen(32)

// Create starts a session of an account and returns its secret. If the account has 50 sessions,
// the oldest one ends. Create returns ErrNoAccount if the account doesn't exist or is disabled.
func (s *Sessions) Create(ctx context.Context, account int64, address, userAgent string) (secret string, err error) {
	return s.CreateProved(ctx, account, address, userAgent, Proof{})
}

// CreateProved is Create for a log-in by a password.
func (s *Sessions) CreateProved(ctx context.Context, account int64, address, userAgent string, p Proof) (secret string, err error) {
	var random [32]byte
	rand.Read(random[:]) //nolint:errcheck // it never fails
	secret = base64.RawURLEncoding.EncodeToString(random[:])
	h := hash(sha256.Sum256([]byte(secret)))
	id, err := uuid.NewRandom()
	if err != nil {
		return "", err
	}
	err = s.opt.DB.Tx(ctx, func(tx pgx.Tx) error {
		// The lock makes concurrent log-ins of the account wait for each other, so that each
		// counts the sessions of the others.
		var found int64
		err := tx.QueryRow(ctx, `
			SELECT id FROM accounts WHERE id = $1 AND disabled_at IS NULL AND deleted_name IS NULL FOR NO KEY UPDATE`, account).Scan(&found)
		if errors.Is(err, pgx.ErrNoRows) {
			return ErrNoAccount
		}
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			WITH surplus AS (
				DELETE FROM sessions WHERE secret_hash = ANY (ARRAY(
					SELECT secret_hash FROM sessions
					WHERE account_id = @account AND (SELECT count(*) FROM sessions WHERE account_id = @account) >= @most
					ORDER BY created_at, id DESC LIMIT 1))
			)
			INSERT INTO sessions (secret_hash, id, account_id, created_at, last_used_at, expires_at, address, user_agent, password_state, confirmed_at)
			VALUES (@hash, @id, @account, clock_timestamp(), clock_timestamp(), LEAST(clock_timestamp() + @age::interval, @until),
				NULLIF(@address, ''), NULLIF(@agent, ''), @password, @confirmed)`,
			db.Args{
				"account": account, "most": s.opt.Most, "hash": h[:], "id": id, "age": s.opt.MaxAge,
				"address": clean(address), "agent": clean(userAgent),
				"password": p.PasswordState, "confirmed": orNull(p.Confirmed), "until": orNull(p.Until),
			})
		return err
	})
	if err != nil {
		return "", fmt.Errorf("creating a session: %w", err)
	}
	return secret, nil
}

func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// clean returns at most maxText bytes of a text of the client, without control characters and
// broken UTF-8, which PostgreSQL wouldn't store.
func clean(text string) string {
	if len(text) > maxText {
		text = text[:maxText]
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, ""))
}

// Find returns the session that has the secret, and records its use. ok is false if there is no
// such session, or if it has ended. A session that has ended may still be found for CacheTime,
// see the package comment.
func (s *Sessions) Find(ctx context.Context, secret string) (found Session, ok bool, err error) {
	if len(secret) != secretLength {
		return Session{}, false, nil
	}
	h := hash(sha256.Sum256([]byte(secret)))
	found, ok, keep := s.cache.get(h)
	if ok {
		return found, true, nil
	}
	// The use is recorded only if no one else has locked the row. Else another request of the
	// browser is recording it, or the session is being deleted.
	rows, err := s.opt.DB.Pool.Query(ctx, `
		WITH found AS (
			SELECT s.id, s.account_id, s.created_at, s.last_used_at, s.expires_at, s.address, s.user_agent, s.password_state, s.confirmed_at
			FROM sessions s
			WHERE s.secret_hash = $1 AND s.expires_at > now() AND s.created_at > now() - $2::interval AND s.last_used_at > now() - $3::interval
				AND EXISTS (SELECT FROM accounts a WHERE a.id = s.account_id AND a.disabled_at IS NULL AND a.deleted_name IS NULL OFFSET 0)
		), used AS (
			UPDATE sessions SET last_used_at = now() WHERE secret_hash = ANY (ARRAY(
				SELECT secret_hash FROM sessions
				WHERE secret_hash = $1 AND last_used_at < now() - $4::interval AND EXISTS (SELECT FROM found)
				FOR NO KEY UPDATE SKIP LOCKED))
		)
		SELECT id, account_id, created_at, last_used_at, expires_at, COALESCE(address, ''), COALESCE(user_agent, ''), password_state, confirmed_at FROM found`,
		h[:], s.opt.MaxAge, s.opt.Idle, s.touchInterval())
	if err == nil {
		found, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Session])
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return Session{}, false, nil
	}
	if err != nil {
		return Session{}, false, fmt.Errorf("looking for a session: %w", err)
	}
	keep(found)
	return found, true, nil
}

// touchInterval is at most a quarter of Idle, so that a session that is in use doesn't end.
func (s *Sessions) touchInterval() time.Duration { return min(touchInterval, s.opt.Idle/4) }

// Revoke ends a session of an account. It returns false if the account has no such session.
func (s *Sessions) Revoke(ctx context.Context, account int64, id uuid.UUID) (revoked bool, err error) {
	tag, err := s.opt.DB.Pool.Exec(ctx, "DELETE FROM sessions WHERE id = $1 AND account_id = $2", id, account)
	// After an error nobody knows whether the row is deleted.
	s.cache.remove(func(c Session) bool { return c.ID == id && c.Account == account })
	if err != nil {
		return false, fmt.Errorf("revoking a session: %w", err)
	}
	return tag.RowsAffected() > 0, nil
}

// RevokeAll ends the sessions of an account, except for those with the ids `but`, and returns how
// many they were. Call it when the account's password changes.
func (s *Sessions) RevokeAll(ctx context.Context, account int64, but ...uuid.UUID) (revoked int64, err error) {
	if but == nil {
		but = []uuid.UUID{} // nil would be NULL
	}
	tag, err := s.opt.DB.Pool.Exec(ctx, "DELETE FROM sessions WHERE account_id = $1 AND NOT id = ANY ($2)", account, but)
	s.cache.remove(func(c Session) bool { return c.Account == account })
	if err != nil {
		return 0, fmt.Errorf("revoking the sessions of an account: %w", err)
	}
	return tag.RowsAffected(), nil
}

// Forget empties the cache. Call it after sessions were deleted in another way than by the
// methods here: then Find doesn't return them in this process any more.
func (s *Sessions) Forget() { s.cache.clear() }

// List lists up to n sessions of an account that haven't ended, newest first, after the place
// `after`. It says whether there are more.
func (s *Sessions) List(ctx context.Context, account int64, after *Place, n int) (list []Session, more bool, err error) {
	begin := Place{time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), uuid.Nil}
	if after != nil {
		begin = *after
	}
	rows, err := s.opt.DB.Pool.Query(ctx, `
		SELECT id, account_id, created_at, last_used_at, expires_at, COALESCE(address, ''), COALESCE(user_agent, ''), password_state, confirmed_at
		FROM sessions
		WHERE account_id = $1 AND expires_at > now() AND created_at > now() - $2::interval AND last_used_at > now() - $3::interval
			AND created_at <= $4 AND (created_at < $4 OR id > $5)
		ORDER BY created_at DESC, id LIMIT $6`, account, s.opt.MaxAge, s.opt.Idle, begin.Created, begin.ID, n+1)
	if list, more, err = db.Page(rows, err, n, pgx.RowToStructByPos[Session]); err != nil {
		return nil, false, fmt.Errorf("listing the sessions of an account: %w", err)
	}
	return list, more, nil
}

// Place is the place of a session in the list.
type Place struct {
	Created time.Time
	ID      uuid.UUID
}

// Run deletes expired sessions until ctx ends; then it returns nil. Several processes may run it
// at the same time. It leaves sessions that weren't used for Options.Idle until they expire.
func (s *Sessions) Run(ctx context.Context) error { return s.loop.Run(ctx) }

// deleteExpired deletes some of the expired sessions.
func (s *Sessions) deleteExpired(ctx context.Context) (more bool, err error) {
	tag, err := s.opt.DB.Pool.Exec(ctx, `
		DELETE FROM sessions WHERE secret_hash = ANY (ARRAY(
			SELECT secret_hash FROM sessions WHERE expires_at < now()
			ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED))`, deleteRows)
	if err != nil {
		return false, fmt.Errorf("deleting expired sessions: %w", err)
	}
	return tag.RowsAffected() == deleteRows, nil
}
